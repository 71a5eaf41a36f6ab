package nodebackup

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
)

// Bounds of an index.
const (
	indexFile  = "index.json" // its name among the files of a backup
	maxIndex   = 1 << 30      // bytes
	maxPath    = 4096         // bytes of a path
	maxEntries = 5_000_000
)

// Kinds of entries.
const (
	kindFile = "file"
	kindDir  = "dir"
	kindLink = "link"
)

// entry is a file, a directory or a symbolic link of a data directory.
type entry struct {
	Path     string    `json:"path"` // relative to the data directory
	Kind     string    `json:"kind"`
	Mode     uint32    `json:"mode,omitempty"` // permission bits
	UID      int       `json:"uid,omitempty"`
	GID      int       `json:"gid,omitempty"`
	Modified time.Time `json:"modified,omitzero"`
	Target   string    `json:"target,omitempty"` // of a link
	Bytes    int64     `json:"bytes,omitempty"`
	Part     int       `json:"part,omitempty"` // with Name: where the content of a file is
	Name     string    `json:"name,omitempty"`

	staged string // path of the copy that is pushed
	blocks int64  // bytes without holes
}

// index is the content of indexFile.
type index struct {
	Entries []entry `json:"entries"`
}

// decodeIndex reads an index and checks everything that a restore relies on: every path stays below the data directory,
// follows its parent, which is a directory, and appears once; every file is in a part.
func decodeIndex(data []byte, parts []*chunkstore.Manifest) ([]entry, error) {
	var in index
	if err := json.Unmarshal(data, &in); err != nil {
		return nil, fmt.Errorf("index: %w", errors.Join(chunkstore.ErrVersion, err))
	}
	sizes := make([]map[string]int64, len(parts))
	for i, m := range parts {
		sizes[i] = map[string]int64{}
		for _, f := range m.Files {
			sizes[i][f.Name] = f.Bytes
		}
	}
	dirs, known := map[string]bool{".": true}, map[string]bool{}
	bad := func(e entry, why string) error {
		return fmt.Errorf("index: %q %s: %w", e.Path, why, chunkstore.ErrVersion)
	}
	for _, e := range in.Entries {
		switch {
		case len(known) >= maxEntries || len(e.Path) > maxPath || !fs.ValidPath(e.Path) || e.Path == "." ||
			strings.ContainsRune(e.Path, 0) || strings.HasPrefix(e.Path, workDir) || e.Path == markerFile:
			return nil, bad(e, "is no path of a data directory")
		case known[e.Path]:
			return nil, bad(e, "appears twice")
		case !dirs[path.Dir(e.Path)]:
			return nil, bad(e, "is below no directory")
		case e.Mode > 0o7777 || e.UID < 0 || e.GID < 0:
			return nil, bad(e, "has no valid mode or owner")
		}
		known[e.Path] = true
		switch e.Kind {
		case kindDir:
			dirs[e.Path] = true
		case kindLink:
			if e.Target == "" || len(e.Target) > maxPath || strings.ContainsRune(e.Target, 0) {
				return nil, bad(e, "has no valid target")
			}
		case kindFile:
			if e.Part < 0 || e.Part >= len(parts) {
				return nil, bad(e, "has no content")
			}
			if size, ok := sizes[e.Part][e.Name]; !ok || size != e.Bytes {
				return nil, bad(e, "has other content than its manifest says")
			}
			delete(sizes[e.Part], e.Name) // one entry for each file
		default:
			return nil, bad(e, "is of an unknown kind")
		}
	}
	return in.Entries, nil
}
