// Package durable writes files that survive a crash: completely or not at all.
//
// It owns the order write, fsync, rename, fsync of the directory, and does not know the content. Calls on different
// paths may run concurrently.
package durable

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// tempPrefix marks files that a crash left incomplete; Sweep removes them.
const tempPrefix = ".new-"

// WriteFile writes data to path with the given mode. Once it has returned nil, the new content survives a crash;
// before, the old. The directory must exist.
func WriteFile(path string, data []byte, mode fs.FileMode) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, tempPrefix+"*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", path, errors.Join(err, os.Remove(f.Name())))
		}
	}()
	if err := fill(f, data, mode); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return SyncDir(dir)
}

func fill(f *os.File, data []byte, mode fs.FileMode) error {
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	return f.Sync()
}

// WriteJSON writes v to path as indented JSON, mode 0600.
func WriteJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return WriteFile(path, append(data, '\n'), 0o600)
}

// maxJSON limits what ReadJSON reads into memory. No file of the program comes near it.
const maxJSON = 16 << 20

// ReadJSON reads path into v. Unknown fields and files over 16 MiB are errors: a file that this program does not
// fully understand must not be half used. A missing file returns fs.ErrNotExist.
func ReadJSON(path string, v any) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxJSON+1))
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if len(data) > maxJSON {
		return fmt.Errorf("read %s: larger than %d bytes", path, maxJSON)
	}
	dec := json.NewDecoder(strings.NewReader(string(data)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if dec.More() {
		return fmt.Errorf("read %s: more than one value", path)
	}
	return nil
}

// Rename moves a file or directory within one file system, durably.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	if err := SyncDir(filepath.Dir(to)); err != nil {
		return err
	}
	if filepath.Dir(from) == filepath.Dir(to) {
		return nil
	}
	return SyncDir(filepath.Dir(from))
}

// RemoveAll removes a tree, durably. It is not an error if the tree does not exist. It renames the tree first, so
// that a crash never leaves a tree that seems complete.
func RemoveAll(path string) error {
	gone := filepath.Join(filepath.Dir(path), tempPrefix+"gone-"+filepath.Base(path))
	if err := os.RemoveAll(gone); err != nil {
		return err
	}
	if err := os.Rename(path, gone); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	if err := SyncDir(filepath.Dir(path)); err != nil {
		return err
	}
	return os.RemoveAll(gone)
}

// Sweep removes the files and trees in dir that an interrupted call of this package left.
func Sweep(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var all error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempPrefix) {
			all = errors.Join(all, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return all
}

// Sync makes a file durable that was written without durability, or by another program.
func Sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir makes changes of a directory's entries durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Replace writes data to path, completely or not at all, without waiting for the disk.
//
// The file survives the end of this process, and a reader sees the old content or the new. A crash of the host may
// leave the old content, the new, or a file that is empty or cut off; Keep guards against that. One caller at a time
// may replace a path.
func Replace(path string, data []byte, mode fs.FileMode) error {
	temp := filepath.Join(filepath.Dir(path), tempPrefix+filepath.Base(path))
	if err := os.WriteFile(temp, data, mode); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return os.Rename(temp, path)
}
