package node

import (
	"cmp"
	"context"
	"fmt"

	"github.com/pandastack/pandastack/internal/host/agent"
	"github.com/pandastack/pandastack/internal/host/blob"
	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/host/chunkstore/cache"
)

// objects opens the object store that hosts share; nil: none is configured.
func (n *node) objects(ctx context.Context) (*agent.Objects, error) {
	c := n.Config.ObjectStore
	store := n.Store
	if store == nil && c.URL == "" {
		return nil, nil
	}
	if store == nil {
		opened, err := blob.Open(ctx, c.URL, blob.Options{Timeout: c.Timeout})
		if err != nil {
			return nil, fmt.Errorf("object_store.url: %w", err)
		}
		n.back.Push("close object store", func(context.Context) error { return opened.Close() })
		store = opened
	}
	ring, err := chunkstore.OpenKeyring(cmp.Or(c.Key, n.path("objects.key")))
	if err != nil {
		return nil, fmt.Errorf("object_store.key: %w", err)
	}
	vault, err := chunkstore.New(store, ring, chunkstore.Config{Log: n.Log})
	if err != nil {
		return nil, err
	}
	n.back.Push("close vault", func(context.Context) error { return vault.Close() })
	kept, err := cache.Open(cache.Config{Dir: n.path("chunks"), Bytes: int64(c.CacheMiB) << 20, Log: n.Log})
	if err != nil {
		return nil, fmt.Errorf("object store: %w", err)
	}
	n.back.Push("close cache of chunks", func(context.Context) error { return kept.Close() })
	return &agent.Objects{Chunks: vault, Cache: kept}, nil
}
