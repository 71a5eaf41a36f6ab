package kernel

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// initramfsFormat changes when the layout of the archive does.
const initramfsFormat = 1

// BuildInitramfs writes a cpio archive to w: the guest agent as /init, the given kernel modules below
// /modules, and /modules/order, which names them one a line in the order they are loaded in. The archive
// is not compressed: the monitor puts it into the guest's memory as it is, and translated code unpacks
// slowly.
func BuildInitramfs(ctx context.Context, w io.Writer, guestAgent string, modules []string) error {
	if err := CheckAgent(guestAgent); err != nil {
		return err
	}
	c := cpioWriter{w: w}
	for _, d := range []string{"dev", "proc", "sys", "root", "modules"} {
		c.dir(d)
	}
	// The kernel gives /dev/console to /init as its standard streams before anything is mounted.
	c.char("dev/console", 0o600, 5, 1)
	c.char("dev/null", 0o666, 1, 3)
	if err := c.copy("init", 0o755, guestAgent); err != nil {
		return &AgentError{Path: guestAgent, Err: err}
	}
	var order strings.Builder
	for _, m := range modules {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := c.copy("modules/"+filepath.Base(m), 0o644, m); err != nil {
			return fmt.Errorf("initramfs: %w", err)
		}
		fmt.Fprintln(&order, filepath.Base(m))
	}
	c.file("modules/order", 0o644, int64(order.Len()), strings.NewReader(order.String()))
	if err := c.close(); err != nil {
		return fmt.Errorf("initramfs: %w", err)
	}
	return nil
}

func (c *cpioWriter) copy(name string, mode uint32, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	c.file(name, mode, info.Size(), f)
	return c.err
}

// CheckAgent refuses a guest agent that the kernel could not start as /init, with an *AgentError.
func CheckAgent(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return &AgentError{Path: path, Err: err}
	case !info.Mode().IsRegular():
		return &AgentError{Path: path, Err: errors.New("not a regular file")}
	}
	if err := checkELF(path, true); err != nil {
		return &AgentError{Path: path, Err: err}
	}
	return nil
}

func writeInitramfs(ctx context.Context, path, guestAgent string, modules []string) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return fmt.Errorf("initramfs: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	w := bufio.NewWriterSize(f, 1<<20)
	err = BuildInitramfs(ctx, w, guestAgent, modules)
	if err = errors.Join(err, w.Flush(), f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
