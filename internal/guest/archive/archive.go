// Package archive copies files into and out of a guest as tar streams. It is the guest's side of the COPY instruction
// of an image build. The guest agent's program runs it as `pack`, `unpack` and `sync`, like any other program in the
// guest, so that a build works on images that have no tar.
//
// In a stream, entries "d/<path>" are the content of a copied directory, and "f/<name>" is a single copied file: COPY
// treats the two differently. The package does not trust a stream: it limits the length of names and refuses paths
// that leave the destination through "..". It follows links that exist in the guest, which are the guest's own
// choice.
package archive

import (
	"archive/tar"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/guest/passwd"
)

// Main runs one of the verbs and returns the exit code of the process.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	var err error
	switch args[0] {
	case "unpack":
		err = unpackMain(args[1:], stdin)
	case "pack":
		err = Pack(stdout, args[1:])
	case "sync": // so that a later boot from the disk alone finds the files
		unix.Sync()
	default:
		err = fmt.Errorf("unknown verb %q: want pack, unpack or sync", args[0])
	}
	if err != nil {
		fmt.Fprintln(stderr, args[0]+":", err)
		return 1
	}
	return 0
}

// IsVerb reports whether the text is a verb of Main.
func IsVerb(text string) bool { return text == "pack" || text == "unpack" || text == "sync" }

func unpackMain(args []string, stdin io.Reader) error {
	opt := Options{Root: "/"}
	set := flag.NewFlagSet("unpack", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.StringVar(&opt.Dest, "dest", "", "")
	set.StringVar(&opt.Chown, "chown", "", "")
	set.StringVar(&opt.Chmod, "chmod", "", "")
	if err := set.Parse(args); err != nil {
		return err
	}
	if set.NArg() != 0 {
		return fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	return Unpack(stdin, opt)
}

// Pack writes the files that match the patterns to w as a tar stream. Patterns are absolute paths with wildcards of
// package path/filepath. A pattern without a match is an error.
func Pack(w io.Writer, patterns []string) error {
	out := tar.NewWriter(w)
	for _, p := range patterns {
		found, err := filepath.Glob(p)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		if len(found) == 0 {
			return fmt.Errorf("%s: no such file or directory", p)
		}
		slices.Sort(found)
		for _, f := range found {
			if err := packOne(out, f); err != nil {
				return err
			}
		}
	}
	return out.Close()
}

func packOne(out *tar.Writer, name string) error {
	info, err := os.Stat(name) // a symbolic link that is named is followed, as by COPY
	if err != nil {
		return err
	}
	if !info.IsDir() {
		real, err := filepath.EvalSymlinks(name)
		if err != nil {
			return err
		}
		return packFile(out, real, "f/"+filepath.Base(name))
	}
	root, err := filepath.EvalSymlinks(name)
	if err != nil {
		return err
	}
	return filepath.WalkDir(root, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		return packFile(out, p, path.Join("d", filepath.ToSlash(rel)))
	})
}

// packFile writes one entry. It omits sockets and devices.
func packFile(out *tar.Writer, from, name string) error {
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	link := ""
	switch {
	case info.Mode()&os.ModeSymlink != 0:
		if link, err = os.Readlink(from); err != nil {
			return err
		}
	case info.IsDir():
		name += "/"
	case !info.Mode().IsRegular():
		return nil
	}
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	h.Name, h.Uname, h.Gname = name, "", ""
	if err := out.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
		return err
	}
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.CopyN(out, f, h.Size); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	return nil
}

// owner resolves "user" or "user:group", names or numbers, with the user database below root.
func owner(root, text string) (uid, gid int, err error) {
	user, group, both := strings.Cut(text, ":")
	db := passwd.Database{Root: strings.TrimSuffix(root, "/")}
	found, err := db.Lookup(user)
	if err != nil {
		return 0, 0, fmt.Errorf("chown: %w", err)
	}
	if !both || group == "" {
		return int(found.UID), int(found.GID), nil
	}
	id, ok := db.Group(group)
	if !ok {
		return 0, 0, fmt.Errorf("chown: group %q: no such group", group)
	}
	return int(found.UID), int(id), nil
}
