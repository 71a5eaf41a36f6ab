package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/vmm"
)

// parcelFile is the content of what goes along with a snapshot for hosts that are like the one it was taken on, among the
// snapshot's files. No file of an image is called so.
const parcelFile = "parcel"

func notParcel(name string) bool { return name != parcelFile }

// pack makes what goes along with a snapshot, which it does without where there is any trouble: nil. Done is called after
// its use.
func (d *Depot) pack(ctx context.Context, snap snapshot.Snapshot) (_ *vmm.Parcel, done func()) {
	done = func() {}
	if d.Carrier == nil {
		return nil, done
	}
	p, err := d.Carrier.Pack(ctx, snap.Image())
	if err != nil {
		d.Log.Warn("snapshot is pushed without what its monitor has learnt", "snapshot", snap.Ref, "err", err)
		return nil, done
	}
	if p == nil {
		return nil, done
	}
	return p, func() { _ = p.Content.Close() } // it was only read
}

// pathOf is where this process finds a file that it has open, whatever became of its name (proc_pid_fd(5)).
func pathOf(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// Unpack gives an image of this host, which came from a snapshot in the object store, what went along with that for
// hosts like this one. Nobody relies on it, so trouble is logged: machines of the image are ready later then.
func (d *Depot) Unpack(ctx context.Context, from Stored, image vmm.Image) {
	if d.Carrier == nil {
		return
	}
	began := time.Now()
	there, err := d.unpack(ctx, from, image)
	id := from.Reader.Manifest().ID
	switch _, other := errors.AsType[*vmm.MismatchError](err); {
	case other:
		d.Log.Info(
			"machines of a snapshot begin by their device state: it is of another kind of host",
			"snapshot",
			id,
			"why",
			err,
		)
	case err != nil:
		d.Log.Warn("machines of a snapshot begin by their device state, which takes longer", "snapshot", id, "why", err)
	case there:
		d.Log.Info("a snapshot came with what its monitor has learnt", "snapshot", id, "took", time.Since(began))
	}
}

func (d *Depot) unpack(ctx context.Context, from Stored, image vmm.Image) (there bool, err error) {
	if len(from.Parcel) == 0 {
		return false, nil
	}
	r := d.Vault.Reader(from.Reader.Manifest(), d.Cache) // the other may be closed meanwhile
	near, release := d.nearImage(ctx, from)
	defer release()
	return true, d.Carrier.Unpack(
		ctx,
		image,
		vmm.Delivery{
			About: from.Parcel,
			Near:  near,
			Bring: func(ctx context.Context, origin bool, to io.WriterAt) (int64, error) {
				of := r
				if origin {
					var err error
					if of, err = d.origin(ctx, from); err != nil {
						return 0, err
					}
				}
				return bring(ctx, of, to)
			},
		},
	)
}

// nearImage is the directory of the image of this host that has most of a stored snapshot; "": there is none.
func (d *Depot) nearImage(ctx context.Context, from Stored) (dir string, release func()) {
	_, ref, release := d.here(ctx, from)
	if ref == "" {
		return "", release
	}
	snap, err := d.Store.Get(ref)
	if err != nil {
		return "", release
	}
	return snap.Image().Dir, release
}

// origin reads what a snapshot's line begins with in the store: of its own space, or one that all workspaces read.
func (d *Depot) origin(ctx context.Context, of Stored) (*chunkstore.Reader, error) {
	if of.Root == "" {
		return nil, errors.New("its line begins with itself")
	}
	m, err := d.manifest(ctx, of.Reader.Manifest().Space, of.Root)
	if errors.Is(err, chunkstore.ErrNotFound) {
		m, err = d.manifest(ctx, chunkstore.Common, of.Root)
	}
	if err != nil {
		return nil, err
	}
	return d.Vault.Reader(m, d.Cache), nil
}

// bring writes the content of a parcel, and answers of how many bytes it is.
func bring(ctx context.Context, r *chunkstore.Reader, to io.WriterAt) (int64, error) {
	size, ok := r.Size(parcelFile)
	if !ok {
		return 0, fmt.Errorf("nothing went along with %s", r.Manifest().ID)
	}
	return size, r.Each(ctx, parcelFile, nil, func(off int64, data []byte) (kept bool, err error) {
		_, err = to.WriteAt(data, off)
		return false, err
	})
}
