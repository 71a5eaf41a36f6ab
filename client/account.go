package client

import (
	"context"
	"io"
	"net/url"

	"github.com/pandastack/pandastack/api"
)

// Snapshots are the verbs on the registry of snapshots.
type Snapshots struct{ c *Client }

// List answers snapshots, newest first; of one sandbox if f says so.
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

// Get answers one snapshot.
func (s *Snapshots) Get(ctx context.Context, id api.SnapshotID) (api.Snapshot, error) {
	var out api.Snapshot
	err := s.c.do(ctx, get(apiPath("snapshots", string(id))), &out)
	return out, err
}

// Delete removes a snapshot; conflict while something needs it.
func (s *Snapshots) Delete(ctx context.Context, id api.SnapshotID) error {
	rq := del(apiPath("snapshots", string(id)))
	rq.idempotent = false // the second answer would be not_found
	return s.c.do(ctx, rq, nil)
}

// Push puts a snapshot into the object store, where other nodes find it.
func (s *Snapshots) Push(ctx context.Context, id api.SnapshotID) (api.TransferResult, error) {
	var out api.TransferResult
	err := s.c.do(ctx, post(apiPath("snapshots", string(id), "push"), nil), &out)
	return out, err
}

// Pull brings a snapshot from the object store to the client's node; one that is there already is fine.
func (s *Snapshots) Pull(ctx context.Context, id api.SnapshotID, req api.PullRequest) (api.TransferResult, error) {
	var out api.TransferResult
	err := s.c.do(ctx, post(apiPath("snapshots", string(id), "pull"), req), &out)
	return out, err
}

// DeletePushed removes a snapshot from the object store; nodes that have it keep it.
func (s *Snapshots) DeletePushed(ctx context.Context, id api.SnapshotID) error {
	return s.c.do(ctx, del(apiPath("snapshots", string(id), "push")), nil)
}

// Templates are the verbs on templates.
type Templates struct{ c *Client }

// List answers all templates that the key may use.
func (t *Templates) List(ctx context.Context) ([]api.Template, error) {
	var out []api.Template
	err := t.c.do(ctx, get(apiPath("templates")), &out)
	return out, err
}

// Get answers a template by name.
func (t *Templates) Get(ctx context.Context, name string) (api.Template, error) {
	var out api.Template
	err := t.c.do(ctx, get(apiPath("templates", name)), &out)
	return out, err
}

// Bake begins to bake a template, or joins a bake under way. Get shows how it goes.
func (t *Templates) Bake(ctx context.Context, name string, req api.BakeRequest) (api.Template, error) {
	var out api.Template
	err := t.c.do(ctx, post(apiPath("templates", name, "bake"), req), &out)
	return out, err
}

// Tokens are the verbs on the keys of the caller's workspace.
type Tokens struct{ c *Client }

// List answers the keys, newest first.
func (t *Tokens) List(ctx context.Context) ([]api.Token, error) {
	var out api.TokenList
	err := t.c.do(ctx, get(apiPath("me", "tokens")), &out)
	return out.Items, err
}

// Create makes a key, which is shown this once.
func (t *Tokens) Create(ctx context.Context, req api.TokenRequest) (api.TokenCreated, error) {
	var out api.TokenCreated
	err := t.c.do(ctx, post(apiPath("me", "tokens"), req), &out)
	return out, err
}

// Revoke ends a key at once.
func (t *Tokens) Revoke(ctx context.Context, prefix string) error {
	rq := del(apiPath("me", "tokens", prefix))
	rq.idempotent = false // the second answer would be not_found
	return t.c.do(ctx, rq, nil)
}

// Me tells who the key is.
func (c *Client) Me(ctx context.Context) (api.Me, error) {
	var out api.Me
	err := c.do(ctx, get(apiPath("me")), &out)
	return out, err
}

// Health tells whether the server works. It needs no key.
func (c *Client) Health(ctx context.Context) (api.Health, error) {
	var out api.Health
	err := c.do(ctx, call{method: "GET", path: "/healthz"}, &out)
	return out, err
}

// Version tells what the server is. It needs no key.
func (c *Client) Version(ctx context.Context) (api.Version, error) {
	var out api.Version
	err := c.do(ctx, get("/version"), &out)
	return out, err
}

// Capacity is what the node has and has promised.
func (c *Client) Capacity(ctx context.Context) (api.Capacity, error) {
	var out api.Capacity
	err := c.do(ctx, get(apiPath("capacity")), &out)
	return out, err
}

// Metrics gives the server's metrics in the text form of Prometheus. It needs an admin's key.
func (c *Client) Metrics(ctx context.Context) (string, error) {
	res, err := c.send(ctx, get("/metrics"))
	if err != nil {
		return "", err
	}
	defer res.Body.Close() //nolint:errcheck // it has been read
	data, err := io.ReadAll(io.LimitReader(res.Body, maxResponse))
	if err != nil {
		return "", transportError(ctx, err)
	}
	return string(data), nil
}
