package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/pandastack/pandastack/api"
)

// Sandboxes are the calls on sandboxes.
type Sandboxes struct{ c *Client }

// Create creates a sandbox and returns when it runs.
//
// The request gets an idempotency key if it has none. The first create of a template waits until the template is baked,
// which may take minutes; ctx bounds it.
func (s *Sandboxes) Create(ctx context.Context, req api.CreateRequest) (api.Sandbox, error) {
	if req.IdempotencyKey == "" {
		req.IdempotencyKey = string(api.NewRequestID())
	}
	rq := post(apiPath("sandboxes"), req)
	rq.idempotent = true
	rq.header = map[string]string{"Idempotency-Key": req.IdempotencyKey, "Prefer": "wait=3600"}
	var out api.Sandbox
	err := s.c.do(ctx, rq, &out)
	return out, err
}

// List returns the sandboxes that f selects, newest first.
//
// It returns all of them if Limit is 0, else at most one page.
func (s *Sandboxes) List(ctx context.Context, f api.SandboxFilter) ([]api.Sandbox, error) {
	page, _, err := s.Page(ctx, f)
	return page, err
}

// Page returns one page and the cursor of the next, "" after the last.
func (s *Sandboxes) Page(ctx context.Context, f api.SandboxFilter) ([]api.Sandbox, string, error) {
	q := url.Values{}
	for _, st := range f.Statuses {
		q.Add("status", string(st))
	}
	for k, v := range f.Metadata {
		q.Set("metadata."+k, v)
	}
	setNonEmpty(q, "template", f.Template)
	setNonEmpty(q, "cursor", f.Cursor)
	if f.Oldest {
		q.Set("order", "asc")
	}
	if !f.Since.IsZero() {
		q.Set("since", f.Since.UTC().Format(time.RFC3339Nano))
	}
	if f.Limit > 0 {
		q.Set("limit", itoa(f.Limit))
	}
	rq := get(apiPath("sandboxes"))
	rq.query = q
	var out []api.Sandbox
	h, err := s.c.doHeader(ctx, rq, &out)
	if err != nil {
		return nil, "", err
	}
	return out, h.Get("X-Next-Cursor"), nil
}

// Get returns one sandbox. The not_found error of a sandbox that ended says why it ended.
func (s *Sandboxes) Get(ctx context.Context, id api.SandboxID) (api.Sandbox, error) {
	var out api.Sandbox
	err := s.c.do(ctx, get(sandboxPath(id)), &out)
	return out, err
}

// Delete deletes a sandbox in any state.
func (s *Sandboxes) Delete(ctx context.Context, id api.SandboxID) error {
	return s.c.do(ctx, del(sandboxPath(id)), nil)
}

// Pause pauses a sandbox in memory.
func (s *Sandboxes) Pause(ctx context.Context, id api.SandboxID) error {
	return s.c.do(ctx, post(sandboxPath(id, "pause"), nil), nil)
}

// Resume resumes a paused sandbox.
func (s *Sandboxes) Resume(ctx context.Context, id api.SandboxID) error {
	return s.c.do(ctx, post(sandboxPath(id, "resume"), nil), nil)
}

// Hibernate hibernates a sandbox to disk.
func (s *Sandboxes) Hibernate(ctx context.Context, id api.SandboxID) error {
	return s.c.do(ctx, post(sandboxPath(id, "hibernate"), nil), nil)
}

// Wake wakes a hibernated sandbox.
func (s *Sandboxes) Wake(ctx context.Context, id api.SandboxID) error {
	return s.c.do(ctx, post(sandboxPath(id, "wake"), nil), nil)
}

// Snapshot takes a snapshot of a sandbox, which keeps running.
func (s *Sandboxes) Snapshot(ctx context.Context, id api.SandboxID, req api.SnapshotRequest) (api.Snapshot, error) {
	var out api.Snapshot
	err := s.c.do(ctx, post(sandboxPath(id, "snapshots"), req), &out)
	return out, err
}

// Fork forks a running sandbox, memory and disk. The parent keeps running.
func (s *Sandboxes) Fork(ctx context.Context, id api.SandboxID, req api.ForkRequest) (api.ForkResponse, error) {
	var out api.ForkResponse
	err := s.c.do(ctx, post(sandboxPath(id, "fork"), req), &out)
	return out, err
}

// ForkTree forks several children of the same moment under a tree id.
func (s *Sandboxes) ForkTree(ctx context.Context, id api.SandboxID, req api.ForkTreeRequest) (api.ForkTree, error) {
	var out api.ForkTree
	err := s.c.do(ctx, post(sandboxPath(id, "fork-tree"), req), &out)
	return out, err
}

// Promote makes a sandbox the winner of its tree.
func (s *Sandboxes) Promote(ctx context.Context, id api.SandboxID, req api.PromoteRequest) (api.Promotion, error) {
	var out api.Promotion
	err := s.c.do(ctx, post(sandboxPath(id, "promote"), req), &out)
	return out, err
}

// Lifecycle returns when a sandbox ends by itself.
func (s *Sandboxes) Lifecycle(ctx context.Context, id api.SandboxID) (api.Lifecycle, error) {
	var out api.Lifecycle
	err := s.c.do(ctx, get(sandboxPath(id, "lifecycle")), &out)
	return out, err
}

// Network returns what a sandbox may reach.
func (s *Sandboxes) Network(ctx context.Context, id api.SandboxID) (api.Network, error) {
	var out api.Network
	err := s.c.do(ctx, get(sandboxPath(id, "network")), &out)
	return out, err
}

