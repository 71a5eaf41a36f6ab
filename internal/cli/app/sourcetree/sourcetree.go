// Package sourcetree packs the files of a directory that belong to an app into an archive.
//
// Files that .gitignore, .dockerignore or .pandastackignore name are left out, as are the repository's own data and
// files with variables, which hold secrets. The package must not know where the archive goes.
package sourcetree

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/gitignore"
	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

// Bounds of a tree.
const (
	maxFiles  = 200_000
	maxIgnore = 1 << 20 // bytes of a file with patterns
)

// Names with a meaning of their own.
const (
	gitIgnore    = ".gitignore"
	dockerIgnore = ".dockerignore"
	ownIgnore    = ".pandastackignore"
	// StateDir is where the command line keeps what it knows of a directory. It is never packed.
	StateDir = ".pandastack"
)

// Options choose what is packed of what is left out otherwise.
type Options struct {
	Git bool // .git
	Env bool // .env and its like
}

// Tree is the files of a directory.
type Tree struct {
	Bytes int64    // of all files
	Left  []string // files with variables that were left out, from the root of the tree

	root    fs.FS
	entries []entry
}

// entry is a file, a directory or a symbolic link.
type entry struct {
	name string
	info fs.FileInfo
	link string
}

// Open finds the files of a directory. The directory must not change until they are packed.
func Open(root fs.FS, o Options) (*Tree, error) {
	t := &Tree{root: root}
	w := &walker{tree: t, options: o}
	if err := w.readDockerIgnore(); err != nil {
		return nil, err
	}
	if err := fs.WalkDir(root, ".", w.visit); err != nil {
		return nil, err
	}
	return t, nil
}

// Files returns the number of files and links.
func (t *Tree) Files() (n int) {
	for _, e := range t.entries {
		if !e.info.IsDir() {
			n++
		}
	}
	return n
}

// walker collects the entries of a tree.
type walker struct {
	tree    *Tree
	options Options
	git     []gitignore.Pattern // of the directories on the way, the deepest last
	depth   []int               // how many patterns there were before each directory on the way
	own     []gitignore.Pattern // of .pandastackignore
	docker  *patternmatcher.PatternMatcher
	parents map[string]patternmatcher.MatchInfo // of directories, for docker
}

// kept reports whether a file is packed although .dockerignore names it: the build reads it.
func kept(name string) bool {
	base := path.Base(name)
	return name == dockerIgnore || name == "pandastack.json" || name == "railpack.json" ||
		base == "Dockerfile" || strings.HasSuffix(base, ".Dockerfile") || strings.HasPrefix(base, "Dockerfile.")
}

// hasVariables reports whether a file is one with variables by its name, such as .env or .env.local.
func hasVariables(base string) bool {
	if base == ".env" {
		return true
	}
	end, ok := strings.CutPrefix(base, ".env.")
	return ok && !slices.Contains([]string{"example", "sample", "template", "dist", "defaults"}, end)
}

func (w *walker) visit(name string, d fs.DirEntry, err error) error {
	if err != nil {
		return err
	}
	if name == "." {
		return w.enter(name)
	}
	w.leave(name)
	out, err := w.leftOut(name, d)
	if err != nil {
		return err
	}
	if out {
		if d.IsDir() {
			return fs.SkipDir
		}
		return nil
	}
	if err := w.add(name, d); err != nil {
		return err
	}
	if d.IsDir() {
		return w.enter(name)
	}
	return nil
}

// leave drops the patterns of directories that the walk has left before it came to name.
func (w *walker) leave(name string) {
	if level := strings.Count(name, "/") + 1; level < len(w.depth) {
		w.git = w.git[:w.depth[level]]
		w.depth = w.depth[:level]
	}
}

// enter reads the patterns of a directory.
func (w *walker) enter(dir string) error {
	var domain []string
	if dir != "." {
		domain = strings.Split(dir, "/")
	}
	w.depth = append(w.depth, len(w.git))
	patterns, err := w.patterns(path.Join(dir, gitIgnore), domain)
	w.git = append(w.git, patterns...)
	if err == nil && dir == "." {
		w.own, err = w.patterns(ownIgnore, nil)
	}
	return err
}

