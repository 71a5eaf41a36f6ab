package backup

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/host/volume"
)

// version is the format of descriptions; a backup with another cannot be restored.
const version = 1

// diskFile is the name of the only file of a backup.
const diskFile = "volume.img"

// description is the part of a manifest that describes the volume.
type description struct {
	Version int               `json:"version"`
	Volume  hostapi.VolumeID  `json:"volume"`
	SizeMiB int               `json:"size_mib"`
	Moment  time.Time         `json:"moment"`
	Dirty   bool              `json:"dirty,omitempty"` // as volume.Volume.Dirty
	Labels  map[string]string `json:"labels,omitempty"`
}

func (d description) encode() (json.RawMessage, error) { return json.Marshal(d) }

// describe reads the description of a manifest and checks everything that a restore relies on. Its errors wrap
// chunkstore.ErrVersion.
func describe(m *chunkstore.Manifest) (description, error) {
	d, err := decode(m.Meta)
	if err == nil && (len(m.Files) != 1 || m.Files[0].Name != diskFile || m.Files[0].Bytes != int64(d.SizeMiB)<<20) {
		err = fmt.Errorf("its files are not one disk of %d MiB", d.SizeMiB)
	}
	if err != nil {
		return description{}, fmt.Errorf("manifest %s describes no backup: %w", m.ID,
			errors.Join(chunkstore.ErrVersion, err))
	}
	return d, nil
}

func decode(meta []byte) (description, error) {
	var d description
	if err := json.Unmarshal(meta, &d); err != nil {
		return description{}, err
	}
	switch {
	case d.Version != version:
		return description{}, fmt.Errorf("format %d, want %d", d.Version, version)
	case d.SizeMiB < 1 || d.SizeMiB > volume.MaxMiB:
		return description{}, fmt.Errorf("a size of %d MiB, want 1 to %d", d.SizeMiB, volume.MaxMiB)
	}
	return d, nil
}

func sortBackups(all []hostapi.Backup) {
	slices.SortFunc(all, func(a, b hostapi.Backup) int {
		return cmp.Or(a.Moment.Compare(b.Moment), cmp.Compare(a.ID, b.ID))
	})
}
