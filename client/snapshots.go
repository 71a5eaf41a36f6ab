package client

import (
	"context"
	"net/url"

	"github.com/pandastack/pandastack/api"
)

// Snapshots are the calls on snapshots.
type Snapshots struct{ c *Client }

// List returns snapshots, newest first, or those of the sandbox in f.
func (s *Snapshots) List(ctx context.Context, f api.SnapshotFilter) ([]api.Snapshot, error) {
	q := url.Values{}
	setNonEmpty(q, "sandbox_id", string(f.SandboxID))
	setNonEmpty(q, "cursor", f.Cursor)
	if f.Limit > 0 {
		q.Set("limit", itoa(f.Limit))
	}
	rq := get(apiPath("snapshots"))
	rq.query = q
	var out []api.Snapshot
	err := s.c.do(ctx, rq, &out)
	return out, err
}

// Get returns one snapshot.
func (s *Snapshots) Get(ctx context.Context, id api.SnapshotID) (api.Snapshot, error) {
	var out api.Snapshot
	err := s.c.do(ctx, get(apiPath("snapshots", string(id))), &out)
	return out, err
}

// Delete deletes a snapshot. It returns a conflict while the snapshot is in use.
func (s *Snapshots) Delete(ctx context.Context, id api.SnapshotID) error {
	rq := del(apiPath("snapshots", string(id)))
	rq.idempotent = false // a second response would be not_found
	return s.c.do(ctx, rq, nil)
}

// Push pushes a snapshot to the object store, where other nodes find it.
func (s *Snapshots) Push(ctx context.Context, id api.SnapshotID) (api.TransferResult, error) {
	var out api.TransferResult
	err := s.c.do(ctx, post(apiPath("snapshots", string(id), "push"), nil), &out)
	return out, err
}

// Pull pulls a snapshot from the object store to the server's node. A snapshot that is there already is no error.
func (s *Snapshots) Pull(ctx context.Context, id api.SnapshotID, req api.PullRequest) (api.TransferResult, error) {
	var out api.TransferResult
	err := s.c.do(ctx, post(apiPath("snapshots", string(id), "pull"), req), &out)
	return out, err
}

// DeletePushed deletes a snapshot from the object store. Nodes that have it keep it.
func (s *Snapshots) DeletePushed(ctx context.Context, id api.SnapshotID) error {
	return s.c.do(ctx, del(apiPath("snapshots", string(id), "push")), nil)
}
