package firecracker

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/durable"
	"github.com/pandastack/pandastack/internal/proc"
)

// Files in Spec.Dir, out of the monitor's reach.
const (
	rootDir    = "root"         // the monitor's
	recordFile = "monitor.json" // who it is
	baseFile   = "base"         // another name of the memory that its captures are a difference to
)

// fileKey names a file whatever it is called.
type fileKey struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
}

func keyOf(f *os.File) (fileKey, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fileKey{}, err
	}
	return fileKey{st.Dev, st.Ino}, nil
}

// record is what a later process of ours has to know of a monitor.
type record struct {
	Process proc.Identity `json:"process"`
	Shape   shape         `json:"shape"`
	// Base is the memory that the next capture is a difference to; zero: the next one must be full.
	Base fileKey `json:"base"`
	// Paged: its memory comes from a pager in the process that loaded it, and ends with that.
	Paged        bool    `json:"paged,omitempty"`
	DiskBytes    []int64 `json:"disk_bytes"` // as the guest knows them
	MaxMemoryMiB int     `json:"max_memory_mib,omitempty"`
	MaxDisks     int     `json:"max_disks,omitempty"`
}

// writeRecord puts r into dir: whole, but not durably, since no monitor outlives a crash of the host.
func writeRecord(dir string, r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, recordFile)
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// readRecord answers false where there is none, or one that a crash of the host left unreadable.
func readRecord(dir string) (record, bool, error) {
	var r record
	err := durable.ReadJSON(filepath.Join(dir, recordFile), &r)
	var access *fs.PathError
	switch {
	case err == nil:
		return r, true, nil
	case errors.As(err, &access) && !errors.Is(err, fs.ErrNotExist):
		return record{}, false, err
	}
	return record{}, false, nil
}

// marker is the environment variable that names the directory a monitor belongs to. It finds monitors that
// were started just before this program died, before their record was written.
func marker(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return "PANDASTACK_MONITOR=" + abs, nil
}

// monitors finds who belongs to dir: the one of its record, or without one whoever carries its mark.
func monitors(dir string) ([]proc.Identity, error) {
	r, ok, err := readRecord(dir)
	if err != nil {
		return nil, err
	}
	if ok {
		return []proc.Identity{r.Process}, nil
	}
	mark, err := marker(dir)
	if err != nil {
		return nil, err
	}
	return proc.Find(mark)
}

// removeFiles takes away what a monitor needed in dir.
func removeFiles(dir string) error {
	err := os.RemoveAll(filepath.Join(dir, rootDir))
	for _, name := range []string{recordFile, recordFile + ".new", baseFile, baseFile + ".new"} {
		if e := os.Remove(filepath.Join(dir, name)); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// openPlain opens a file that a monitor may have put there: a plain file and no link to another.
func openPlain(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: errors.New("not a plain file")}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
