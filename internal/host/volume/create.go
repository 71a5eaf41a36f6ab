package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/lib/durable"
)

// Request asks for a volume.
type Request struct {
	ID      hostapi.VolumeID
	SizeMiB int // 0: that of From
	// From is the file to copy, with an ext4 file system; "": the volume is empty.
	From string
	// Fill writes the disk to a file that does not exist, in place of From. It has FillMiB and an ext4 file system.
	Fill    func(ctx context.Context, path string) error
	FillMiB int
	// Link is a file with an ext4 file system that becomes the disk under a second name, in place of From. Machine
	// writes to it, and stays the volume's writer with Fence.
	Link    string
	Machine hostapi.MachineID
	Fence   uint64
	// Base is as Volume.Base. With Fill its File is empty, and what Fill wrote is its content.
	Base   *Base
	Source string // as Volume.Source
	// Dirty: the file system of From may be mounted.
	Dirty     bool
	Frozen    bool
	Ephemeral bool // as Volume.Ephemeral
	Group     string
	Labels    map[string]string
}

// Create makes a volume. When it fails nothing is left.
func (s *Store) Create(ctx context.Context, req Request) (_ Volume, err error) {
	v := Volume{
		Version: recordVersion, ID: req.ID, SizeMiB: req.SizeMiB, Frozen: req.Frozen, Dirty: req.Dirty,
		Source: req.Source, Ephemeral: req.Ephemeral, Group: req.Group, Labels: req.Labels, Created: time.Now().UTC(),
	}
	if req.Link != "" {
		v.Machine, v.Fence, v.Count, v.Dirty = req.Machine, req.Fence, 1, true
	}
	if err := v.complete(req); err != nil {
		return Volume{}, fmt.Errorf("create volume %s: %w", req.ID, err)
	}
	draft, err := s.reserve(v.ID)
	if err != nil {
		return Volume{}, err
	}
	defer func() {
		s.mu.Lock()
		delete(s.making, v.ID)
		s.mu.Unlock()
		if err != nil {
			if !errors.Is(err, ErrAbandon) {
				err = errors.Join(err, os.RemoveAll(draft))
			}
			err = fmt.Errorf("create volume %s: %w", v.ID, noSpace(err))
		}
	}()
	if err := os.Mkdir(draft, 0o711); err != nil {
		return Volume{}, err
	}
	if v.Base, err = s.makeDisk(ctx, v, req, filepath.Join(draft, diskFile)); err != nil {
		return Volume{}, err
	}
	defer func() {
		if err != nil && !errors.Is(err, ErrAbandon) {
			err = errors.Join(err, s.DropBase(v.Base))
		}
	}()
	if err := s.done("create", "disk"); err != nil {
		return Volume{}, err
	}
	if err := durable.WriteJSON(filepath.Join(draft, recordFile), v); err != nil {
		return Volume{}, err
	}
	if err := s.done("create", "record"); err != nil {
		return Volume{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := durable.Rename(draft, s.dir(v.ID)); err != nil {
		return Volume{}, err
	}
	s.volumes[v.ID] = v
	if err := s.done("create", "rename"); err != nil {
		if errors.Is(err, ErrAbandon) {
			return Volume{}, err
		}
		delete(s.volumes, v.ID)
		return Volume{}, errors.Join(err, durable.RemoveAll(s.dir(v.ID)))
	}
	return v, nil
}

// complete checks a volume that is to be made, and sets its size.
func (v *Volume) complete(req Request) error {
	if !validID(v.ID) {
		return fmt.Errorf("the id is not 1 to 64 lower-case letters and digits: %w", hostapi.ErrInvalid)
	}
	if from := cmp.Or(req.Link, req.From); from != "" || req.Fill != nil {
		have := req.FillMiB
		if req.Fill == nil {
			info, err := os.Stat(from)
			if err != nil {
				return err
			}
			have = int((info.Size() + mib - 1) / mib)
		}
		if v.SizeMiB == 0 {
			v.SizeMiB = have
		}
		if v.SizeMiB < have {
			return fmt.Errorf("a size of %d MiB was asked for, and the source has %d: %w", v.SizeMiB, have,
				hostapi.ErrInvalid)
		}
		if v.SizeMiB > have {
			v.Source = ""
		}
	} else if v.SizeMiB < MinMiB {
		return fmt.Errorf("a size of %d MiB was asked for, and the smallest volume has %d: %w", v.SizeMiB, MinMiB,
			hostapi.ErrInvalid)
	}
	if v.SizeMiB > MaxMiB {
		return fmt.Errorf("a size of %d MiB was asked for, and the largest volume has %d: %w", v.SizeMiB, MaxMiB,
			hostapi.ErrInvalid)
	}
	return nil
}

// reserve takes the id of a volume that is about to be made, and returns the directory of its draft.
func (s *Store) reserve(id hostapi.VolumeID) (draft string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, taken := s.volumes[id]; taken || s.making[id] || s.broken[id] != nil {
		return "", fmt.Errorf("volume %s: %w", id, hostapi.ErrExists)
	}
	s.making[id] = true
	s.drafts++
	return filepath.Join(s.cfg.Dir, fmt.Sprintf("%s%d", draftPrefix, s.drafts)), nil
}

// makeDisk makes the disk of a new volume, durably, and returns its base.
func (s *Store) makeDisk(ctx context.Context, v Volume, req Request, to string) (base *Base, err error) {
	if req.Link != "" {
		if err := os.Link(req.Link, to); err != nil {
			return nil, fmt.Errorf("link the disk: %w", err)
		}
		return req.Base, durable.Sync(to)
	}
	if req.From == "" && req.Fill == nil {
		return nil, s.makeEmpty(ctx, v.SizeMiB, to)
	}
	if req.Fill != nil {
		if err := req.Fill(ctx, to); err != nil {
			return nil, fmt.Errorf("fill the disk: %w", err)
		}
		if base, err = s.cloneBase(to, req.Base); err != nil {
			return nil, err
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, s.DropBase(base))
			}
		}()
	} else {
		base = req.Base
		if err := s.cfg.Clone(req.From, to); err != nil {
			return nil, fmt.Errorf("copy the disk: %w", err)
		}
	}
	if err := os.Chmod(to, 0o600); err != nil {
		return nil, err
	}
	if err := s.cfg.Grow(to, int64(v.SizeMiB)*mib); err != nil {
		return nil, err
	}
	return base, durable.Sync(to)
}

