package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/metricshistory"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/ingress/httpapi"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
	"github.com/pandastack/pandastack/internal/lib/obs"
)

// patience bounds every wait of the tests.
const patience = 60 * time.Second

// The keys of the tests: an operator, an admin, a member and a viewer of one workspace, and an admin of another.
const (
	keyOperator = "pds_operator"
	keyAdmin    = "pds_admin"
	keyMember   = "pds_member"
	keyStranger = "pds_stranger"
	keyViewer   = "pds_viewer"
)

// keys authenticates the callers.
type keys struct{}

// caller returns a principal with all rights of a role.
func caller(workspace api.Workspace, prefix string, role api.Role, operator bool) auth.Principal {
	return auth.Principal{
		Workspace: workspace, KeyPrefix: prefix, Role: role, Operator: operator,
		Admin: role == api.RoleOwner || role == api.RoleAdmin, Scopes: auth.NewScopes(role.Scopes(operator)...),
	}
}

func (keys) Authenticate(_ context.Context, token string, _ netip.Addr) (auth.Principal, error) {
	switch token {
	case keyOperator:
		return caller("ours", "pds_oper", api.RoleOwner, true), nil
	case keyAdmin:
		return caller("ours", "pds_admi", api.RoleAdmin, false), nil
	case keyMember:
		return caller("ours", "pds_memb", api.RoleDeveloper, false), nil
	case keyViewer:
		return caller("ours", "pds_view", api.RoleViewer, false), nil
	case keyStranger:
		return caller("theirs", "pds_stra", api.RoleAdmin, false), nil
	}
	return auth.Principal{}, api.Errorf(api.Unauthenticated, "the key does not hold")
}

func (keys) Known(string) bool { return false }

func (k keys) OfKey(ctx context.Context, prefix string, from netip.Addr) (auth.Principal, error) {
	return k.Authenticate(ctx, prefix, from)
}

func (keys) Create(_ context.Context, _ auth.Principal, r auth.KeyRequest) (auth.Key, string, error) {
	k := auth.Key{Prefix: "pds_12345678", Label: r.Label, Role: r.Role, Created: time.Now(), Expires: r.Expires}
	return k, "pds_12345678901234567890123456789012", nil
}

func (keys) Rotate(
	_ context.Context,
	_ auth.Principal,
	prefix string,
	overlap time.Duration,
) (key auth.Key, token string, until time.Time, err error) {
	if prefix != "pds_admi" {
		return key, "", until, api.Errorf(api.NotFound, "no key %s", prefix)
	}
	key = auth.Key{Prefix: "pds_12345678", Role: api.RoleAdmin, Created: time.Now()}
	return key, "pds_12345678901234567890123456789012", key.Created.Add(overlap), nil
}

func (keys) List(context.Context, auth.Principal) ([]auth.Key, error) {
	return []auth.Key{{Prefix: "pds_admi", Label: "first", Created: time.Now()}}, nil
}

func (keys) Revoke(_ context.Context, _ auth.Principal, prefix string) error {
	if prefix != "pds_admi" {
		return api.Errorf(api.NotFound, "no key %s", prefix)
	}
	return nil
}

// templates has one baked template, and one that is being baked.
type templates struct{}

var raw = api.Template{Name: "raw", Bake: &api.Bake{State: "running", Step: "rootfs", Percent: 12}}

func (templates) List(context.Context, auth.Principal) ([]api.Template, error) {
	return []api.Template{{Name: "base", Baked: true}}, nil
}

func (templates) Get(_ context.Context, _ auth.Principal, name string) (api.Template, error) {
	if name == "raw" || name == "alias-of-raw" {
		return raw, nil
	}
	if name != "base" {
		return api.Template{}, api.Errorf(api.NotFound, "template %s not found", name)
	}
	return api.Template{Name: "base", Baked: true}, nil
}

func (t templates) Bake(ctx context.Context, p auth.Principal, name string, _ api.BakeRequest) (api.Template, error) {
	return t.Get(ctx, p, name)
}

