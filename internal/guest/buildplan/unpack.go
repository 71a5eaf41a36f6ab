package buildplan

import (
	"archive/tar"
	"bufio"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/pandastack/pandastack/internal/contract/buildevent"
)

// Bounds of a source if the request has none.
const (
	maxSourceBytes = 2 << 30
	maxSourceFiles = 200_000
)

// unpack reads the archive of an upload, tar or tar.gz, into the directory of the source, or with restore what pack
// wrote into the directory of the program.
func (r *run) unpack(verb string, in io.Reader) error {
	to := r.source()
	if verb == "restore" {
		to = r.Dir
	}
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	buffered := bufio.NewReaderSize(in, 64<<10)
	var archive io.Reader = buffered
	if magic, err := buffered.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		plain, err := gzip.NewReader(buffered)
		if err != nil {
			return invalid("upload", "upload a tar or tar.gz archive", "the archive cannot be read: %s", err)
		}
		archive = plain
	}
	limits := r.limits()
	u := unpacker{bytes: limits.SourceBytes, files: limits.SourceFiles}
	if verb == "restore" {
		u.bytes += buildevent.MaxFile * 16 // the plan
	}
	var err error
	if u.root, err = os.OpenRoot(to); err != nil {
		return err
	}
	defer u.root.Close() //nolint:errcheck // it was only a place to open files in
	if err := u.all(tar.NewReader(archive)); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, buffered); err != nil { // so that the writer sees no broken pipe
		return err
	}
	if verb == "unpack" {
		return unwrap(to)
	}
	return nil
}

func (r *run) limits() buildevent.Limits {
	l := r.req.Limits
	l.SourceBytes = cmp.Or(l.SourceBytes, maxSourceBytes)
	l.SourceFiles = cmp.Or(l.SourceFiles, maxSourceFiles)
	return l
}

// unpacker writes the entries of an archive below root, through no link that leads out of it.
type unpacker struct {
	root  *os.Root
	bytes int64 // that may still come
	files int
}

func (u *unpacker) all(in *tar.Reader) error {
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return invalid("upload", "upload a tar or tar.gz archive", "the archive cannot be read: %s", err)
		}
		name := path.Clean(h.Name)
		if !filepath.IsLocal(name) || len(name) > 4096 || strings.ContainsRune(name, 0) {
			return invalid("upload", "pack the archive inside the directory of the app",
				"path %.200q leads out of the archive", h.Name)
		}
		if u.files--; u.files < 0 {
			return tooLarge("the source has too many files")
		}
		if u.bytes -= h.Size; u.bytes < 0 {
			return tooLarge("the source is too large")
		}
		if name == "." {
			continue
		}
		if err := u.one(name, h, in); err != nil {
			return err
		}
	}
}

func tooLarge(message string) error {
	return &buildevent.Failure{
		Code: buildevent.CodeTooLarge, Message: message,
		Hint: "leave out what is generated or not needed, for example with .pandastackignore",
	}
}

func (u *unpacker) one(name string, h *tar.Header, in io.Reader) error {
	err := u.write(name, h, in)
	if err == nil || errors.Is(err, errEntry) {
		return nil
	}
	if escapes(err) {
		return invalid("upload", "remove the symbolic link, or what is below it",
			"path %.200q leads out of the archive through a symbolic link", h.Name)
	}
	return fmt.Errorf("unpack %.200q: %w", name, err)
}

// escapes reports whether os.Root refused a path because of a link. Its error has no sentinel.
func escapes(err error) bool { return strings.Contains(err.Error(), "path escapes from parent") }

// errEntry is the result of an entry that is neither a file nor a directory nor a link, which is left out.
var errEntry = errors.New("entry left out")

func (u *unpacker) write(name string, h *tar.Header, in io.Reader) error {
	if dir := path.Dir(name); dir != "." {
		if err := u.root.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	mode := fs.FileMode(h.Mode & 0o777)
	switch h.Typeflag {
	case tar.TypeDir:
		return u.root.MkdirAll(name, 0o755)
	case tar.TypeReg:
		if err := u.root.RemoveAll(name); err != nil {
			return err
		}
		f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode|0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, in)
		return errors.Join(err, f.Close())
	case tar.TypeSymlink:
		if err := u.root.RemoveAll(name); err != nil {
			return err
		}
		return u.root.Symlink(h.Linkname, name)
	case tar.TypeLink:
		if err := u.root.RemoveAll(name); err != nil {
			return err
		}
		return u.root.Link(path.Clean(h.Linkname), name)
	}
	return errEntry
}

// unwrap moves the content of the only directory of an archive up, unless the archive has files beside it.
func unwrap(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(entries) == 0 {
		return invalid("upload", "upload the files of the app", "the archive is empty")
	}
	if len(entries) != 1 || !entries[0].IsDir() || !strings.Contains(entries[0].Name(), "-") {
		return nil
	}
	// Only archives of git servers have a directory around the repository: "name-commit".
	inner := filepath.Join(dir, entries[0].Name())
	outer := dir + ".outer"
	if err := errors.Join(os.RemoveAll(outer), os.Rename(inner, outer), os.Remove(dir)); err != nil {
		return err
	}
	return os.Rename(outer, dir)
}

// pack writes a tar archive. Without arguments it has the source and the plan, with "context" the directory that is
// built, both without the repository's history; with a directory of the app its regular files and directories.
func (p Place) pack(w io.Writer, args []string) error {
	dir, links := p.Dir, true
	switch {
	case len(args) == 1 && args[0] == "context":
		plan, err := (&run{Place: p}).readPlan()
		if err != nil {
			return err
		}
		dir = filepath.Join(p.source(), plan.Source)
	case len(args) == 1:
		dir, links = (&run{Place: p}).inApp(args[0]), false
	}
	out := tar.NewWriter(w)
	err := filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, at)
		if err != nil || rel == "." {
			return err
		}
		if d.IsDir() && d.Name() == ".git" {
			return fs.SkipDir
		}
		if !links && !d.IsDir() && !d.Type().IsRegular() {
			return nil
		}
		return packEntry(out, at, filepath.ToSlash(rel))
	})
	return errors.Join(err, out.Close())
}

// packEntry adds a file, directory or link; other files are left out.
func packEntry(out *tar.Writer, at, name string) error {
	info, err := os.Lstat(at)
	if err != nil {
		return err
	}
	link := ""
	switch mode := info.Mode(); {
	case mode&fs.ModeSymlink != 0:
		if link, err = os.Readlink(at); err != nil {
			return err
		}
	case !mode.IsRegular() && !mode.IsDir():
		return nil
	}
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	h.Name, h.Uname, h.Gname, h.Uid, h.Gid = name, "", "", 0, 0
	if err := out.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
		return err
	}
	f, err := os.Open(at)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it was only read
	_, err = io.CopyN(out, f, h.Size)
	return err
}
