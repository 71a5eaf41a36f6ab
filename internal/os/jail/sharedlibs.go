package jail

import (
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// loader finds the libraries of dynamically linked programs by the rules of ld.so(8), for programs
// without LD_ variables in their environment.
type loader struct {
	dirs []string // default directories of libraries
}

// newLoader reads the default directories of this host.
func newLoader() (*loader, error) {
	dirs, err := libraryDirs("/etc/ld.so.conf", 4)
	if err != nil {
		return nil, err
	}
	// The built-in default directories of ld.so, including Debian's multiarch ones.
	return &loader{append(dirs, "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu",
		"/usr/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib")}, nil
}

// libraryDirs reads the directories in a configuration file of ldconfig(8). A missing file contains
// none.
func libraryDirs(file string, depth int) ([]string, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) || depth == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var dirs []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), "#")
		words := strings.Fields(line)
		switch {
		case len(words) == 2 && words[0] == "include":
			pattern := words[1]
			if !filepath.IsAbs(pattern) {
				pattern = filepath.Join(filepath.Dir(file), pattern)
			}
			files, err := filepath.Glob(pattern)
			if err != nil {
				return nil, fmt.Errorf("%s: include %q: %w", file, words[1], err)
			}
			for _, f := range files {
				more, err := libraryDirs(f, depth-1)
				if err != nil {
					return nil, err
				}
				dirs = append(dirs, more...)
			}
		case len(words) == 1 && filepath.IsAbs(words[0]):
			dirs = append(dirs, words[0])
		}
	}
	return dirs, lines.Err()
}

// object is the part of an ELF file that the loader needs.
type object struct {
	path    string
	class   elf.Class
	machine elf.Machine
	interp  string
	needed  []string
	dirs    []string // RPATH or RUNPATH, with $ORIGIN expanded
	rpath   bool     // dirs also apply to the libraries of this object's libraries
}

// errNotELF reports that a file is not an ELF object.
var errNotELF = errors.New("not an ELF file")

func readObject(path string) (object, error) {
	f, err := elf.Open(path)
	if _, bad := errors.AsType[*elf.FormatError](err); bad || errors.Is(err, io.EOF) { // shorter than a header
		return object{}, fmt.Errorf("%s: %w", path, errNotELF)
	}
	if err != nil {
		return object{}, err
	}
	defer f.Close()
	o := object{path: path, class: f.Class, machine: f.Machine}
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP || p.Filesz > 4096 {
			continue
		}
		raw := make([]byte, p.Filesz)
		if _, err := p.ReadAt(raw, 0); err != nil {
			return object{}, fmt.Errorf("%s: interpreter: %w", path, err)
		}
		o.interp = strings.TrimRight(string(raw), "\x00")
	}
	if o.needed, err = f.ImportedLibraries(); err != nil {
		return object{}, fmt.Errorf("%s: %w", path, err)
	}
	run, err1 := f.DynString(elf.DT_RUNPATH)
	old, err2 := f.DynString(elf.DT_RPATH)
	if err := errors.Join(err1, err2); err != nil {
		return object{}, fmt.Errorf("%s: %w", path, err)
	}
	o.rpath = len(run) == 0
	if o.rpath {
		run = old
	}
	for _, list := range run {
		for dir := range strings.SplitSeq(list, ":") {
			origin := strings.NewReplacer("$ORIGIN", filepath.Dir(path), "${ORIGIN}", filepath.Dir(path))
			if dir = origin.Replace(dir); filepath.IsAbs(dir) {
				o.dirs = append(o.dirs, dir)
			}
		}
	}
	return o, nil
}

// closure returns the paths of all files that the objects need, without the objects themselves.
// Files that are not ELF need nothing.
func (l *loader) closure(paths []string) ([]string, error) {
	seen := map[string]bool{}
	var found []string
	type task struct {
		path  string
		rpath []string // of the objects that need it
	}
	var queue []task
	for _, p := range paths {
		queue = append(queue, task{path: p})
	}
	add := func(t task) {
		if !seen[t.path] {
			seen[t.path] = true
			found = append(found, t.path)
			queue = append(queue, t)
		}
	}
	for len(queue) > 0 {
		t := queue[0]
		queue = queue[1:]
		o, err := readObject(t.path)
		if errors.Is(err, errNotELF) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if o.interp != "" {
			add(task{path: o.interp})
		}
		below := t.rpath
		if o.rpath {
			below = append(append([]string(nil), o.dirs...), t.rpath...)
		}
		for _, name := range o.needed {
			path, err := l.find(o, name, t.rpath)
			if err != nil {
				return nil, err
			}
			add(task{path, below})
		}
	}
	return found, nil
}

// find returns the path of a library that o needs.
func (l *loader) find(o object, name string, inherited []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, dirs := range [][]string{o.dirs, inherited, l.dirs} {
		for _, dir := range dirs {
			path := filepath.Join(dir, name)
			lib, err := readObject(path)
			if err == nil && lib.class == o.class && lib.machine == o.machine {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("library %s of %s: %w", name, o.path, fs.ErrNotExist)
}