func (templates) Delete(context.Context, auth.Principal, string) error { return nil }

func (t templates) Tag(ctx context.Context, p auth.Principal, name string, _ api.TagRequest) (api.Template, error) {
	return t.Get(ctx, p, name)
}

func (templates) Untag(context.Context, auth.Principal, string, string) error { return nil }

// fakeSandboxes is a sandbox service over a simulated host: rows in a map, without timers.
type fakeSandboxes struct {
	host *hosttest.Host
	dial func() (net.Conn, error) // of port 3000 in every sandbox, if set

	began time.Time // from then on guests are half busy

	mu        sync.Mutex
	rows      map[api.SandboxID]api.Sandbox
	snaps     map[api.SnapshotID]api.Snapshot
	byKey     map[string]api.SandboxID
	logs      sandbox.Logs
	events    []sandbox.Event
	more      chan struct{} // closed and replaced at every event
	gone      bool          // the host does not reply
	diskShort bool          // less than the reserve is free
	atomic    bool          // the last write of a file was
}

func (b *fakeSandboxes) get(p auth.Principal, id api.SandboxID) (api.Sandbox, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	box, ok := b.rows[id]
	if !ok || box.Workspace != p.Workspace {
		return api.Sandbox{}, api.Errorf(api.NotFound, "sandbox %s not found", id)
	}
	return box, nil
}

func (b *fakeSandboxes) set(box api.Sandbox) api.Sandbox {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rows[box.ID] = box
	return box
}

func (b *fakeSandboxes) Create(ctx context.Context, p auth.Principal, req api.CreateRequest) (api.Sandbox, error) {
	if strings.HasSuffix(req.Template, "raw") {
		<-ctx.Done()
		return api.Sandbox{}, api.AsError(context.Cause(ctx))
	}
	b.mu.Lock()
	id, again := b.byKey[req.IdempotencyKey]
	b.mu.Unlock()
	if again && req.IdempotencyKey != "" {
		return b.get(p, id)
	}
	id = api.NewSandboxID()
	m, err := b.host.Create(
		ctx,
		hostapi.Create{ID: hostapi.MachineID(id), Template: "base", Hostname: string(id), Env: req.Env},
	)
	if err != nil {
		return api.Sandbox{}, err
	}
	b.mu.Lock()
	b.byKey[req.IdempotencyKey] = id
	b.mu.Unlock()
	return b.set(api.Sandbox{
		ID: id, Template: "base", Status: api.Running, Workspace: p.Workspace, Metadata: req.Metadata,
		BootMode: string(
			m.BootMode,
		), CreatedAt: time.Now().UTC(), Generation: m.Generation, FromSnapshot: req.FromSnapshot,
	}), nil
}

func (b *fakeSandboxes) List(_ context.Context, p auth.Principal, f api.SandboxFilter) (sandbox.Page, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var page sandbox.Page
	for _, box := range b.rows {
		ok := box.Workspace == p.Workspace && box.ID > api.SandboxID(f.Cursor)
		for k, v := range f.Metadata {
			ok = ok && box.Metadata[k] == v
		}
		ok = ok && (len(f.Statuses) == 0 || slices.Contains(f.Statuses, box.Status))
		if ok {
			page.Sandboxes = append(page.Sandboxes, box)
		}
	}
	sortByID(page.Sandboxes)
	if f.Limit > 0 && len(page.Sandboxes) > f.Limit {
		page.Sandboxes = page.Sandboxes[:f.Limit]
		page.Next = string(page.Sandboxes[f.Limit-1].ID)
	}
	return page, nil
}

func sortByID(list []api.Sandbox) {
	for i := range list {
		for j := i; j > 0 && list[j].ID < list[j-1].ID; j-- {
			list[j], list[j-1] = list[j-1], list[j]
		}
	}
}

func (b *fakeSandboxes) Get(_ context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error) {
	return b.get(p, id)
}

