package durable

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// keptPrefix marks the kept content of a file.
const keptPrefix = ".kept-"

// keepMu is held while a kept file is exchanged, which takes two changes of a directory.
var keepMu sync.Mutex

// Keep makes the content of path durable, and keeps it for ReadKeptJSON until the next Keep.
//
// A file that Replace writes can be empty after a crash of the host; the kept content cannot. Keep may run while
// another caller replaces the file.
func Keep(path string) error {
	if err := keep(path); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// keep is Keep, but the names in the directory may not be durable yet. A crash cannot lose them and have a later name.
func keep(path string) error {
	for {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		same, err := keepOpen(f, path)
		if err := errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("keep %s: %w", path, err)
		}
		if same {
			return nil
		}
	}
}

// keepOpen makes the content of f durable and keeps it, or returns false if f is not at path any more.
func keepOpen(f *os.File, path string) (same bool, err error) {
	if err := f.Sync(); err != nil {
		return false, err
	}
	at, err := f.Stat()
	if err != nil {
		return false, err
	}
	keepMu.Lock()
	defer keepMu.Unlock()
	temp := filepath.Join(filepath.Dir(path), tempPrefix+keptPrefix+filepath.Base(path))
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a process that was killed
		return false, err
	}
	if err := os.Link(path, temp); errors.Is(err, fs.ErrNotExist) { // it was replaced, or removed, at this moment
		return false, nil
	} else if err != nil {
		return false, err
	}
	linked, err := os.Lstat(temp)
	if err != nil || !os.SameFile(at, linked) {
		return false, errors.Join(err, os.Remove(temp))
	}
	if current, err := os.Lstat(keptPath(path)); err == nil && os.SameFile(at, current) {
		return true, os.Remove(temp) // a rename to the same file would do nothing
	}
	return true, os.Rename(temp, keptPath(path))
}

func keptPath(path string) string {
	return filepath.Join(filepath.Dir(path), keptPrefix+filepath.Base(path))
}

// WriteKept is WriteFile and Keep.
func WriteKept(path string, data []byte, mode fs.FileMode) error {
	if err := WriteFile(path, data, mode); err != nil {
		return err
	}
	return keep(path)
}

// ReadKeptJSON is ReadJSON for a file that Replace writes. If a crash of the host cut the file off, it reads what was
// kept of it and reports true. A file that is complete is never passed over, whatever it contains.
func ReadKeptJSON(path string, v any) (kept bool, err error) {
	err = ReadJSON(path, v)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	data, readErr := os.ReadFile(path)
	if readErr != nil || len(data) > maxJSON || json.Valid(data) {
		return false, err
	}
	if keptErr := ReadJSON(keptPath(path), v); keptErr != nil {
		return false, err
	}
	return true, nil
}
