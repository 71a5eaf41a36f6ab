package vmm

import (
	"context"
	"io"
	"os"
)

// CheckpointExporter is a Driver with CheckpointStatus that can transfer checkpoints to other hosts.
// An image is complete without its checkpoint.
type CheckpointExporter interface {
	// ExportCheckpoint returns the checkpoint of an image, for a host that gets the files of the image too. It
	// returns nil if the image has none.
	ExportCheckpoint(ctx context.Context, image Image) (*Checkpoint, error)
	// ImportCheckpoint adds to an image that came from another host the checkpoint that was exported with it. It does
	// nothing if the image has one. A *MismatchError says that the checkpoint is of no use on this host; only its
	// description was read then. After an error the image is as before.
	ImportCheckpoint(ctx context.Context, image Image, from CheckpointSource) error
}

// MaxCheckpointDescription bounds the description of a Checkpoint, in bytes.
const MaxCheckpointDescription = 4 << 20

// Checkpoint is a checkpoint of a monitor, for another host.
// Its content was made by a monitor that ran a guest, and is not trusted.
type Checkpoint struct {
	Description []byte   // for ImportCheckpoint
	Content     *os.File // all of it, at whatever offset; the receiver closes it
}

// CheckpointSource is a Checkpoint that is being imported.
type CheckpointSource struct {
	Description []byte
	// LocalBase is the directory of an image on this host that the exported one is derived from; "": none is known.
	LocalBase string
	// Fetch writes the content of the checkpoint to an empty file, in pieces that come in any order and several at
	// once, and returns its size; pages of zeros are not written. With origin it is the content of the checkpoint of
	// the first image in the ancestry of this one, which must exist then.
	Fetch func(ctx context.Context, origin bool, to io.WriterAt) (bytes int64, err error)
}
