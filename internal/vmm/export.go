package vmm

import (
	"context"
	"io"
	"os"
)

// CheckpointExporter is a Driver of Rehearsers that can take to other hosts what Remembers tells of. Images are whole without it.
type CheckpointExporter interface {
	// ExportCheckpoint answers what another host needs, besides the files of an image, so that machines of the image begin there with
	// what was learnt here. nil: nothing was.
	ExportCheckpoint(ctx context.Context, image Image) (*Checkpoint, error)
	// ImportCheckpoint gives an image that came from another host what was packed with it, and does nothing where it has that. A
	// *MismatchError says that it is of no use on this host; nothing but its description was asked for then. After an
	// error the image is as it was.
	ImportCheckpoint(ctx context.Context, image Image, from CheckpointSource) error
}

// MaxCheckpointDescription bounds the description in a Parcel, in bytes.
const MaxCheckpointDescription = 4 << 20

// Checkpoint is what goes with an image to another host. What is in it was made by a monitor that ran, and is read as
// coming from one.
type Checkpoint struct {
	Description []byte   // what it is, for Unpack
	Content     *os.File // all of it, wherever its offset stands; it is closed by whom it was given to
}

// CheckpointSource is a Parcel on its way in.
type CheckpointSource struct {
	Description []byte
	// LocalBase is the directory of an image of this host that the packed one grew from; "": none is known.
	LocalBase string
	// Fetch writes the content of the parcel to where there is none yet, in pieces that come in any order and several at
	// once, and answers of how many bytes it is; pages of zeros are not written. With origin it is the content of the
	// parcel that goes with the image with which the line of this one began, which must exist then.
	Fetch func(ctx context.Context, origin bool, to io.WriterAt) (bytes int64, err error)
}
