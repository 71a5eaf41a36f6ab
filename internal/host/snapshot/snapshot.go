// Package snapshot keeps machines at rest: memory and device state of one moment (a vmm image), and the
// disks that belong to it: a root disk, and data disks beside it.
//
// It owns the directories below its root: one for every snapshot, and drafts that are not snapshots yet.
// A draft becomes a snapshot by one durable rename, so a snapshot is whole or it does not exist. What is
// in an image only a vmm driver knows; what a snapshot is for (a template, a user's snapshot, a machine
// that sleeps) only the caller knows.
//
// A snapshot that machines run on is held by them. Deleting it takes it from the list at once; its files
// go when the last holder lets go of it. Holds are not written down: whoever starts anew holds what it
// finds in use, and then calls Collect. Nothing is collected before that call. An anonymous snapshot is
// in no list and lives only as long as it is held.
//
// A partial snapshot has its description, its small files, and the others in their size but not with their
// content: its origin says, in words of whoever brings it, where the rest comes from. Complete makes it whole.
// What starts machines on it must serve its content from elsewhere until then.
//
// All methods of a Store may be called at once. A Draft belongs to one goroutine.
package snapshot

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/vmm"
)

// Ref names a snapshot on this host: an area, and one or more names below it, with slashes between
// ("snapshots/snp1", "templates/base/3fa9c1").
type Ref string

// Join makes a Ref of an area and names.
func Join(area string, names ...string) Ref {
	return Ref(path.Join(append([]string{area}, names...)...))
}

// Name is the last part of a reference.
func (r Ref) Name() string { return path.Base(string(r)) }

// check refuses whatever could leave the root or meet the store's own files.
func (r Ref) check() error {
	parts := strings.Split(string(r), "/")
	if len(parts) < 2 || parts[0] == draftsDir {
		return fmt.Errorf("snapshot %q: %w", string(r), ErrInvalid)
	}
	for _, p := range parts {
		if p == "" || p[0] == '.' || strings.Trim(p, "abcdefghijklmnopqrstuvwxyz0123456789._-") != "" {
			return fmt.Errorf("snapshot %q: %w", string(r), ErrInvalid)
		}
	}
	return nil
}

// Version is the format of snapshot.json; others are refused.
const Version = 1

// Snapshot describes a machine at rest. It is immutable.
type Snapshot struct {
	Version   int               `json:"version"`
	Ref       Ref               `json:"ref"`
	Anonymous bool              `json:"anonymous,omitempty"` // lives only while it is held, in no list
	Machine   string            `json:"machine,omitempty"`   // it was taken of
	Base      Ref               `json:"base,omitempty"`      // what that machine ran on: it differs little from this one, and may be gone
	Template  string            `json:"template,omitempty"`  // where the machine's lineage began
	Digest    string            `json:"digest,omitempty"`    // of what a template was made from
	VCPUs     int               `json:"vcpus"`
	MemoryMiB int               `json:"memory_mib"`
	DiskMiB   int               `json:"disk_mib"`
	Disk      bool              `json:"disk"`           // disk.img is part of it
	Data      []DataDisk        `json:"data,omitempty"` // the disks beside that, in the guest's order; each is a file too
	User      string            `json:"user,omitempty"` // default user of processes in the guest
	Workdir   string            `json:"workdir,omitempty"`
	Hostname  string            `json:"hostname,omitempty"`
	Env       map[string]string `json:"env,omitempty"` // of the machine it was taken of
	Bytes     int64             `json:"bytes"`         // of the host's disk that it took on its own when it was made
	Created   time.Time         `json:"created"`
	Labels    map[string]string `json:"labels,omitempty"`
	Manifest  vmm.Manifest      `json:"manifest"`

	dir      string
	consumed bool
	origin   []byte
}

// RemoteBacked says that not all content is on this host's disk yet, as far as was known when it was answered.
func (s Snapshot) RemoteBacked() bool { return s.origin != nil }

// Origin says where the rest of a partial snapshot comes from; nil: it is whole. It is not to be changed.
func (s Snapshot) Origin() []byte { return s.origin }

// WithLabels puts labels over those that a description has.
func (s Snapshot) WithLabels(labels map[string]string) Snapshot {
	all := map[string]string{}
	maps.Copy(all, s.Labels)
	maps.Copy(all, labels)
	s.Labels = all
	return s
}

// WithOrigin makes a description that of a partial snapshot, to be committed so. origin is not empty.
func (s Snapshot) WithOrigin(origin []byte) Snapshot {
	s.origin = origin
	return s
}

// Consumed says that Spend was called for an anonymous snapshot.
func (s Snapshot) Consumed() bool { return s.consumed }

// Dir is the directory of a stored snapshot.
func (s Snapshot) Dir() string { return s.dir }

// DiskPath is the raw image of the root disk of a snapshot that has one. It must not be written to.
func (s Snapshot) DiskPath() string { return path.Join(s.dir, diskFile) }

// File is one of the files that a snapshot consists of, its description aside.
type File struct{ Name, Path string }

// Files lists a stored snapshot's files: those of its image, and, as DiskFiles names them, its
// disks.
func (s Snapshot) Files() ([]File, error) {
	list, err := os.ReadDir(path.Join(s.dir, imageDir))
	if err != nil {
		return nil, err
	}
	var all []File
	for _, e := range list {
		if e.Type().IsRegular() { // what is in a directory is of use to this host alone
			all = append(all, File{e.Name(), path.Join(s.dir, imageDir, e.Name())})
		}
	}
	for _, p := range s.DiskPaths() {
		all = append(all, File{path.Base(p), p})
	}
	return all, nil
}

// DiskName is what a snapshot's root disk is called among its files. No file of an image has this name.
const DiskName = diskFile

// Image is the snapshot's memory and device state, for a driver.
func (s Snapshot) Image() vmm.Image {
	return vmm.Image{Dir: path.Join(s.dir, imageDir), Manifest: s.Manifest}
}

// What a Store answers, compared with errors.Is.
var (
	ErrNotFound = errors.New("no such snapshot")
	ErrExists   = errors.New("snapshot exists already")
	ErrInvalid  = errors.New("not a name of a snapshot")
	// ErrPartial: what is needed of the snapshot is still coming from the object store.
	ErrRemoteBacked = errors.New("snapshot is not all on this host yet; try again when it has arrived")
)

// DamagedError says which file of a snapshot is not what was stored. The snapshot cannot be used.
type DamagedError struct {
	Ref     Ref
	File    string
	Problem string
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf(
		"snapshot %s is damaged: %s: %s; delete it, or bake the template again",
		e.Ref,
		e.File,
		e.Problem,
	)
}
