package chunkstore

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Version is the format of manifests and chunks. Other versions are rejected.
const Version = 1

// ID is the name of a tenant's manifest: 1 to 64 lower-case letters and digits.
type ID string

// Name is the name of a chunk: a keyed hash of its content. Without the tenant's key the name can neither be
// computed nor reveals anything.
type Name [32]byte

// String implements fmt.Stringer.
func (n Name) String() string { return hex.EncodeToString(n[:]) }

// Manifest describes a set of files and their chunks. It is immutable.
type Manifest struct {
	ID      ID
	Tenant  Tenant
	Parent  ID // the manifest it was pushed as a difference to, or ""; readers do not need the parent
	Created time.Time
	Meta    json.RawMessage // the owner's description of the files; opaque here
	Chunks  []Chunk         // all chunks of the files
	Files   []File
}

// File returns the file with that name.
func (m *Manifest) File(name string) (File, bool) {
	i := slices.IndexFunc(m.Files, func(f File) bool { return f.Name == name })
	if i < 0 {
		return File{}, false
	}
	return m.Files[i], true
}

// Stored returns the size of all chunks of the manifest in the store, in bytes. Chunks that it shares with
// its parents are included.
func (m *Manifest) Stored() int64 {
	n := int64(0)
	for _, c := range m.Chunks {
		n += c.Stored()
	}
	return n
}

// Tenant is the owner of a manifest: the name of a workspace, "<workspace>/volumes" for its backups, or Common.
type Tenant string

// Common owns content that every workspace may read, such as templates. A manifest of a workspace may use
// chunks of Common, and not the other way round.
const Common Tenant = ""

// Chunk is one object. Its size before compression is Pages * PageSize.
type Chunk struct {
	Name   Name
	Common bool // it belongs to Common, not to the manifest's own tenant
	Pages  int
	Frames []int // stored bytes of each frame, in order
}

// Stored returns the size of the object in bytes.
func (c Chunk) Stored() int64 {
	n := int64(0)
	for _, f := range c.Frames {
		n += int64(f)
	}
	return n
}

// File is one file. Pages outside all extents are zero; the last page may reach beyond Bytes.
type File struct {
	Name    string // without a directory
	Bytes   int64
	Mode    uint32   // permission bits
	Extents []Extent // ordered by Page, without overlap
}

// Extent maps a run of a file's pages to a chunk.
type Extent struct {
	Page  int64 // first page, in the file
	Count int   // number of pages
	Chunk int   // index in Manifest.Chunks
	At    int   // first page in the chunk
}

// PushStats describes a push.
type PushStats struct {
	DirtyBytes int64 // in pages that are neither zero nor as in the parent
	Chunks     int   // chunks for those pages
	Reused     int   // chunks that were in the store already
	Uploaded   int64 // bytes sent to the store, including the manifest
}

// Errors of this package, to be compared with errors.Is.
var (
	ErrNotFound    = errors.New("no such manifest in the object store")
	ErrExists      = errors.New("manifest already exists")
	ErrWrongTenant = errors.New("manifest belongs to another workspace, or was made with another master key")
	ErrVersion     = errors.New("manifest has a format that this program cannot read")
	ErrTampered    = errors.New("manifest was changed after it was signed")
)

// DamagedError names an object that is not what was pushed. None of its content was used.
type DamagedError struct {
	Object  string // key in the store, or path in the cache
	Problem string
}

// Error implements error.
func (e *DamagedError) Error() string { return fmt.Sprintf("%s is damaged: %s", e.Object, e.Problem) }
