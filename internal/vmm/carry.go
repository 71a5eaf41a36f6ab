package vmm

import (
	"context"
	"io"
	"os"
)

// Carrier is a Driver of Rehearsers that can take to other hosts what Remembers tells of. Images are whole without it.
type Carrier interface {
	// Pack answers what another host needs, besides the files of an image, so that machines of the image begin there with
	// what was learnt here. nil: nothing was.
	Pack(ctx context.Context, image Image) (*Parcel, error)
	// Unpack gives an image that came from another host what was packed with it, and does nothing where it has that. A
	// *MismatchError says that it is of no use on this host; nothing but its description was asked for then. After an
	// error the image is as it was.
	Unpack(ctx context.Context, image Image, from Delivery) error
}

// MaxParcelAbout bounds the description in a Parcel, in bytes.
const MaxParcelAbout = 4 << 20

// Parcel is what goes with an image to another host. What is in it was made by a monitor that ran, and is read as
// coming from one.
type Parcel struct {
	About   []byte   // what it is, for Unpack
	Content *os.File // all of it, wherever its offset stands; it is closed by whom it was given to
}

// Delivery is a Parcel on its way in.
type Delivery struct {
	About []byte
	// Near is the directory of an image of this host that the packed one grew from; "": none is known.
	Near string
	// Bring writes the content of the parcel to where there is none yet, in pieces that come in any order and several at
	// once, and answers of how many bytes it is; pages of zeros are not written. With origin it is the content of the
	// parcel that goes with the image with which the line of this one began, which must exist then.
	Bring func(ctx context.Context, origin bool, to io.WriterAt) (bytes int64, err error)
}
