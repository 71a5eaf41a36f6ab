package hostapi

import (
	"context"
	"io"
	"time"
)

// ImageID names an imported root file system image. The caller chooses it: 1 to 64 lower-case letters and digits.
type ImageID string

// Import asks for an image made from a tar stream of a root file system.
type Import struct {
	ID      ImageID
	SizeMiB int // of the file system that the guest sees; content that does not fit is ErrInvalid
}

// Image is a root file system in one file. It exists as long as the host agent's process: to keep it, make a
// machine or a template of it.
type Image struct {
	ID      ImageID
	SizeMiB int   // of the file system that the guest sees
	Bytes   int64 // that the file uses
	Files   int
	Created time.Time
}

// Publish asks for a template made from a snapshot, an image or a template, one of which is set.
//
// Without KeepMemory the source's memory is not used: a copy of its disk is booted, Start runs, Ready succeeds, Warm
// runs, and then the machine is captured, with Start running in it.
type Publish struct {
	Name     TemplateName // not in use
	Snapshot SnapshotID
	Image    ImageID
	Template TemplateName // a published one
	// KeepMemory takes a Snapshot unchanged, with its size, user and environment; DiskMiB and below stay zero.
	KeepMemory bool
	VCPUs      int
	MemoryMiB  int
	DiskMiB    int // 0: as the source; never less
	User       string
	Workdir    string
	Env        map[string]string
	Start      string        // shell command that keeps running; "": none
	Ready      string        // shell command that succeeds once Start is ready; "": Start must not have failed
	ReadyLimit time.Duration // for Ready; 0: three minutes
	Warm       []string      // shell commands, run as User
	Labels     map[string]string
}

// Builder is the part of a Host that builds templates.
type Builder interface {
	// ImportImage makes an image and reads tar to its end. ErrInvalid: the stream is not a root file system
	// or is too large; ErrNoSpace: the host's disk is full. After an error nothing is left.
	ImportImage(ctx context.Context, req Import, tar io.Reader) (Image, error)
	Images(ctx context.Context) ([]Image, error)
	// DeleteImage removes an image; machines and templates made from it stay.
	DeleteImage(ctx context.Context, id ImageID) error
	// Publish makes a template. The stream reports the progress and ends with the template, which can be used then;
	// closing it before cancels the work. After an error, or if ctx ends, nothing is left. A *PublishError says
	// which step failed.
	Publish(ctx context.Context, req Publish) (Stream[PublishProgress], error)
	// DeleteTemplate removes a published template from the list at once, and its files when no machine uses
	// them any more. ErrUnsupported: the template was not published.
	DeleteTemplate(ctx context.Context, name TemplateName) error
}

// PublishProgress is a line of output of a step, or at last the Template. Steps are "boot", "start", "ready",
// "warm" and "capture".
type PublishProgress struct {
	Step     string
	Line     string
	Template *Template
}

// PublishError says in which step publishing a template failed.
type PublishError struct {
	Step string
	Err  error
}

// Error implements error.
func (e *PublishError) Error() string { return e.Step + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *PublishError) Unwrap() error { return e.Err }
