package node

import (
	"cmp"
	"context"
	"fmt"

	"github.com/pandastack/pandastack/internal/host/agent"
	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/host/chunkstore/cache"
	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/keyring"
)

// objects opens the object store that hosts share, with its chunk store and cache. It returns nil if none is
// configured.
func (n *node) objects(ctx context.Context) (*agent.Objects, error) {
	c := n.Config.ObjectStore
	bucket := n.Store
	if bucket == nil && c.URL == "" {
		return nil, nil
	}
	if bucket == nil {
		opened, err := blob.Open(ctx, c.URL, blob.Options{Timeout: c.Timeout})
		if err != nil {
			return nil, fmt.Errorf("object_store.url: %w", err)
		}
		n.undo.Push("close object store", func(context.Context) error { return opened.Close() })
		bucket = opened
	}
	ring, err := keyring.Open(cmp.Or(c.Key, n.path("objects.key")))
	if err != nil {
		return nil, fmt.Errorf("object_store.key: %w", err)
	}
	store, err := chunkstore.New(bucket, ring, chunkstore.Config{Log: n.Log})
	if err != nil {
		return nil, err
	}
	n.undo.Push("close chunk store", func(context.Context) error { return store.Close() })
	chunks, err := cache.Open(cache.Config{Dir: n.path("chunks"), Bytes: int64(c.CacheMiB) << 20, Log: n.Log})
	if err != nil {
		return nil, fmt.Errorf("object store: %w", err)
	}
	n.undo.Push("close chunk cache", func(context.Context) error { return chunks.Close() })
	return &agent.Objects{Chunks: store, Cache: chunks}, nil
}
