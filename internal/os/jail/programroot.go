package jail

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// planEntry is one name in a program root.
type planEntry struct {
	mode   fs.FileMode // type bits; for a file also its execute bits
	target string      // of a symbolic link
	size   int64       // of a file
	stamp  int64       // modification time of a file in nanoseconds
}

// plan lists the content of a program root by absolute path on the host.
type plan map[string]planEntry

// plan returns all files that a program and its data need.
func (l *loader) plan(program string, data []string) (plan, error) {
	p := plan{}
	if err := p.add(program); err != nil {
		return nil, err
	}
	objects := []string{program}
	for _, d := range data {
		files, err := regular(d)
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			if err := p.add(f); err != nil {
				return nil, err
			}
			if strings.Contains(filepath.Base(f), ".so") {
				objects = append(objects, f)
			}
		}
	}
	libraries, err := l.closure(objects)
	if err != nil {
		return nil, err
	}
	if len(libraries) > 0 { // saves the loader a search
		if _, err := os.Stat("/etc/ld.so.cache"); err == nil {
			libraries = append(libraries, "/etc/ld.so.cache")
		}
	}
	for _, f := range libraries {
		if err := p.add(f); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// regular returns the regular files at or below path, or none if path does not exist.
func regular(path string) ([]string, error) {
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var files []string
	err = filepath.WalkDir(real, func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := os.Stat(at)
		if errors.Is(err, fs.ErrNotExist) { // a dangling link
			return nil
		}
		if err == nil && st.Mode().IsRegular() {
			files = append(files, filepath.Join(path, strings.TrimPrefix(at, real)))
		}
		return err
	})
	return files, err
}

// maxLinks is the maximum number of symbolic links in a path, as in the kernel
// (path_resolution(7)).
const maxLinks = 40

// add adds a file with the directories and symbolic links that lead to it.
func (p plan) add(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("path %q is not absolute", path)
	}
	at, links := "/", 0
	rest := strings.Split(path, "/")
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			at = filepath.Dir(at)
			continue
		}
		next := filepath.Join(at, name)
		st, err := os.Lstat(next)
		if err != nil {
			return err
		}
		switch st.Mode().Type() {
		case fs.ModeSymlink:
			if links++; links > maxLinks {
				return fmt.Errorf("%s: %w", path, unix.ELOOP)
			}
			target, err := os.Readlink(next)
			if err != nil {
				return err
			}
			p[next] = planEntry{mode: fs.ModeSymlink, target: target}
			if filepath.IsAbs(target) {
				at = "/"
			}
			rest = append(strings.Split(target, "/"), rest...)
		case fs.ModeDir:
			p[next] = planEntry{mode: fs.ModeDir}
			at = next
		case 0:
			p[next] = planEntry{mode: st.Mode() & 0o111, size: st.Size(), stamp: st.ModTime().UnixNano()}
			at = next
		default:
			return fmt.Errorf("%s is neither a file nor a directory", next)
		}
	}
	return nil
}

func (p plan) paths() []string {
	all := make([]string, 0, len(p))
	for path := range p {
		all = append(all, path)
	}
	slices.Sort(all)
	return all
}

// digest identifies the content of a program root. Files with the same size and modification time
// count as equal.
func (p plan) digest() string {
	sum := sha256.New()
	for _, path := range p.paths() {
		i := p[path]
		fmt.Fprintf(sum, "%q %o %q %d %d\n", path, i.mode, i.target, i.size, i.stamp)
	}
	return hex.EncodeToString(sum.Sum(nil))[:24]
}

// top returns the names directly below the root.
func (p plan) top() map[string]planEntry {
	all := map[string]planEntry{}
	for path, i := range p {
		if name := path[1:]; !strings.Contains(name, "/") {
			all[name] = i
		}
	}
	return all
}

// keepRoots is the number of copies to keep: those of the programs in use and of earlier versions,
// which adopted machines may still run.
const keepRoots = 4

// build creates the copy below dir unless it exists, and returns its path. A copy is always
// complete, even after a crash of the host. Only one call at a time may use a directory.
func (p plan) build(dir string) (string, error) {
	path := filepath.Join(dir, p.digest())
	now := time.Now()
	err := os.Chtimes(path, now, now) // the most recently used copies are kept
	if !errors.Is(err, fs.ErrNotExist) {
		return path, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	work := filepath.Join(dir, "new")
	if err := os.RemoveAll(work); err != nil { // left by an interrupted build
		return "", err
	}
	if err := os.Mkdir(work, 0o755); err != nil {
		return "", err
	}
	err = p.fill(work)
	if err == nil {
		err = syncTree(work)
	}
	if err == nil {
		err = os.Rename(work, path)
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("copy programs into %s: %w", dir, err), os.RemoveAll(work))
	}
	return path, errors.Join(syncTree(dir), removeOldRoots(dir))
}

// syncTree makes everything written to dir's file system durable.
func syncTree(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}

func (p plan) fill(dir string) error {
	for _, path := range p.paths() { // sorted: parents come first
		to, i := filepath.Join(dir, path), p[path]
		var err error
		switch i.mode.Type() {
		case fs.ModeSymlink:
			err = os.Symlink(i.target, to)
		case fs.ModeDir:
			err = os.Mkdir(to, 0o755)
		default:
			err = copyFile(path, to, 0o444|i.mode)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func copyFile(from, to string, mode fs.FileMode) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Chmod(mode), dst.Close())
}

// removeOldRoots removes all but the newest copies. Machines that run from a removed copy keep
// their open files.
func removeOldRoots(dir string) error {
	list, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	type tree struct {
		path string
		made int64
	}
	var all []tree
	for _, e := range list {
		info, err := e.Info()
		if err != nil {
			return err
		}
		all = append(all, tree{filepath.Join(dir, e.Name()), info.ModTime().UnixNano()})
	}
	slices.SortFunc(all, func(a, b tree) int { return int(min(max(b.made-a.made, -1), 1)) })
	var errs error
	for _, t := range all[min(keepRoots, len(all)):] {
		errs = errors.Join(errs, os.RemoveAll(t.path))
	}
	return errs
}
