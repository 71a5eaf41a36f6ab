package volume

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/lib/durable"
)

// Base is a backup whose content this host has in a file: the next one is a difference to it.
//
// The file shares its blocks with the volume until those are written to. Copies of a volume have the same base. It can
// be removed at any time: the next backup then takes longer.
type Base struct {
	Tenant string `json:"tenant"` // the owner of the backup in the object store
	Backup string `json:"backup"`
	File   string `json:"file"` // its name in Config.Bases
}

// openBases makes the directory of bases and removes those that no volume has.
func (s *Store) openBases() error {
	if err := os.MkdirAll(s.cfg.Bases, 0o700); err != nil {
		return err
	}
	list, err := os.ReadDir(s.cfg.Bases)
	if err != nil {
		return err
	}
	for _, e := range list {
		// A volume whose record cannot be used is backed up in full by a program that can use it.
		if s.baseUsed(e.Name()) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(s.cfg.Bases, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// baseUsed reports whether a volume has the base in a file. The caller holds s.mu, or is Open.
func (s *Store) baseUsed(file string) bool {
	for _, v := range s.volumes {
		if v.Base != nil && v.Base.File == file {
			return true
		}
	}
	return false
}

func (s *Store) basePath(b *Base) string { return filepath.Join(s.cfg.Bases, filepath.Base(b.File)) }

func newBaseFile() string { return strings.ToLower(rand.Text()) }

// cloneBase makes the base of a disk that has the content of a backup; nil for none. The disk is not durable yet.
func (s *Store) cloneBase(disk string, of *Base) (*Base, error) {
	if of == nil {
		return nil, nil
	}
	b := *of
	b.File = newBaseFile()
	path := s.basePath(&b)
	err := s.cfg.Clone(disk, path)
	if err == nil {
		err = errors.Join(os.Chmod(path, 0o600), durable.Sync(path))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("keep the content of the backup: %w", err), removeFile(path))
	}
	return &b, nil
}

func removeFile(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// SetBase makes the file at path, which has the content of a backup of a volume, its base. The file is moved. After an
// error the volume has the base that it had.
func (s *Store) SetBase(id hostapi.VolumeID, of Base, path string) (err error) {
	of.File = newBaseFile()
	if err := durable.Sync(path); err != nil {
		return fmt.Errorf("volume %s: %w", id, err)
	}
	if err := durable.Rename(path, s.basePath(&of)); err != nil {
		return fmt.Errorf("volume %s: %w", id, err)
	}
	var was *Base
	_, err = s.update(id, func(v *Volume) error {
		was, v.Base = v.Base, &of
		return nil
	})
	if err != nil {
		return errors.Join(err, s.DropBase(&of))
	}
	if err = s.done("base", "record"); errors.Is(err, ErrAbandon) {
		return err
	}
	return errors.Join(err, s.DropBase(was))
}

// DropBase removes a base that no volume has; nil is none.
func (s *Store) DropBase(b *Base) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dropBase(b)
}

func (s *Store) dropBase(b *Base) error {
	if b == nil || s.baseUsed(b.File) {
		return nil
	}
	return removeFile(s.basePath(b))
}

// OpenBase returns the base of a volume and a name of its file; nil if the volume has none.
// The name is valid until release is called.
func (s *Store) OpenBase(id hostapi.VolumeID) (base *Base, path string, release func() error, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.get(id)
	if err != nil {
		return nil, "", nil, err
	}
	none := func() error { return nil }
	if v.Base == nil {
		return nil, "", none, nil
	}
	s.drafts++
	path = filepath.Join(s.cfg.Dir, fmt.Sprintf("%sbase-%d", draftPrefix, s.drafts))
	err = os.Link(s.basePath(v.Base), path)
	if errors.Is(err, fs.ErrNotExist) { // it was removed for its space
		return nil, "", none, nil
	}
	if err != nil {
		return nil, "", nil, fmt.Errorf("volume %s: %w", id, err)
	}
	return v.Base, path, func() error { return removeFile(path) }, nil
}

// HasBase reports whether the file of a volume's base is there.
func (s *Store) HasBase(v Volume) bool {
	if v.Base == nil {
		return false
	}
	_, err := os.Stat(s.basePath(v.Base))
	return err == nil
}

// Reclaim removes bases, the oldest first, until that has freed so many bytes.
// It returns how many it has freed.
func (s *Store) Reclaim(bytes int64) (freed int64) {
	if s.cfg.Own == nil {
		return 0
	}
	list, err := os.ReadDir(s.cfg.Bases)
	if err != nil {
		return 0
	}
	var all []fs.FileInfo
	for _, e := range list {
		if info, err := e.Info(); err == nil { // otherwise it was removed
			all = append(all, info)
		}
	}
	slices.SortFunc(all, func(a, b fs.FileInfo) int {
		return cmp.Or(a.ModTime().Compare(b.ModTime()), cmp.Compare(a.Name(), b.Name()))
	})
	for _, info := range all {
		if freed >= bytes {
			break
		}
		path := filepath.Join(s.cfg.Bases, info.Name())
		own, err := s.cfg.Own(path)
		if err == nil && os.Remove(path) == nil {
			freed += own
		}
	}
	return freed
}
