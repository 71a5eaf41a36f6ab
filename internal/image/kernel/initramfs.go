package kernel

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// initramfsFormat changes when the layout of the archive does.
const initramfsFormat = 2

// BuildInitramfs writes a cpio archive with the guest agent and the kernel modules in /modules.
//
// The agent is /init. By /modules/order it detects that the archive was damaged in the guest's memory. It has a line
// "checksum name" for each module, in load order, and a last line with the checksum of the lines before it; checksums
// are CRC-32C in hexadecimal. It is not the last file, since other data may follow directly behind the archive. The
// archive is not compressed: the monitor puts it into the guest's memory as it is, and translated code decompresses
// slowly.
func BuildInitramfs(ctx context.Context, w io.Writer, guestAgent string, modules []string) error {
	if err := CheckAgent(guestAgent); err != nil {
		return err
	}
	order, err := moduleOrder(ctx, modules)
	if err != nil {
		return fmt.Errorf("initramfs: %w", err)
	}
	c := cpioWriter{w: w}
	for _, d := range []string{"dev", "proc", "sys", "root", "modules"} {
		c.dir(d)
	}
	// The kernel opens /dev/console as the standard streams of /init before anything is mounted.
	c.char("dev/console", 0o600, 5, 1)
	c.char("dev/null", 0o666, 1, 3)
	c.file("modules/order", 0o644, int64(len(order)), strings.NewReader(order))
	if err := c.copy("init", 0o755, guestAgent); err != nil {
		return &AgentError{Path: guestAgent, Err: err}
	}
	for _, m := range modules {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := c.copy("modules/"+filepath.Base(m), 0o644, m); err != nil {
			return fmt.Errorf("initramfs: %w", err)
		}
	}
	if err := c.close(); err != nil {
		return fmt.Errorf("initramfs: %w", err)
	}
	return nil
}

// moduleOrder returns the content of /modules/order.
func moduleOrder(ctx context.Context, modules []string) (string, error) {
	table := crc32.MakeTable(crc32.Castagnoli)
	var order strings.Builder
	for _, m := range modules {
		if err := context.Cause(ctx); err != nil {
			return "", err
		}
		data, err := os.ReadFile(m)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&order, "%08x %s\n", crc32.Checksum(data, table), filepath.Base(m))
	}
	fmt.Fprintf(&order, "%08x\n", crc32.Checksum([]byte(order.String()), table))
	return order.String(), nil
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

// CheckAgent returns an *AgentError for a guest agent that the kernel could not start as /init.
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