// makeEmpty makes a disk with an empty file system, durably.
func (s *Store) makeEmpty(ctx context.Context, sizeMiB int, to string) error {
	out, err := os.OpenFile(to, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := s.cfg.Format(ctx, out, sizeMiB); err != nil {
		return errors.Join(fmt.Errorf("make the file system: %w", err), out.Close())
	}
	return errors.Join(out.Sync(), out.Close())
}

// Copy makes a private copy of a volume as of this moment.
// The caller moves the file at path; remove removes it if it is still there. of is the volume.
func (s *Store) Copy(id hostapi.VolumeID) (path string, of Volume, remove func() error, err error) {
	of, err = s.Get(id)
	if err != nil {
		return "", Volume{}, nil, err
	}
	s.mu.Lock()
	s.drafts++
	path = filepath.Join(s.cfg.Dir, fmt.Sprintf("%scopy-%d", draftPrefix, s.drafts))
	s.mu.Unlock()
	remove = func() error {
		if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	if err := s.cfg.Clone(s.path(id), path); err != nil {
		return "", Volume{}, nil, noSpace(fmt.Errorf("copy volume %s: %w", id, errors.Join(err, remove())))
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return "", Volume{}, nil, errors.Join(err, remove())
	}
	return path, of, remove, nil
}
