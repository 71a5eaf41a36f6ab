// Package volume keeps the volumes of a host: disks with an ext4 file system that outlive the machines they are
// attached to.
//
// It owns the directory of volumes: one directory for each with its record (volume.json) and its disk. A volume is
// made as a draft and becomes visible by one durable rename, so that it is complete or does not exist. The file
// system is made here and never read here: guests write to it.
//
// A volume has at most one writer, a machine, which the record names. Attach is durable before the machine may write,
// and fences order the writers: one that is lower than an earlier one is refused. Count grows with every start of a
// writer, so that the memory of a machine can be compared with the disk.
//
// All methods of a Store may be called concurrently.
package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/lib/durable"
)

// Names in the directory of a Store and of a volume.
const (
	draftPrefix = ".draft-" // of a volume, or of a private copy, that is being made
	recordFile  = "volume.json"
	diskFile    = "disk.img"
)

// recordVersion is the format of volume.json; a volume with another is left alone.
const recordVersion = 1

// MinMiB is the size of the smallest volume: there is room for the journal.
const MinMiB = 32

// MaxMiB is the size of the largest volume.
const MaxMiB = 16 << 20

const mib = 1 << 20

// Volume describes a volume.
type Volume struct {
	Version int               `json:"version"`
	ID      hostapi.VolumeID  `json:"id"`
	SizeMiB int               `json:"size_mib"`
	Frozen  bool              `json:"frozen,omitempty"`
	Machine hostapi.MachineID `json:"machine,omitempty"` // its writer; "": none
	Fence   uint64            `json:"fence,omitempty"`   // the highest so far
	// Dirty: the file system may be mounted, or its last writer ended without unmounting it.
	Dirty bool `json:"dirty,omitempty"`
	// Count is how many writers it has had.
	Count uint64 `json:"count,omitempty"`
	// Source names the disk of a snapshot that this is an untouched copy of; "" once it was attached.
	Source string `json:"source,omitempty"`
	// Base is the newest backup of it, or of what it is a copy of; nil: none is known.
	Base *Base `json:"base,omitempty"`
	// Ephemeral: it is in no list, and of no use to a later process: Open removes it.
	Ephemeral bool                 `json:"ephemeral,omitempty"`
	Check     *hostapi.VolumeCheck `json:"check,omitempty"`
	Group     string               `json:"group,omitempty"`
	Labels    map[string]string    `json:"labels,omitempty"`
	Created   time.Time            `json:"created"`
	Written   time.Time            `json:"written,omitzero"`
}

// Config has what a Store needs.
type Config struct {
	Dir string // on a file system with reflinks
	// Bases is the directory of the files that backups are compared with, on the same file system; default Dir with
	// "-bases" appended.
	Bases string
	// Format makes an empty ext4 file system in a new file; default Format.
	Format func(ctx context.Context, out *os.File, sizeMiB int) error
	// Clone makes a file that shares the blocks of another.
	Clone func(src, dst string) error
	// Grow makes a file larger.
	Grow func(path string, bytes int64) error
	// Own returns the bytes that removing a file would free; nil: it is not known.
	Own func(path string) (int64, error)
	// OnStep, for tests, is called after every step; an error ends the operation there. With ErrAbandon everything
	// stays as it is, as after a kill of this process.
	OnStep func(op, step string) error
}

// ErrAbandon from Config.OnStep ends an operation without its cleanups.
var ErrAbandon = errors.New("operation abandoned")

// Store keeps volumes.
type Store struct {
	cfg Config

	mu      sync.Mutex
	volumes map[hostapi.VolumeID]Volume
	broken  map[hostapi.VolumeID]error // set by Open
	making  map[hostapi.VolumeID]bool  // ids of volumes that are being made
	drafts  int
}

// Open reads the volumes of a directory, which it makes, and removes what a killed process left.
func Open(cfg Config) (*Store, error) {
	if cfg.Format == nil {
		cfg.Format = Format
	}
	cfg.Bases = cmp.Or(cfg.Bases, filepath.Clean(cfg.Dir)+"-bases")
	s := &Store{cfg: cfg, volumes: map[hostapi.VolumeID]Volume{}, making: map[hostapi.VolumeID]bool{},
		broken: map[hostapi.VolumeID]error{}}
	if err := os.MkdirAll(cfg.Dir, 0o711); err != nil {
		return nil, fmt.Errorf("open volumes: %w", err)
	}
	if err := durable.Sweep(cfg.Dir); err != nil {
		return nil, fmt.Errorf("open volumes: %w", err)
	}
	list, err := os.ReadDir(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("open volumes: %w", err)
	}
	for _, e := range list {
		at := filepath.Join(cfg.Dir, e.Name())
		if strings.HasPrefix(e.Name(), draftPrefix) {
			if err := os.RemoveAll(at); err != nil {
				return nil, fmt.Errorf("open volumes: %w", err)
			}
			continue
		}
		id := hostapi.VolumeID(e.Name())
		v, err := s.read(id)
		if err != nil { // another version of this program may understand it
			s.broken[id] = fmt.Errorf("volume %s: its files are kept: %w: %w", id, hostapi.ErrUnavailable, err)
			continue
		}
		if v.Ephemeral {
			if err := durable.RemoveAll(at); err != nil {
				return nil, fmt.Errorf("open volumes: %w", err)
			}
			continue
		}
		s.volumes[id] = v
	}
	if err := s.openBases(); err != nil {
		return nil, fmt.Errorf("open volumes: %w", err)
	}
	return s, nil
}