func (b *fakeSandboxes) Delete(ctx context.Context, p auth.Principal, id api.SandboxID) error {
	if _, err := b.get(p, id); err != nil {
		return err
	}
	b.mu.Lock()
	delete(b.rows, id)
	b.mu.Unlock()
	return b.host.Destroy(ctx, hostapi.MachineID(id), "test")
}

func (b *fakeSandboxes) move(p auth.Principal, id api.SandboxID, to api.Status) (api.Sandbox, error) {
	box, err := b.get(p, id)
	if err != nil {
		return box, err
	}
	box.Status = to
	return b.set(box), nil
}

func (b *fakeSandboxes) Pause(_ context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error) {
	return b.move(p, id, api.Paused)
}

func (b *fakeSandboxes) Resume(_ context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error) {
	return b.move(p, id, api.Running)
}

func (b *fakeSandboxes) Hibernate(_ context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error) {
	return b.move(p, id, api.Hibernated)
}

func (b *fakeSandboxes) Wake(_ context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error) {
	return b.move(p, id, api.Running)
}

func (b *fakeSandboxes) Lifecycle(_ context.Context, p auth.Principal, id api.SandboxID) (api.Lifecycle, error) {
	box, err := b.get(p, id)
	return api.Lifecycle{TTLSeconds: box.TTLSeconds, Persistent: box.Persistent}, err
}

func (b *fakeSandboxes) SetLifecycle(
	ctx context.Context,
	p auth.Principal,
	id api.SandboxID,
	patch api.LifecyclePatch,
) (api.Lifecycle, error) {
	box, err := b.get(p, id)
	if err != nil {
		return api.Lifecycle{}, err
	}
	if patch.TTLSeconds != nil {
		box.TTLSeconds = *patch.TTLSeconds
	}
	if patch.Persistent != nil {
		box.Persistent = *patch.Persistent
	}
	b.set(box)
	return b.Lifecycle(ctx, p, id)
}

func (b *fakeSandboxes) Network(_ context.Context, p auth.Principal, id api.SandboxID) (api.Network, error) {
	box, err := b.get(p, id)
	if err != nil || box.Network == nil {
		return api.Network{}, err
	}
	return *box.Network, nil
}

func (b *fakeSandboxes) SetNetwork(
	_ context.Context,
	p auth.Principal,
	id api.SandboxID,
	n api.Network,
) (api.Network, error) {
	if err := n.Validate(); err != nil {
		return n, err
	}
	box, err := b.get(p, id)
	if err != nil {
		return n, err
	}
	box.Network = &n
	b.set(box)
	return n, nil
}

// portGuest is a guest whose port 3000 is a server of the test.
type portGuest struct {
	guestapi.Guest
	dial func() (net.Conn, error)

	boxes *fakeSandboxes
}

func (g portGuest) Write(
	ctx context.Context,
	p string,
	opt guestapi.WriteOptions,
	r io.Reader,
) (guestapi.FileInfo, error) {
	g.boxes.mu.Lock()
	g.boxes.atomic = opt.Atomic
	g.boxes.mu.Unlock()
	return g.Guest.Write(ctx, p, opt, r)
}

func (g portGuest) DialPort(ctx context.Context, port uint16) (net.Conn, error) {
	if port == 3000 && g.dial != nil {
		return g.dial()
	}
	return g.Guest.DialPort(ctx, port)
}

func (b *fakeSandboxes) GuestAndSandbox(
	ctx context.Context,
	p auth.Principal,
	id api.SandboxID,
) (guestapi.Guest, api.Sandbox, error) {
	g, err := b.Guest(ctx, p, id)
	if err != nil {
		return nil, api.Sandbox{}, err
	}
	box, err := b.get(p, id)
	return g, box, err
}

func (b *fakeSandboxes) Guest(ctx context.Context, p auth.Principal, id api.SandboxID) (guestapi.Guest, error) {
	box, err := b.get(p, id)
	if err != nil {
		return nil, err
	}
	if box.Status == api.Paused {
		return nil, api.Errorf(api.WrongState, "the sandbox is paused: resume it")
	}
	g, err := b.host.Guest(ctx, hostapi.MachineID(id))
	if err != nil {
		return nil, err
	}
	return portGuest{g, b.dial, b}, nil
}