// patterns reads a file in the syntax of .gitignore. A missing one has none.
func (w *walker) patterns(name string, domain []string) (all []gitignore.Pattern, err error) {
	text, err := readSmall(w.tree.root, name)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\r\n")
		if strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "#") {
			all = append(all, gitignore.ParsePattern(line, domain))
		}
	}
	return all, err
}

func (w *walker) readDockerIgnore() error {
	text, err := readSmall(w.tree.root, dockerIgnore)
	if err != nil {
		return err
	}
	patterns, err := ignorefile.ReadAll(bytes.NewReader(text))
	if err == nil {
		w.docker, err = patternmatcher.New(patterns)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", dockerIgnore, err)
	}
	w.parents = map[string]patternmatcher.MatchInfo{}
	return nil
}

// leftOut reports whether an entry is not packed, and for a directory, what is below it neither.
func (w *walker) leftOut(name string, d fs.DirEntry) (bool, error) {
	base := path.Base(name)
	switch {
	case name == StateDir:
		return true, nil
	case base == ".git":
		return !w.options.Git, nil
	case !d.IsDir() && hasVariables(base) && !w.options.Env:
		w.tree.Left = append(w.tree.Left, name)
		return true, nil
	}
	segments := strings.Split(name, "/")
	all := append(slices.Clip(w.git), w.own...)
	if gitignore.NewMatcher(all).Match(segments, d.IsDir()) {
		return true, nil
	}
	out, info, err := w.docker.MatchesUsingParentResults(name, w.parents[path.Dir(name)])
	if err != nil {
		return false, fmt.Errorf("%s: %w", dockerIgnore, err)
	}
	if d.IsDir() {
		w.parents[name] = info
		return out && !w.docker.Exclusions(), nil
	}
	return out && !kept(name), nil
}

func (w *walker) add(name string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	e := entry{name: name, info: info}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		if e.link, err = fs.ReadLink(w.tree.root, name); err != nil {
			return err
		}
	case info.Mode().IsRegular():
		w.tree.Bytes += info.Size()
	case !info.IsDir():
		return nil // sockets and devices are not files of an app
	}
	if w.tree.entries = append(w.tree.entries, e); len(w.tree.entries) > maxFiles {
		return fmt.Errorf("the directory has more than %d files: name in %s what the app does not need",
			maxFiles, ownIgnore)
	}
	return nil
}

// Pack writes the files as a tar stream that is compressed with gzip.
func (t *Tree) Pack(w io.Writer) error {
	packed, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return err
	}
	out := tar.NewWriter(packed)
	for _, e := range t.entries {
		if err := t.write(out, e); err != nil {
			return err
		}
	}
	return errors.Join(out.Close(), packed.Close())
}

func (t *Tree) write(out *tar.Writer, e entry) error {
	h := &tar.Header{
		Name: e.name, Mode: int64(e.info.Mode().Perm()), ModTime: e.info.ModTime(), Format: tar.FormatPAX,
		Typeflag: tar.TypeReg, Size: e.info.Size(),
	}
	switch {
	case e.info.IsDir():
		h.Typeflag, h.Name, h.Size = tar.TypeDir, e.name+"/", 0
	case e.link != "":
		h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, e.link, 0
	}
	if err := out.WriteHeader(h); err != nil || h.Typeflag != tar.TypeReg {
		return err
	}
	file, err := t.root.Open(e.name)
	if err != nil {
		return err
	}
	n, err := io.Copy(out, io.LimitReader(file, h.Size))
	if err == nil && n < h.Size {
		err = fmt.Errorf("%s shrank while it was read", e.name)
	}
	return errors.Join(err, file.Close())
}

// readSmall reads a file with patterns. A missing one is empty.
func readSmall(root fs.FS, name string) ([]byte, error) {
	file, err := root.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(file, maxIgnore+1))
	if err == nil && len(text) > maxIgnore {
		err = fmt.Errorf("%s has more than %d bytes", name, maxIgnore)
	}
	return text, errors.Join(err, file.Close())
}
