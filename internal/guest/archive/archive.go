// Package archive carries files in and out of a guest as tar streams: what COPY of a build does at its end in
// the machine. It is the other use of the guest agent's program, as `pack`, `unpack` and `sync`, run in the
// guest like any program, so that an image without a tar of its own can be built on.
//
// In a stream, "d/<path>" is what a copied directory holds and "f/<name>" a copied file by itself: how
// COPY treats the two differs. The package trusts neither stream: it bounds names and refuses paths that
// leave the destination by dots. Links that the guest's own files make are the guest's business.
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

// Main runs one of the verbs and answers the exit code of the process.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	var err error
	switch args[0] {
	case "unpack":
		err = unpackMain(args[1:], stdin)
	case "pack":
		err = Pack(stdout, args[1:])
	case "sync": // what a later boot from the disk alone shall find
		unix.Sync()
	default:
		err = fmt.Errorf("%q is not a verb of this program", args[0])
	}
	if err != nil {
		fmt.Fprintln(stderr, args[0]+":", err)
		return 1
	}
	return 0
}

// Verb tells whether the text is one that Main knows.
func Verb(text string) bool { return text == "pack" || text == "unpack" || text == "sync" }

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
		return fmt.Errorf("what is %q?", set.Arg(0))
	}
	return Unpack(stdin, opt)
}

// Pack writes what the patterns name, absolute paths with wildcards of package path/filepath, to w.
// A pattern that nothing matches is an error.
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
	info, err := os.Stat(name) // a named link is followed, as COPY does
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

// packFile writes one entry; sockets and devices are left out.
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

// owner reads "user", "user:group" or numbers against the accounts below root.
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
