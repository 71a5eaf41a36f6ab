package cli

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
)

func (a *app) sandboxCopy() *cobra.Command {
	var user string
	c := &cobra.Command{
		Use:   "cp FROM TO",
		Short: "Copy files and directories into a sandbox or out of it",
		Long: "Copy files and directories into a sandbox or out of it. One side is ID:PATH, the other a local\n" +
			"path; - is standard input or output. A directory is copied recursively, and into TO if that is a\n" +
			"directory.",
		Example: "  pandastack sandbox cp ./src sbx...:/home/user/src\n  pandastack sandbox cp " +
			"sbx...:/tmp/result.bin .\n" +
			"  pandastack sandbox cp sbx...:/etc/os-release -",
		Args: cobra.ExactArgs(2),
	}
	c.Flags().StringVar(&user, "user", "", "owner of the files written in the sandbox")
	c.RunE = func(c *cobra.Command, args []string) error {
		fromID, from, fromThere := inSandbox(args[0])
		toID, to, toThere := inSandbox(args[1])
		switch {
		case fromThere == toThere:
			return fmt.Errorf("exactly one side must be ID:PATH with the id or name of a sandbox; write a local path " +
				"with a colon as ./PATH")
		case toThere:
			cl, id, err := a.dialSandbox(c.Context(), toID)
			if err != nil {
				return err
			}
			return (&copier{cl, id, user}).upload(c.Context(), a.Stdin, args[0], to)
		default:
			cl, id, err := a.dialSandbox(c.Context(), fromID)
			if err != nil {
				return err
			}
			return (&copier{cl, id, user}).download(c.Context(), a.Stdout, from, args[1])
		}
	}
	return c
}

// inSandbox splits ID:PATH. It reports false for a local path, which has no colon or a slash before it.
func inSandbox(arg string) (id, path string, ok bool) {
	id, path, ok = strings.Cut(arg, ":")
	return id, path, ok && id != "" && !strings.Contains(id, "/")
}

// copier copies files between this machine and one sandbox.
type copier struct {
	*client.Client
	id   api.SandboxID
	user string
}

func (c *copier) upload(ctx context.Context, stdin io.Reader, from, to string) error {
	if from == "-" {
		_, err := c.Files.Write(ctx, c.id, to, stdin, -1, client.WriteOptions{User: c.user})
		return err
	}
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		return notCopied(from, info.Mode())
	}
	if e, err := c.Files.Stat(ctx, c.id, to); err == nil && e.IsDir {
		to = path.Join(to, filepath.Base(from))
	} else if strings.HasSuffix(to, "/") {
		to += filepath.Base(from)
	}
	if info.IsDir() {
		return c.uploadTree(ctx, from, to)
	}
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = c.Files.Write(
		ctx,
		c.id,
		to,
		f,
		info.Size(),
		client.WriteOptions{User: c.user, Mode: uint32(info.Mode().Perm())},
	)
	return err
}

// uploadTree sends a directory as one archive and unpacks it in the sandbox.
func (c *copier) uploadTree(ctx context.Context, from, to string) error {
	if err := packable(from); err != nil {
		return err
	}
	archive := "/tmp/.pandastack-" + strings.TrimPrefix(string(api.NewRequestID()), "req") + ".tar"
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := pack(from, w)
		w.CloseWithError(err)
		done <- err
	}()
	_, err := c.Files.Write(ctx, c.id, archive, r, -1, client.WriteOptions{User: c.user})
	r.CloseWithError(errors.New("upload ended"))
	if packed := <-done; packed != nil && err != nil {
		return errors.Join(err, packed)
	}
	if err != nil {
		return err
	}
	return c.sh(
		ctx,
		fmt.Sprintf(
			"mkdir -p %s && tar -C %s -xf %s; code=$?; rm -f %s; exit $code",
			cmdutil.Quote(to),
			cmdutil.Quote(to),
			archive,
			archive,
		),
	)
}