func (b *fakeSandboxes) TakeSnapshot(
	_ context.Context,
	p auth.Principal,
	id api.SandboxID,
	req api.SnapshotRequest,
) (api.Snapshot, error) {
	if _, err := b.get(p, id); err != nil {
		return api.Snapshot{}, err
	}
	s := api.Snapshot{
		ID:        api.NewSnapshotID(),
		SandboxID: id,
		Workspace: p.Workspace,
		Name:      req.Name,
		CreatedAt: time.Now().UTC(),
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.snaps[s.ID] = s
	return s, nil
}

func (b *fakeSandboxes) Snapshots(
	_ context.Context,
	p auth.Principal,
	f api.SnapshotFilter,
) (sandbox.SnapshotPage, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var page sandbox.SnapshotPage
	for _, s := range b.snaps {
		if s.Workspace == p.Workspace && (f.SandboxID == "" || f.SandboxID == s.SandboxID) {
			page.Snapshots = append(page.Snapshots, s)
		}
	}
	return page, nil
}

func (b *fakeSandboxes) Snapshot(_ context.Context, p auth.Principal, id api.SnapshotID) (api.Snapshot, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, ok := b.snaps[id]
	if !ok || s.Workspace != p.Workspace {
		return api.Snapshot{}, api.Errorf(api.NotFound, "snapshot %s not found", id)
	}
	return s, nil
}

func (b *fakeSandboxes) DeleteSnapshot(ctx context.Context, p auth.Principal, id api.SnapshotID) error {
	if _, err := b.Snapshot(ctx, p, id); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.snaps, id)
	return nil
}

func (b *fakeSandboxes) PushSnapshot(
	ctx context.Context,
	p auth.Principal,
	id api.SnapshotID,
) (api.TransferResult, error) {
	s, err := b.Snapshot(ctx, p, id)
	return api.TransferResult{Snapshot: s, UploadedBytes: s.SizeBytes}, err
}

func (b *fakeSandboxes) PullSnapshot(
	ctx context.Context,
	p auth.Principal,
	id api.SnapshotID,
	_ api.PullRequest,
) (api.TransferResult, error) {
	s, err := b.Snapshot(ctx, p, id)
	return api.TransferResult{Snapshot: s}, err
}

func (b *fakeSandboxes) DeletePushed(ctx context.Context, p auth.Principal, id api.SnapshotID) error {
	_, err := b.Snapshot(ctx, p, id)
	return err
}

func (b *fakeSandboxes) child(p auth.Principal, parent api.SandboxID, metadata map[string]string) api.Sandbox {
	return b.set(
		api.Sandbox{
			ID:        api.NewSandboxID(),
			ParentID:  parent,
			Status:    api.Running,
			Workspace: p.Workspace,
			Metadata:  metadata,
		},
	)
}

func (b *fakeSandboxes) Fork(
	_ context.Context,
	p auth.Principal,
	id api.SandboxID,
	req api.ForkRequest,
) (api.ForkResponse, error) {
	if _, err := b.get(p, id); err != nil {
		return api.ForkResponse{}, err
	}
	c := b.child(p, id, req.Metadata)
	return api.ForkResponse{ParentID: id, Children: []api.Sandbox{c}, Sandbox: &c}, nil
}

func (b *fakeSandboxes) ForkTree(
	_ context.Context,
	p auth.Principal,
	id api.SandboxID,
	req api.ForkTreeRequest,
) (api.ForkTree, error) {
	if _, err := b.get(p, id); err != nil {
		return api.ForkTree{}, err
	}
	t := api.ForkTree{TreeID: api.NewTreeID(), ParentID: id}
	for range req.Count {
		t.Children = append(t.Children, b.child(p, id, map[string]string{"fork_tree_id": string(t.TreeID)}))
	}
	return t, nil
}