// SetNetwork replaces what a sandbox may reach, at once and for open connections too.
func (s *Sandboxes) SetNetwork(ctx context.Context, id api.SandboxID, n api.Network) (api.Network, error) {
	var out api.Network
	err := s.c.do(ctx, call{method: http.MethodPut, path: sandboxPath(id, "network"), in: n}, &out)
	return out, err
}

// SetLifecycle changes the fields that the patch sets.
func (s *Sandboxes) SetLifecycle(
	ctx context.Context,
	id api.SandboxID,
	patch api.LifecyclePatch,
) (api.Lifecycle, error) {
	var out api.Lifecycle
	err := s.c.do(ctx, call{method: http.MethodPatch, path: sandboxPath(id, "lifecycle"), in: patch}, &out)
	return out, err
}

// Usage returns what a sandbox uses now.
func (s *Sandboxes) Usage(ctx context.Context, id api.SandboxID) (api.Usage, error) {
	var out api.Usage
	err := s.c.do(ctx, get(sandboxPath(id, "metrics")), &out)
	return out, err
}

// Ports returns declared and listening ports.
func (s *Sandboxes) Ports(ctx context.Context, id api.SandboxID) ([]api.Port, error) {
	var out []api.Port
	err := s.c.do(ctx, get(sandboxPath(id, "ports")), &out)
	return out, err
}

// DeclarePort gives a port a label.
func (s *Sandboxes) DeclarePort(ctx context.Context, id api.SandboxID, req api.PortRequest) (api.Port, error) {
	var out api.Port
	err := s.c.do(ctx, post(sandboxPath(id, "ports"), req), &out)
	return out, err
}

// RemovePort removes the declaration of a port.
func (s *Sandboxes) RemovePort(ctx context.Context, id api.SandboxID, port int) error {
	return s.c.do(ctx, del(sandboxPath(id, "ports", itoa(port))), nil)
}

// ProxyURL returns the address through which the server forwards to a port of the sandbox.
//
// Requests to it need the key.
func (s *Sandboxes) ProxyURL(id api.SandboxID, port int) string {
	return s.c.base.String() + sandboxPath(id, "proxy", itoa(port)) + "/"
}

// Preview makes a signed address of a port that needs no key.
func (s *Sandboxes) Preview(ctx context.Context, id api.SandboxID, req api.PreviewRequest) (api.Preview, error) {
	var out api.Preview
	err := s.c.do(ctx, post(sandboxPath(id, "preview-token"), req), &out)
	return out, err
}

// Previews returns the previews of a sandbox that have not expired, newest first.
func (s *Sandboxes) Previews(ctx context.Context, id api.SandboxID) ([]api.PreviewInfo, error) {
	var out api.PreviewList
	err := s.c.do(ctx, get(sandboxPath(id, "previews")), &out)
	return out.Previews, err
}

// RevokePreview revokes a preview by its id. Open requests end.
func (s *Sandboxes) RevokePreview(ctx context.Context, id api.SandboxID, preview string) error {
	return s.c.do(ctx, del(sandboxPath(id, "previews", preview)), nil)
}

// RevokePreviews revokes all previews of a sandbox.
func (s *Sandboxes) RevokePreviews(ctx context.Context, id api.SandboxID) error {
	return s.c.do(ctx, del(sandboxPath(id, "previews")), nil)
}

// Logs returns what the sandbox printed. The caller closes the reader.
//
// stream is "stdout", "stderr", "console" or "both", which is all of them and the default.
func (s *Sandboxes) Logs(ctx context.Context, id api.SandboxID, stream string) (io.ReadCloser, error) {
	rq := get(sandboxPath(id, "logs"))
	rq.query = url.Values{}
	setNonEmpty(rq.query, "stream", stream)
	rq.header = map[string]string{"Accept": "text/plain"}
	res, err := s.c.send(ctx, rq)
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}

// FollowLogs calls yield for every line of the log, and for each new one as it is printed.
//
// It returns when ctx ends, the sandbox ends (nil) or yield returns an error.
func (s *Sandboxes) FollowLogs(
	ctx context.Context,
	id api.SandboxID,
	stream string,
	yield func(line string) error,
) error {
	rq := get(sandboxPath(id, "logs"))
	rq.query = url.Values{"follow": {"1"}}
	setNonEmpty(rq.query, "stream", stream)
	return s.c.events(ctx, rq, func(e event) error {
		var line struct {
			Line string `json:"line"`
		}
		if err := e.decode(&line); err != nil || e.name != "line" {
			return err
		}
		return yield(line.Line)
	})
}

// Events returns the last events of a sandbox, oldest first. tail 0 means all that are stored.
func (s *Sandboxes) Events(ctx context.Context, id api.SandboxID, tail int) ([]api.Event, error) {
	rq := get(sandboxPath(id, "events"))
	if tail > 0 {
		rq.query = url.Values{"tail": {itoa(tail)}}
	}
	var out api.EventList
	err := s.c.do(ctx, rq, &out)
	return out.Events, err
}

// FollowEvents calls yield for all events, and then for each as it happens.
//
// It returns when ctx ends, the sandbox has ended (nil) or yield returns an error.
func (s *Sandboxes) FollowEvents(ctx context.Context, id api.SandboxID, yield func(api.Event) error) error {
	rq := get(sandboxPath(id, "events"))
	rq.query = url.Values{"follow": {"1"}}
	return s.c.events(ctx, rq, func(e event) error {
		var ev api.Event
		if err := e.decode(&ev); err != nil || e.name != "event" {
			return err
		}
		return yield(ev)
	})
}

func setNonEmpty(q url.Values, key, value string) {
	if value != "" {
		q.Set(key, value)
	}
}
