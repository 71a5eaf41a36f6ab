package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/blob/sealed"
	"github.com/pandastack/pandastack/internal/lib/keyring"
)

// functionCode opens where the code of the functions in the store with an id is.
//
// It is in the object store, encrypted, so that every node over the store has the code, or without an object store in
// the data directory. Code that is in the directory is moved to the object store.
func (n *node) functionCode(ctx context.Context, id string) (blob.Store, error) {
	here, err := blob.Open(ctx, "file://"+n.path("functions", "code"), blob.Options{})
	if err != nil {
		return nil, err
	}
	n.undo.Push("close code of functions", func(context.Context) error { return here.Close() })
	c, bucket := n.Config.ObjectStore, n.Store
	if bucket == nil && c.URL == "" {
		return here, nil
	}
	if bucket == nil {
		if bucket, err = blob.Open(ctx, c.URL, blob.Options{Timeout: c.Timeout}); err != nil {
			return nil, fmt.Errorf("object_store.url: %w", err)
		}
		n.undo.Push("close object store of functions", func(context.Context) error { return bucket.Close() })
	}
	ring, err := keyring.Open(cmp.Or(c.Key, n.path("objects.key")))
	if err != nil {
		return nil, fmt.Errorf("object_store.key: %w", err)
	}
	shared, err := sealed.New(bucket, ring.Key("code of functions"), "functions/"+id+"/")
	if err != nil {
		return nil, err
	}
	return shared, moveObjects(ctx, here, shared)
}

// moveObjects moves all objects of a store to another, which may have some of them. It may be called again.
func moveObjects(ctx context.Context, from, to blob.Store) error {
	var all []blob.Info
	err := from.List(ctx, "", func(i blob.Info) error {
		all = append(all, i)
		return nil
	})
	if err != nil {
		return err
	}
	for _, i := range all {
		if err := moveObject(ctx, from, to, i); err != nil {
			return err
		}
	}
	return nil
}

func moveObject(ctx context.Context, from, to blob.Store, i blob.Info) error {
	r, err := from.Get(ctx, i.Key, 0, -1)
	if err != nil {
		return err
	}
	err = to.PutIfAbsent(ctx, i.Key, r, i.Bytes)
	if errors.Is(err, blob.ErrExists) {
		err = nil
	}
	if err = errors.Join(err, r.Close()); err != nil {
		return err
	}
	return from.Delete(ctx, i.Key)
}
