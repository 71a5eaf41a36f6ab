package volume

import (
	"errors"
	"fmt"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// Attach makes a machine the writer of a volume, durably.
func (s *Store) Attach(id hostapi.VolumeID, machine hostapi.MachineID, fence uint64) (Volume, error) {
	return s.update(id, func(v *Volume) error {
		switch {
		case v.Frozen:
			return fmt.Errorf("it is frozen; attach it read-only: %w", hostapi.ErrInvalid)
		case v.Machine != "" && v.Machine != machine:
			return fmt.Errorf("machine %s writes to it: %w", v.Machine, hostapi.ErrInUse)
		case fence < v.Fence:
			return fmt.Errorf("fence %d is lower than %d of an earlier writer: %w", fence, v.Fence, hostapi.ErrInUse)
		case v.Check != nil && v.Check.Result == "damaged" && v.Dirty:
			return fmt.Errorf("its file system is damaged; attach it read-only: %w", hostapi.ErrInvalid)
		}
		if v.Machine == "" {
			v.Count++
		}
		v.Machine, v.Fence = machine, fence
		return nil
	})
}

// MarkDirty records, durably, that the guest of the writer may write from here on.
// It returns the volume as it was.
func (s *Store) MarkDirty(id hostapi.VolumeID, machine hostapi.MachineID) (before Volume, err error) {
	_, err = s.update(id, func(v *Volume) error {
		if v.Machine != machine {
			return fmt.Errorf("its writer is machine %q, and not %s: %w", string(v.Machine), machine, hostapi.ErrInUse)
		}
		before = *v
		v.Dirty, v.Source = true, ""
		return nil
	})
	return before, err
}

// Detach ends a machine's access to a volume, durably. clean says that the file system was unmounted. A volume that
// the machine does not write to, or that does not exist, is left as it is.
func (s *Store) Detach(id hostapi.VolumeID, machine hostapi.MachineID, clean bool) error {
	_, err := s.update(id, func(v *Volume) error {
		if v.Machine != machine {
			return errNotAttached
		}
		v.Machine, v.Written = "", time.Now().UTC()
		v.Dirty = v.Dirty && !clean
		return nil
	})
	if errors.Is(err, errNotAttached) || errors.Is(err, hostapi.ErrNotFound) {
		return nil
	}
	return err
}

var errNotAttached = errors.New("not attached to this machine")

// SetCheck records the result of checking the file system of a volume.
func (s *Store) SetCheck(id hostapi.VolumeID, check hostapi.VolumeCheck) error {
	_, err := s.update(id, func(v *Volume) error {
		v.Check = &check
		return nil
	})
	return err
}

// Sweep detaches the volumes of machines that do not have them. Call it once all machines are known.
func (s *Store) Sweep(has func(machine hostapi.MachineID, volume hostapi.VolumeID) bool) error {
	var all error
	for _, v := range s.List() {
		if v.Machine != "" && !has(v.Machine, v.ID) {
			all = errors.Join(all, s.Detach(v.ID, v.Machine, false))
		}
	}
	return all
}
