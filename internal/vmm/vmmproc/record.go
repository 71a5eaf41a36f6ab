package vmmproc

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/lib/durable"
	"github.com/pandastack/pandastack/internal/lib/proc"
)

// RecordFile is the record of a monitor in the directory of its machine.
const RecordFile = "monitor.json"

// WriteRecord puts into dir what a later process of ours has to know of a monitor: whole, but not durably,
// since no monitor outlives a crash of the host. A record is a struct that has the monitor's proc.Identity
// as "process".
func WriteRecord(dir string, record any) error {
	data, err := json.Marshal(record)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, RecordFile)
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// ReadRecord answers false where there is none, or one that a crash of the host left unreadable.
func ReadRecord(dir string, record any) (bool, error) {
	err := durable.ReadJSON(filepath.Join(dir, RecordFile), record)
	var access *fs.PathError
	switch {
	case err == nil:
		return true, nil
	case errors.As(err, &access) && !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	return false, nil
}

// recordedProcess answers the process that the record in dir names, whichever driver wrote it.
func recordedProcess(dir string) (proc.Identity, bool, error) {
	var fields map[string]json.RawMessage
	ok, err := ReadRecord(dir, &fields)
	if err != nil || !ok {
		return proc.Identity{}, false, err
	}
	var id proc.Identity
	if err := json.Unmarshal(fields["process"], &id); err != nil {
		return proc.Identity{}, false, nil // as unreadable as none
	}
	return id, true, nil
}

// Marker is the environment variable that every monitor is started with: it names the directory of its
// machine. It finds monitors that were started just before this program died, before their record was written.
func Marker(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return "PANDASTACK_MONITOR=" + abs, nil
}

// findMonitors finds who belongs to dir: the one of its record, or without one whoever carries its mark.
func findMonitors(dir string) ([]proc.Identity, error) {
	id, ok, err := recordedProcess(dir)
	if err != nil {
		return nil, err
	}
	if ok {
		return []proc.Identity{id}, nil
	}
	mark, err := Marker(dir)
	if err != nil {
		return nil, err
	}
	return proc.Find(mark)
}

// Remove takes the record and the named files out of dir. What is not there is no error.
func Remove(dir string, names ...string) error {
	var all error
	for _, name := range append([]string{RecordFile, RecordFile + ".new"}, names...) {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			all = errors.Join(all, err)
		}
	}
	return all
}

// FileKey names a file, whatever it is called, for as long as something holds it.
type FileKey struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
}

// KeyOf names an open file.
func KeyOf(f *os.File) (FileKey, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return FileKey{}, err
	}
	return FileKey{uint64(st.Dev), st.Ino}, nil
}