// Broken returns why volumes of the directory cannot be used.
func (s *Store) Broken() error { return errors.Join(slices.Collect(maps.Values(s.broken))...) }

// read reads the record of a volume.
func (s *Store) read(id hostapi.VolumeID) (Volume, error) {
	var v Volume
	if err := durable.ReadJSON(filepath.Join(s.dir(id), recordFile), &v); err != nil {
		return Volume{}, err
	}
	if v.Version != recordVersion || v.ID != id {
		return Volume{}, fmt.Errorf("its record is of volume %q in format %d, and this program has %d",
			string(v.ID), v.Version, recordVersion)
	}
	return v, s.repair(&v)
}

// repair finishes a Resize that was killed: the record is first.
func (s *Store) repair(v *Volume) error {
	info, err := os.Stat(s.path(v.ID))
	if err != nil {
		return err
	}
	switch want := int64(v.SizeMiB) * mib; {
	case info.Size() < want:
		return s.cfg.Grow(s.path(v.ID), want)
	case info.Size() > want:
		return fmt.Errorf("its disk has %d bytes, and its record says %d", info.Size(), want)
	}
	return nil
}

func (s *Store) dir(id hostapi.VolumeID) string { return filepath.Join(s.cfg.Dir, string(id)) }

func (s *Store) path(id hostapi.VolumeID) string { return filepath.Join(s.dir(id), diskFile) }

// Path returns the disk of a volume.
func (s *Store) Path(id hostapi.VolumeID) string { return s.path(id) }

// done ends a step.
func (s *Store) done(op, step string) error {
	if s.cfg.OnStep == nil {
		return nil
	}
	return s.cfg.OnStep(op, step)
}

// Get returns a volume.
func (s *Store) Get(id hostapi.VolumeID) (Volume, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.get(id)
}

func (s *Store) get(id hostapi.VolumeID) (Volume, error) {
	v, ok := s.volumes[id]
	if err := s.broken[id]; err != nil {
		return Volume{}, err
	}
	if !ok {
		return Volume{}, fmt.Errorf("volume %s: %w", id, hostapi.ErrNotFound)
	}
	v.Labels = maps.Clone(v.Labels)
	return v, nil
}

// List returns all volumes, oldest first.
func (s *Store) List() []Volume {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.DeleteFunc(slices.Collect(maps.Values(s.volumes)), func(v Volume) bool { return v.Ephemeral })
	slices.SortFunc(all, func(a, b Volume) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID)) })
	return all
}

// update changes the record of a volume: on disk first, then in memory.
func (s *Store) update(id hostapi.VolumeID, change func(*Volume) error) (Volume, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.get(id)
	if err != nil {
		return Volume{}, err
	}
	if err := change(&v); err != nil {
		return Volume{}, fmt.Errorf("volume %s: %w", id, err)
	}
	if err := durable.WriteJSON(filepath.Join(s.dir(id), recordFile), v); err != nil {
		return Volume{}, noSpace(fmt.Errorf("volume %s: %w", id, err))
	}
	s.volumes[id] = v
	return v, nil
}

// noSpace adds ErrNoSpace to an error that a full disk caused.
func noSpace(err error) error {
	if durable.IsNoSpace(err) {
		return fmt.Errorf("%w: %w", hostapi.ErrNoSpace, err)
	}
	return err
}

// Resize makes the disk of a volume larger. Its file system grows when a guest mounts it, or is asked to grow it.
func (s *Store) Resize(id hostapi.VolumeID, sizeMiB int) (Volume, error) {
	if sizeMiB > MaxMiB {
		return Volume{}, fmt.Errorf("volume %s: %d MiB is more than the %d that a volume can have: %w",
			id, sizeMiB, MaxMiB, hostapi.ErrInvalid)
	}
	v, err := s.update(id, func(v *Volume) error {
		if v.Frozen {
			return fmt.Errorf("it is frozen, and its size cannot change; resize a copy of it: %w", hostapi.ErrInvalid)
		}
		if sizeMiB < v.SizeMiB {
			return fmt.Errorf("it has %d MiB and cannot become smaller: %w", v.SizeMiB, hostapi.ErrInvalid)
		}
		v.SizeMiB = sizeMiB
		v.Source = ""
		return nil
	})
	if err == nil {
		err = s.done("resize", "record")
	}
	if err != nil {
		return Volume{}, err
	}
	if err := s.cfg.Grow(s.path(id), int64(sizeMiB)*mib); err != nil {
		return Volume{}, noSpace(fmt.Errorf("resize volume %s: %w", id, err))
	}
	return v, s.done("resize", "grow")
}

// Delete removes a volume. An unknown id is no error.
func (s *Store) Delete(id hostapi.VolumeID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.get(id)
	if errors.Is(err, hostapi.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if v.Machine != "" {
		return fmt.Errorf("volume %s: machine %s writes to it; detach it first: %w", id, v.Machine, hostapi.ErrInUse)
	}
	if err := durable.RemoveAll(s.dir(id)); err != nil {
		return fmt.Errorf("delete volume %s: %w", id, err)
	}
	delete(s.volumes, id)
	return errors.Join(s.dropBase(v.Base), s.done("delete", "remove"))
}

func validID(id hostapi.VolumeID) bool {
	return id != "" && len(id) <= 64 && strings.Trim(string(id), "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}
