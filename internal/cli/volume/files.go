package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
)

// place is a file or directory of a volume, as NAME:PATH or NAME.
type place struct{ volume, path string }

// parsePlace reads a place; the path of one without is the root of the volume.
func parsePlace(text string) place {
	name, path, _ := strings.Cut(text, ":")
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	return place{name, path}
}

func listFiles(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{
		Use:     "files NAME[:DIRECTORY]",
		Short:   "List a directory of a volume",
		Example: "  pandastack volume files data:/models",
		Args:    cobra.ExactArgs(1),
	}
	return run(f, c, func(ctx context.Context, v *client.Volumes, args []string) error {
		at := parsePlace(args[0])
		all, err := v.ListFiles(ctx, at.volume, at.path)
		if err != nil {
			return err
		}
		head := []string{"TYPE", "MODE", "USER", "SIZE", "AGE", "NAME"}
		return cmdutil.PrintTable(f, all, head, func(e api.FileEntry) []string {
			name, age := e.Name, cmdutil.Age(time.Unix(e.MTime, 0), time.Now())
			if e.IsDir {
				name += "/"
			}
			return []string{e.Mode, e.Permissions, e.User, cmdutil.Size(e.Size), age, name}
		})
	})
}

func cat(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{Use: "cat NAME:FILE", Short: "Print a file of a volume", Args: cobra.ExactArgs(1)}
	return run(f, c, func(ctx context.Context, v *client.Volumes, args []string) error {
		return read(ctx, v, parsePlace(args[0]), f.Stdout)
	})
}

// read copies a file of a volume to w.
func read(ctx context.Context, v *client.Volumes, from place, w io.Writer) error {
	content, err := v.ReadFile(ctx, from.volume, from.path)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, content)
	return errors.Join(err, content.Close())
}

func copyFile(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{
		Use:   "cp FROM TO",
		Short: "Copy a file into a volume or out of it",
		Long: "Copy a file into a volume or out of it. One side is NAME:PATH, the other a local path; - is\n" +
			"standard input or output. import and export copy directories.",
		Example: "  pandastack volume cp ./model.bin data:/models/model.bin\n" +
			"  pandastack volume cp data:/result.json -",
		Args: cobra.ExactArgs(2),
	}
	return run(f, c, func(ctx context.Context, v *client.Volumes, args []string) error {
		from, to := strings.Contains(args[0], ":"), strings.Contains(args[1], ":")
		switch {
		case from == to:
			return errors.New("exactly one side must be NAME:PATH with the name of a volume")
		case to:
			return upload(ctx, f, v, args[0], parsePlace(args[1]))
		case args[1] == "-":
			return read(ctx, v, parsePlace(args[0]), f.Stdout)
		}
		return download(ctx, v, parsePlace(args[0]), args[1])
	})
}

func upload(ctx context.Context, f *cmdutil.Factory, v *client.Volumes, from string, to place) error {
	if from == "-" {
		_, err := v.WriteFile(ctx, to.volume, to.path, f.Stdin, -1)
		return err
	}
	file, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it was only read
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if info.IsDir() {
		return fmt.Errorf("%s is a directory: use tar -C %s -c . | pandastack volume import %s:%s",
			from, from, to.volume, to.path)
	}
	if strings.HasSuffix(to.path, "/") {
		to.path += filepath.Base(from)
	}
	_, err = v.WriteFile(ctx, to.volume, to.path, file, info.Size())
	return err
}

// download copies a file of a volume to a local path, which keeps what it has unless all of the file arrives.
func download(ctx context.Context, v *client.Volumes, from place, to string) (err error) {
	if info, err := os.Stat(to); err == nil && info.IsDir() {
		to = filepath.Join(to, filepath.Base(from.path))
	}
	part, err := os.CreateTemp(filepath.Dir(to), ".pandastack-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(part.Name()))
		}
	}()
	if err := errors.Join(read(ctx, v, from, part), part.Chmod(0o644), part.Close()); err != nil {
		return err
	}
	return os.Rename(part.Name(), to)
}

func removeFile(f *cmdutil.Factory) *cobra.Command {
	var recursive bool
	c := &cobra.Command{
		Use:   "remove NAME:PATH",
		Short: "Delete a file or an empty directory of a volume",
		Args:  cobra.ExactArgs(1),
	}
	c.Flags().BoolVarP(&recursive, "recursive", "r", false, "delete a directory with everything below it")
	return run(f, c, func(ctx context.Context, v *client.Volumes, args []string) error {
		at := parsePlace(args[0])
		return done(f, "removed", args[0], v.RemoveFile(ctx, at.volume, at.path, recursive))
	})
}

func importTar(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{
		Use:     "import NAME[:DIRECTORY] [FILE]",
		Short:   "Unpack a tar file, or standard input, into a volume",
		Example: "  tar -C ./site -c . | pandastack volume import data:/site",
		Args:    cobra.RangeArgs(1, 2),
	}
	return run(f, c, func(ctx context.Context, v *client.Volumes, args []string) error {
		at, in := parsePlace(args[0]), f.Stdin
		if len(args) == 2 && args[1] != "-" {
			file, err := os.Open(args[1])
			if err != nil {
				return err
			}
			defer func() { _ = file.Close() }() // it was only read
			in = file
		}
		return done(f, "imported", args[0], v.Import(ctx, at.volume, at.path, in))
	})
}

func exportTar(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{
		Use:     "export NAME[:DIRECTORY]",
		Short:   "Write a directory of a volume to standard output as a tar stream",
		Example: "  pandastack volume export data > data.tar",
		Args:    cobra.ExactArgs(1),
	}
	return run(f, c, func(ctx context.Context, v *client.Volumes, args []string) error {
		at := parsePlace(args[0])
		body, err := v.Export(ctx, at.volume, at.path)
		if err != nil {
			return err
		}
		_, err = io.Copy(f.Stdout, body)
		return errors.Join(err, body.Close())
	})
}