// sh runs a shell command in the sandbox and returns an error if it fails.
func (c *copier) sh(ctx context.Context, line string) error {
	res, err := c.Sandboxes.Exec(ctx, c.id, api.ExecRequest{Cmd: line, User: c.user})
	if err != nil {
		return err
	}
	if res.ExitCode != 0 {
		return api.Errorf(api.Internal, "copy: %s", strings.TrimSpace(res.Stderr))
	}
	return nil
}

// pack writes the tree below dir as a tar archive with relative paths.
func pack(dir string, w io.Writer) error {
	t := tar.NewWriter(w)
	if err := t.AddFS(os.DirFS(dir)); err != nil {
		return err
	}
	return t.Close()
}

// packable returns an error that names the first file below dir that is no directory, regular file or link.
func packable(dir string) error {
	return filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Type().IsRegular() || d.Type() == fs.ModeSymlink {
			return err
		}
		return notCopied(name, d.Type())
	})
}

// notCopied is the error for a file that has no content to copy: reading a fifo could take forever.
func notCopied(name string, mode fs.FileMode) error {
	kind := "a special file"
	switch {
	case mode&fs.ModeNamedPipe != 0:
		kind = "a fifo"
	case mode&fs.ModeSocket != 0:
		kind = "a socket"
	case mode&fs.ModeDevice != 0:
		kind = "a device"
	}
	return local(fmt.Errorf("%q is %s, which cannot be copied: remove it, or send its content through standard input "+
		"with -", name, kind))
}

func (c *copier) download(ctx context.Context, stdout io.Writer, from, to string) error {
	e, err := c.Files.Stat(ctx, c.id, from)
	if err != nil {
		return err
	}
	if to != "-" {
		if info, err := os.Stat(to); err == nil && info.IsDir() {
			to = filepath.Join(to, path.Base(e.Path))
		}
	}
	if e.IsDir {
		if to == "-" {
			return fmt.Errorf("%s is a directory; a directory cannot be written to standard output", from)
		}
		return c.downloadTree(ctx, from, to)
	}
	r, err := c.Files.Read(ctx, c.id, from)
	if err != nil {
		return err
	}
	defer r.Close()
	if to == "-" {
		_, err := io.Copy(stdout, r)
		return err
	}
	return writeFile(to, r, 0o644)
}

func (c *copier) downloadTree(ctx context.Context, from, to string) (err error) {
	archive := "/tmp/.pandastack-" + strings.TrimPrefix(string(api.NewRequestID()), "req") + ".tar"
	if err := c.sh(ctx, fmt.Sprintf("tar -C %s -cf %s .", cmdutil.Quote(from), archive)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Files.Remove(ctx, c.id, archive, false)) }()
	r, err := c.Files.Read(ctx, c.id, archive)
	if err != nil {
		return err
	}
	defer r.Close()
	return unpack(r, to)
}

// unpack makes the tree of an archive below dir. The archive was made in a sandbox and is not trusted:
// nothing is written outside of dir, not even through a link that the archive made, and anything but
// directories, files and links is left out.
func unpack(r io.Reader, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("archive from the sandbox: %w", err)
		}
		if err := unpackOne(root, t, h); err != nil {
			return fmt.Errorf("%s from the sandbox: %w", h.Name, err)
		}
	}
}

func unpackOne(root *os.Root, t io.Reader, h *tar.Header) error {
	name := path.Clean(strings.TrimPrefix(h.Name, "./"))
	if name == "." {
		return nil
	}
	mode := fs.FileMode(h.Mode) & 0o777
	switch h.Typeflag {
	case tar.TypeDir:
		if err := root.Mkdir(name, mode|0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return nil
	case tar.TypeSymlink:
		return root.Symlink(h.Linkname, name)
	case tar.TypeReg:
		f, err := root.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, t)
		return errors.Join(err, f.Close())
	}
	return nil
}

func writeFile(name string, r io.Reader, mode fs.FileMode) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}
