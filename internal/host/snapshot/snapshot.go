// Package snapshot stores snapshots of machines: the memory and device state of a moment (a vmm image) and
// the disks that belong to it, a root disk and data disks.
//
// It owns the directories below its root: one for every snapshot, and drafts, which are not snapshots yet. A
// draft becomes a snapshot by one durable rename, so a snapshot is complete or does not exist. Only a vmm
// driver knows the content of an image; only the caller knows what a snapshot is for (a template, a user's
// snapshot, a hibernated machine).
//
// Snapshots are reference counted. A machine that runs on a snapshot acquires it. Delete removes a snapshot
// from the list at once; its files are removed with the last reference. References are not stored: after a
// restart the caller acquires the snapshots in use and then calls GC. No files are removed before that call.
// An anonymous snapshot is in no list and exists only while it is referenced. It can be marked consumed: its state is
// not restored again, its disks can be removed, and its memory serves the holders of references.
//
// A remote-backed snapshot has its description, its small files, and the others with their size but without
// their content. Its origin, which only its creator understands, says where the content comes from. MarkLocal
// makes it local. Until then a machine on the snapshot must get the content from elsewhere.
//
// All methods of a Store may be called concurrently. A Draft belongs to one goroutine.
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

// Ref is the name of a snapshot on this host. It consists of an area and one or more names below it,
// separated by slashes ("snapshots/snp1", "templates/base/3fa9c1").
type Ref string

// Join makes a Ref of an area and names.
func Join(area string, names ...string) Ref {
	return Ref(path.Join(append([]string{area}, names...)...))
}

// Name returns the last part of a reference.
func (r Ref) Name() string { return path.Base(string(r)) }

// check rejects references that would leave the root or collide with the store's own files.
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

// Version is the format of snapshot.json. Other versions are rejected.
const Version = 1

// Snapshot describes a snapshot of a machine. It is immutable.
type Snapshot struct {
	Version   int    `json:"version"`
	Ref       Ref    `json:"ref"`
	Anonymous bool   `json:"anonymous,omitempty"` // exists only while it is referenced, in no list
	Machine   string `json:"machine,omitempty"`   // the machine that was captured
	// the snapshot that the machine ran on, which differs little from this one and may be deleted
	Base      Ref               `json:"base,omitempty"`
	Template  string            `json:"template,omitempty"` // the template that the machine derives from
	Digest    string            `json:"digest,omitempty"`   // of the sources of a template
	VCPUs     int               `json:"vcpus"`
	MemoryMiB int               `json:"memory_mib"`
	DiskMiB   int               `json:"disk_mib"`
	Disk      bool              `json:"disk"`           // the snapshot has disk.img
	Data      []DataDisk        `json:"data,omitempty"` // the other disks, in the guest's order; each has a file too
	User      string            `json:"user,omitempty"` // default user of processes in the guest
	Workdir   string            `json:"workdir,omitempty"`
	Hostname  string            `json:"hostname,omitempty"`
	Env       map[string]string `json:"env,omitempty"` // of the captured machine
	Bytes     int64             `json:"bytes"`         // of the host's disk that were its own when it was made
	Created   time.Time         `json:"created"`
	Labels    map[string]string `json:"labels,omitempty"`
	Manifest  vmm.Manifest      `json:"manifest"`

	dir      string
	consumed bool
	origin   []byte
}

// RemoteBacked reports whether content was missing on this host when the store returned s.
func (s Snapshot) RemoteBacked() bool { return s.origin != nil }

// Origin returns where the missing content comes from, or nil for a local snapshot. It must not be modified.
func (s Snapshot) Origin() []byte { return s.origin }

// WithLabels returns s with labels added. They replace labels of the same name.
func (s Snapshot) WithLabels(labels map[string]string) Snapshot {
	all := map[string]string{}
	maps.Copy(all, s.Labels)
	maps.Copy(all, labels)
	s.Labels = all
	return s
}

// WithOrigin returns s as a remote-backed snapshot, to be committed. origin must not be empty.
func (s Snapshot) WithOrigin(origin []byte) Snapshot {
	s.origin = origin
	return s
}

// Consumed reports whether MarkConsumed was called for this anonymous snapshot.
func (s Snapshot) Consumed() bool { return s.consumed }

// Dir returns the directory of a stored snapshot.
func (s Snapshot) Dir() string { return s.dir }

// DiskPath returns the raw image of the root disk, if the snapshot has one. It must not be written.
func (s Snapshot) DiskPath() string { return path.Join(s.dir, diskFile) }

// File is one of the files of a snapshot, which its description is not.
type File struct{ Name, Path string }

// Files lists a stored snapshot's files: those of its image, then its disks as named by DiskFiles.
func (s Snapshot) Files() ([]File, error) {
	list, err := os.ReadDir(path.Join(s.dir, imageDir))
	if err != nil {
		return nil, err
	}
	var all []File
	for _, e := range list {
		if e.Type().IsRegular() { // directories are of use to this host only
			all = append(all, File{e.Name(), path.Join(s.dir, imageDir, e.Name())})
		}
	}
	for _, p := range s.DiskPaths() {
		all = append(all, File{path.Base(p), p})
	}
	return all, nil
}

// DiskName is the name of the root disk among a snapshot's files. No file of an image has this name.
const DiskName = diskFile

// Image returns the snapshot's memory and device state, for a driver.
func (s Snapshot) Image() vmm.Image {
	return vmm.Image{Dir: path.Join(s.dir, imageDir), Manifest: s.Manifest}
}

// Errors of a Store, to be compared with errors.Is.
var (
	ErrNotFound = errors.New("no such snapshot")
	ErrExists   = errors.New("snapshot exists already")
	ErrInvalid  = errors.New("invalid snapshot")
	// ErrRemoteBacked reports that needed content of the snapshot is not yet downloaded.
	ErrRemoteBacked = errors.New("snapshot is not completely downloaded to this host yet; try again later")
)

// DamagedError names a file of a snapshot that is not what was stored. The snapshot cannot be used.
type DamagedError struct {
	Ref     Ref
	File    string
	Problem string
}

// Error implements error.
func (e *DamagedError) Error() string {
	return fmt.Sprintf(
		"snapshot %s is damaged: %s: %s; delete it, or bake the template again",
		e.Ref,
		e.File,
		e.Problem,
	)
}