func (b *fakeSandboxes) Promote(
	_ context.Context,
	p auth.Principal,
	id api.SandboxID,
	req api.PromoteRequest,
) (api.Promotion, error) {
	_, err := b.get(p, id)
	return api.Promotion{
		Winner:   id,
		TreeID:   req.TreeID,
		Deleted:  []api.SandboxID{},
		Failures: map[api.SandboxID]string{},
	}, err
}

func (b *fakeSandboxes) Ports(_ context.Context, p auth.Principal, id api.SandboxID) ([]api.Port, error) {
	_, err := b.get(p, id)
	return []api.Port{{Port: 7, Listening: true, Source: api.PortDetected}}, err
}

func (b *fakeSandboxes) DeclarePort(
	_ context.Context,
	p auth.Principal,
	id api.SandboxID,
	req api.PortRequest,
) (api.Port, error) {
	_, err := b.get(p, id)
	return api.Port{Port: req.Port, Label: req.Label, Source: api.PortUser}, err
}

func (b *fakeSandboxes) RemovePort(_ context.Context, p auth.Principal, id api.SandboxID, _ int) error {
	_, err := b.get(p, id)
	return err
}

func (b *fakeSandboxes) Usage(_ context.Context, p auth.Principal, id api.SandboxID) (api.Usage, error) {
	box, err := b.get(p, id)
	if err != nil || box.Status == api.Hibernated {
		return api.Usage{}, err
	}
	out := api.Usage{PID: 1, Threads: 3, UptimeSeconds: 20, HostCPUSeconds: 1.5, HostRSSBytes: 1 << 28}
	if box.Status == api.Running {
		up := time.Since(b.began).Seconds()
		out.Guest = &api.GuestStats{
			CPUs:              2,
			CPUBusySeconds:    up,
			UptimeSeconds:     up,
			MemTotalBytes:     100,
			MemAvailableBytes: 40,
			DiskUsedBytes:     7,
			NetRxBytes:        8,
			NetTxBytes:        9,
		}
	}
	return out, nil
}

func (b *fakeSandboxes) Logs(_ context.Context, p auth.Principal, id api.SandboxID) (sandbox.Logs, error) {
	_, err := b.get(p, id)
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.logs, err
}

func (b *fakeSandboxes) Events(
	_ context.Context,
	p auth.Principal,
	id api.SandboxID,
	q sandbox.EventQuery,
) ([]sandbox.Event, error) {
	if _, err := b.get(p, id); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []sandbox.Event
	for _, e := range b.events {
		if e.Seq > q.After {
			list = append(list, e)
		}
	}
	if q.Tail > 0 && len(list) > q.Tail {
		list = list[len(list)-q.Tail:]
	}
	return list, nil
}

func (b *fakeSandboxes) FollowEvents(
	ctx context.Context,
	p auth.Principal,
	id api.SandboxID,
	q sandbox.EventQuery,
	yield func(sandbox.Event) error,
) error {
	for {
		b.mu.Lock()
		more := b.more
		b.mu.Unlock()
		list, err := b.Events(ctx, p, id, q)
		if err != nil {
			return err
		}
		for _, e := range list {
			if err := yield(e); err != nil {
				return err
			}
			q = sandbox.EventQuery{After: e.Seq}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-more:
		}
	}
}

// addEvent adds an event.
func (b *fakeSandboxes) addEvent(id api.SandboxID, kind string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events = append(
		b.events,
		sandbox.Event{Seq: int64(len(b.events) + 1), Event: api.NewEvent(id, kind, time.Now().UTC(), nil)},
	)
	close(b.more)
	b.more = make(chan struct{})
}

func (b *fakeSandboxes) Capacity(ctx context.Context) (api.Capacity, error) {
	b.mu.Lock()
	gone, short := b.gone, b.diskShort
	b.mu.Unlock()
	if gone {
		return api.Capacity{}, io.ErrUnexpectedEOF
	}
	return api.Capacity{
		Driver: "fake", Isolation: "none", CPUs: 2, DiskFreeMB: 12, DiskReserveMB: 34, DiskShort: short,
	}, ctx.Err()
}

