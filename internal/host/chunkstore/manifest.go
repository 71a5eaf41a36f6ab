package chunkstore

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Version is the format of manifests and chunks written by this program; others are refused.
const Version = 1

// ID names a manifest within its workspace: 1 to 64 lower-case letters and digits.
type ID string

// Name is a chunk's: a keyed hash of its content. Who does not hold the workspace's key can neither
// compute it nor learn from it.
type Name [32]byte

func (n Name) String() string { return hex.EncodeToString(n[:]) }

// Manifest says what a set of files consists of. It is immutable.
type Manifest struct {
	ID      ID
	Tenant  Tenant
	Parent  ID // it was pushed as a difference to; "": none. Reading needs nothing of the parent
	Created time.Time
	Meta    json.RawMessage // of whoever owns the files; not understood here
	Chunks  []Chunk         // all that the files lie in
	Files   []File
}

// File answers the file of a name.
func (m *Manifest) File(name string) (File, bool) {
	i := slices.IndexFunc(m.Files, func(f File) bool { return f.Name == name })
	if i < 0 {
		return File{}, false
	}
	return m.Files[i], true
}

// Stored is how many bytes all chunks of the manifest take in the store, those of its parents included.
func (m *Manifest) Stored() int64 {
	n := int64(0)
	for _, c := range m.Chunks {
		n += c.Stored()
	}
	return n
}

// Tenant is whose a manifest is: the name of a workspace, or Common.
type Tenant string

// Common holds what every workspace may read, such as templates. A manifest of a workspace may use chunks
// of it; the reverse cannot be.
const Common Tenant = ""

// Chunk is one object. Its size before compression is Pages * PageSize.
type Chunk struct {
	Name   Name
	Common bool // it lies in Common, and not in the manifest's own space
	Pages  int
	Frames []int // stored bytes of each frame, in order
}

// Stored is the size of the object in bytes.
func (c Chunk) Stored() int64 {
	n := int64(0)
	for _, f := range c.Frames {
		n += int64(f)
	}
	return n
}

// File is one file. Pages of no extent are zero; the last page may reach beyond Bytes.
type File struct {
	Name    string // no path
	Bytes   int64
	Mode    uint32   // permission bits
	Extents []Extent // by Page, apart from each other
}

// Extent says where pages of a file lie.
type Extent struct {
	Page  int64 // first, of the file
	Count int   // of pages
	Chunk int   // index in Manifest.Chunks
	At    int   // first page in the chunk
}

// PushStats tell what a push had to do.
type PushStats struct {
	DirtyBytes int64 // of pages that are not zero and not as in the parent
	Chunks     int   // that hold them
	Reused     int   // of these, how many were in the store already
	Uploaded   int64 // bytes sent to the store, manifest included
}

// What this package answers, compared with errors.Is.
var (
	ErrNotFound    = errors.New("no such manifest in the object store")
	ErrExists      = errors.New("manifest exists already")
	ErrWrongTenant = errors.New("manifest belongs to another workspace, or was made with another master key")
	ErrVersion     = errors.New("manifest has a format that this program does not read")
	ErrTampered    = errors.New("manifest was changed after it was signed")
)

// DamagedError says which object is not what was pushed. Nothing of it was used.
type DamagedError struct {
	Object  string // key in the store, or path in the cache
	Problem string
}

func (e *DamagedError) Error() string { return fmt.Sprintf("%s is damaged: %s", e.Object, e.Problem) }
