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

// RecordFile is the name of a monitor's record in the directory of its machine.
const RecordFile = "monitor.json"

// WriteRecord writes what a later host agent must know about a monitor to dir. The write is atomic
// but not durable, because no monitor survives a crash of the host. The record must be a struct
// with the monitor's proc.Identity as JSON field "process".
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

// ReadRecord reads a record. It returns false if there is none or if a crash of the host has left
// it unreadable.
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

// recordedProcess returns the process named in dir's record, regardless of which driver wrote it.
func recordedProcess(dir string) (proc.Identity, bool, error) {
	var fields map[string]json.RawMessage
	ok, err := ReadRecord(dir, &fields)
	if err != nil || !ok {
		return proc.Identity{}, false, err
	}
	var id proc.Identity
	if err := json.Unmarshal(fields["process"], &id); err != nil {
		return proc.Identity{}, false, nil // unreadable counts as missing
	}
	return id, true, nil
}

// Marker returns the environment variable by which a monitor is found. Every monitor has it; its
// value is the directory of the machine. It finds monitors of a host agent that died before it
// wrote their record.
func Marker(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return "PANDASTACK_MONITOR=" + abs, nil
}

// findMonitors returns the monitors of dir: the recorded one or, without a record, every process
// with the marker.
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

// Remove removes the record and the named files from dir. Missing files are not an error.
func Remove(dir string, names ...string) error {
	var all error
	for _, name := range append([]string{RecordFile, RecordFile + ".new"}, names...) {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			all = errors.Join(all, err)
		}
	}
	return all
}

// FileKey identifies a file by device and inode. It is valid as long as the inode is in use.
type FileKey struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
}

// KeyOf returns the key of an open file.
func KeyOf(f *os.File) (FileKey, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return FileKey{}, err
	}
	return FileKey{uint64(st.Dev), st.Ino}, nil
}