func (b *fakeSandboxes) Counts(context.Context) (map[api.Status]int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := map[api.Status]int{}
	for _, box := range b.rows {
		n[box.Status]++
	}
	return n, nil
}

// fixture is a server over a simulated host.
type fixture struct {
	t     testing.TB
	boxes *fakeSandboxes
	url   string
	log   *bytes.Buffer // read it when the server is quiet
	audit *recorder
}

func newFixture(t testing.TB, change ...func(*httpapi.Deps)) *fixture {
	t.Helper()
	host := hosttest.New()
	t.Cleanup(host.Close)
	b := &fakeSandboxes{
		began: time.Now().Add(-time.Minute),
		host:  host, rows: map[api.SandboxID]api.Sandbox{}, snaps: map[api.SnapshotID]api.Snapshot{},
		byKey: map[string]api.SandboxID{}, more: make(chan struct{}),
	}
	w := &fixture{t: t, boxes: b, log: &bytes.Buffer{}, audit: &recorder{}}
	log, err := obs.NewLogger(&locked{w: w.log}, "text", "info")
	if err != nil {
		t.Fatal(err)
	}
	ports := proxy.New(proxy.Config{Log: log})
	t.Cleanup(ports.Close)
	deps := httpapi.Deps{
		Sandboxes:    b,
		Templates:    templates{},
		Keys:         keys{},
		Proxy:        ports,
		UsageHistory: metricshistory.New(b),
		Audit:        w.audit,
		Log:          log,
	}
	for _, f := range change {
		f(&deps)
	}
	s, err := httpapi.New(httpapi.Config{Version: "1.2.3", PreviewKey: bytes.Repeat([]byte("k"), 32)}, deps)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	w.url = srv.URL
	return w
}

// locked lets several goroutines write to one buffer.
type locked struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// response is the response to a request.
type response struct {
	status int
	header http.Header
	body   string
}

// json decodes the body, which must be JSON.
func (a response) json(t testing.TB, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(a.body), v); err != nil {
		t.Fatalf("response %d %q is not JSON of the expected form: %v", a.status, a.body, err)
	}
}

// failed decodes the error in a response.
func (a response) failed(t testing.TB) api.Error {
	t.Helper()
	var e api.Error
	a.json(t, &e)
	if e.Message == "" || e.Code == "" || e.RequestID == "" || a.header.Get("Content-Type") != "application/json" {
		t.Errorf("response %d %q lacks error, code, request_id or its type", a.status, a.body)
	}
	if want := e.Code.Info().Status; a.status != want {
		t.Errorf("got status %d with code %s, want %d", a.status, e.Code, want)
	}
	return e
}

// request returns a request of the member, unless change says otherwise.
func (w *fixture) request(method, path, body string, change ...func(*http.Request)) *http.Request {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), method, w.url+path, bytes.NewReader([]byte(body)))
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+keyMember)
	for _, c := range change {
		c(r)
	}
	return r
}

func as(key string) func(*http.Request) {
	return func(r *http.Request) {
		if key == "" {
			r.Header.Del("Authorization")
		} else {
			r.Header.Set("Authorization", "Bearer "+key)
		}
	}
}

func with(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// do sends a request and reads the whole response.
func (w *fixture) do(method, path, body string, change ...func(*http.Request)) response {
	w.t.Helper()
	res, err := http.DefaultClient.Do(w.request(method, path, body, change...))
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return response{res.StatusCode, res.Header, string(data)}
}

// create creates a sandbox in the member's workspace and returns its id and path.
func (w *fixture) create() (api.SandboxID, string) {
	w.t.Helper()
	a := w.do("POST", "/v1/sandboxes", `{"template":"base"}`)
	if a.status != http.StatusCreated {
		w.t.Fatalf("create: got %d %s, want 201", a.status, a.body)
	}
	var box api.Sandbox
	a.json(w.t, &box)
	return box.ID, fmt.Sprintf("/v1/sandboxes/%s", box.ID)
}

// principal is the member.
var principal = auth.Principal{Workspace: "ours"}
