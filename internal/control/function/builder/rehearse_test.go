package builder_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/fnruntime"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/function/builder"
	"github.com/pandastack/pandastack/internal/control/function/pool"
	"github.com/pandastack/pandastack/internal/control/sandbox"
)

// stage is a builder over machines that have nothing but a stand-in for the program.
type stage struct {
	t     *testing.T
	cfg   builder.Config
	build builder.Build

	mu        sync.Mutex
	dead      bool
	next      int
	machines  map[api.SandboxID]api.Sandbox
	from      map[api.SandboxID]api.SnapshotID // what machines were made from
	snapshots map[api.SnapshotID]api.Snapshot
	taken     map[api.SnapshotID]api.SandboxID
	calls     []string
	refuse    string // the call that fails
	broken    string // the path that responds with a failure
}

func newStage(t *testing.T) *stage {
	t.Helper()
	w := &stage{t: t, machines: map[api.SandboxID]api.Sandbox{}, from: map[api.SandboxID]api.SnapshotID{},
		snapshots: map[api.SnapshotID]api.Snapshot{}, taken: map[api.SnapshotID]api.SandboxID{}}
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("program"), 0o755); err != nil {
		t.Fatal(err)
	}
	w.cfg = builder.Config{Program: program, Rehearse: true}
	w.build = builder.Build{
		Principal: auth.Principal{Workspace: "alice", Owner: hostapi.Owner{Kind: "function", ID: "fn1"}},
		Name:      "hello", Version: 3, Runtime: "python", Template: "base", Timeout: api.MaxFunctionTimeout,
		Env: map[string]string{"COLOR": "red"}, Instance: "one", Log: w,
		Open: func(context.Context) (io.ReadCloser, error) {
			return io.NopCloser(strings.NewReader("def handler(event, context): pass")), nil
		},
	}
	return w
}

func (w *stage) run(ctx context.Context) (builder.Built, error) {
	w.t.Helper()
	b, err := builder.New(w.cfg, w, w, slog.New(slog.DiscardHandler))
	if err != nil {
		w.t.Fatal(err)
	}
	return b.Build(ctx, w.build)
}

func (w *stage) Append(string, string, string) {}

var errKilled = errors.New("the process was killed")

// call notes a call and returns its error. w.mu is held.
func (w *stage) call(name string) error {
	if w.dead {
		return errKilled
	}
	w.calls = append(w.calls, name)
	n := 0
	for _, c := range w.calls {
		if c == name {
			n++
		}
	}
	if w.refuse == fmt.Sprint(name, " ", n) {
		return api.Errorf(api.Unavailable, "%s failed", w.refuse)
	}
	return nil
}

func (w *stage) Create(_ context.Context, _ auth.Principal, req api.CreateRequest) (api.Sandbox, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.call("create"); err != nil {
		return api.Sandbox{}, err
	}
	if _, known := w.snapshots[req.FromSnapshot]; req.FromSnapshot != "" && !known {
		return api.Sandbox{}, api.Errorf(api.NotFound, "snapshot not found")
	}
	w.next++
	box := api.Sandbox{ID: api.SandboxID(fmt.Sprintf("sbx%d", w.next)), Metadata: req.Metadata}
	w.machines[box.ID], w.from[box.ID] = box, req.FromSnapshot
	return box, nil
}

func (w *stage) Delete(_ context.Context, _ auth.Principal, id api.SandboxID) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.call("delete"); err != nil {
		return err
	}
	if _, known := w.machines[id]; !known {
		return api.Errorf(api.NotFound, "sandbox not found")
	}
	delete(w.machines, id)
	return nil
}

func (w *stage) List(context.Context, auth.Principal, api.SandboxFilter) (page sandbox.Page, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead {
		return page, errKilled
	}
	for _, m := range w.machines {
		page.Sandboxes = append(page.Sandboxes, m)
	}
	return page, nil
}

func (w *stage) TakeSnapshot(
	_ context.Context, _ auth.Principal, id api.SandboxID, req api.SnapshotRequest,
) (api.Snapshot, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.call("snapshot"); err != nil {
		return api.Snapshot{}, err
	}
	w.next++
	s := api.Snapshot{ID: api.SnapshotID(fmt.Sprintf("snp%d", w.next)), Name: req.Name, Metadata: req.Metadata}
	w.snapshots[s.ID], w.taken[s.ID] = s, id
	return s, nil
}

func (w *stage) Snapshots(context.Context, auth.Principal, api.SnapshotFilter) (p sandbox.SnapshotPage, err error) {
	return p, nil
}

func (w *stage) DeleteSnapshot(_ context.Context, _ auth.Principal, id api.SnapshotID) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.call("delete snapshot"); err != nil {
		return err
	}
	for box := range w.machines {
		if w.from[box] == id {
			return api.Errorf(api.Conflict, "a machine was made from it")
		}
	}
	delete(w.snapshots, id)
	return nil
}

func (w *stage) Resolve(_ context.Context, _ auth.Principal, name string) (api.Template, error) {
	return api.Template{Name: name, Host: name, MemoryMB: 512, Baked: true}, nil
}

func (w *stage) Guest(context.Context, auth.Principal, api.SandboxID) (guestapi.Guest, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.call("guest"); err != nil {
		return nil, err
	}
	srv := httptest.NewServer(w)
	w.t.Cleanup(srv.Close)
	return &actor{w: w, address: srv.Listener.Addr().String()}, nil
}

// ServeHTTP is the program in machines.
func (w *stage) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	w.mu.Lock()
	err = w.call(strings.TrimSpace(r.URL.Path + " " + string(body)))
	broken := w.broken == r.URL.Path
	w.mu.Unlock()
	rw.Header().Set("Trailer", fnruntime.TrailerSummary)
	control := r.URL.Path == fnruntime.PathReady || r.URL.Path == fnruntime.PathRestored
	switch {
	case err != nil:
		panic(http.ErrAbortHandler)
	case broken:
		rw.Header().Set(fnruntime.HeaderFailure, "Broken")
		rw.WriteHeader(map[bool]int{true: http.StatusFailedDependency, false: http.StatusInternalServerError}[control])
		_, _ = io.WriteString(rw, `{"type":"Broken","message":"it is broken"}`)
	case control:
		rw.Header().Set(fnruntime.HeaderStyle, "event")
		rw.WriteHeader(http.StatusNoContent)
	default:
		_, _ = rw.Write(body)
	}
	rw.Header().Set(fnruntime.TrailerSummary, base64.StdEncoding.EncodeToString([]byte("{}")))
}

// actor is the guest of a machine.
type actor struct {
	guestapi.Guest
	w       *stage
	address string
}

func (g *actor) Write(_ context.Context, _ string, _ guestapi.WriteOptions, r io.Reader) (guestapi.FileInfo, error) {
	_, err := io.Copy(io.Discard, r)
	return guestapi.FileInfo{}, err
}

func (g *actor) DialPort(ctx context.Context, port uint16) (net.Conn, error) {
	if port != fnruntime.Port {
		g.w.t.Errorf("port %d", port)
	}
	return new(net.Dialer).DialContext(ctx, "tcp", g.address)
}

func (g *actor) Start(_ context.Context, spec guestapi.ProcessSpec) (guestapi.Process, error) {
	p := &part{events: make(chan guestapi.Event, 2)}
	if spec.Argv[1] == "build" {
		p.events <- guestapi.Event{Stream: guestapi.StreamStdout, Data: []byte(`{"kind":"result","result":{}}` + "\n")}
		p.events <- guestapi.Event{Exit: &guestapi.Exit{}}
	}
	return p, nil
}

// part is a process: one that serves does not end.
type part struct {
	guestapi.Process
	events chan guestapi.Event
}

func (p *part) Next(ctx context.Context) (guestapi.Event, error) {
	select {
	case e := <-p.events:
		return e, nil
	case <-ctx.Done():
		return guestapi.Event{}, context.Cause(ctx)
	}
}

func (p *part) Write(b []byte) (int, error) { return len(b), nil }
func (p *part) CloseInput() error           { return nil }
func (p *part) Close() error                { return nil }
func (p *part) PID() uint32                 { return 1 }

// left checks that there is nothing but want.
func (w *stage) left(when string, want ...api.SnapshotID) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.machines) > 0 {
		w.t.Errorf("%s: machines %v are left", when, w.machines)
	}
	for id := range w.snapshots {
		if !slices.Contains(want, id) {
			w.t.Errorf("%s: snapshot %s is left", when, id)
		}
	}
	if len(w.snapshots) < len(want) {
		w.t.Errorf("%s: snapshots %v, want %v", when, w.snapshots, want)
	}
}

// TestRehearsal checks which machine a version is captured from, and what that has done.
func TestRehearsal(t *testing.T) {
	const restored = fnruntime.PathRestored + ` {"env":{"COLOR":"red"}}`
	rehearsal, warm := fnruntime.PathRehearse+" {}", fnruntime.PathEvent+` {"n":1}`
	for name, v := range map[string]struct {
		off    bool
		warmUp *api.WarmUp
		want   []string
	}{
		"off": {off: true, want: []string{"create", "guest", fnruntime.PathReady, "snapshot", "delete"}},
		"handler": {want: []string{"create", "guest", fnruntime.PathReady, "snapshot", "delete", "create", "guest",
			restored, rehearsal, rehearsal, rehearsal, "snapshot", "delete", "delete snapshot"}},
		"warm-up": {warmUp: &api.WarmUp{Event: []byte(`{"n":1}`)}, want: []string{"create", "guest",
			fnruntime.PathReady, warm, "snapshot", "delete", "create", "guest", restored, warm, warm, warm, "snapshot",
			"delete", "delete snapshot"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newStage(t)
			w.cfg.Rehearse, w.build.WarmUp = !v.off, v.warmUp
			built, err := w.run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(w.calls, v.want) {
				t.Errorf("calls\n%s, want\n%s", strings.Join(w.calls, "\n"), strings.Join(v.want, "\n"))
			}
			if from := w.from[w.taken[built.Snapshot]]; (from == "") != v.off {
				t.Errorf("the version is captured from a machine made from %q", from)
			}
			if m := w.snapshots[built.Snapshot].Metadata; m[pool.RoleKey] != builder.RoleCaptured ||
				m[builder.VersionKey] != "3" || built.Style != "event" {
				t.Errorf("built %+v with %v", built, m)
			}
			w.left("after the build", built.Snapshot)
		})
	}
}

// TestRehearsalFails checks that a build that fails at any step, or call, leaves nothing, nor does the next.
func TestRehearsalFails(t *testing.T) {
	var steps []string
	clean := newStage(t)
	clean.cfg.OnStep = func(step string) error {
		steps = append(steps, step)
		return nil
	}
	if _, err := clean.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(steps); n < 10 || steps[n-1] != "snapshot" || !slices.Contains(steps, "rehearse") {
		t.Fatalf("steps %v", steps)
	}
	for i, step := range steps {
		for _, kill := range []bool{false, true} {
			w := newStage(t)
			when := fmt.Sprintf("step %d, %s, killed %t", i, step, kill)
			n := 0
			w.cfg.OnStep = func(string) error {
				if n++; n-1 != i {
					return nil
				}
				w.mu.Lock()
				defer w.mu.Unlock()
				w.dead = kill
				return errKilled
			}
			if _, err := w.run(t.Context()); !errors.Is(err, errKilled) {
				t.Errorf("%s: %v", when, err)
			}
			if !kill {
				w.left(when)
			}
			w.dead = false
			for _, s := range w.snapshots { // the sweep of the service removes them, when no row names them
				if s.Metadata[pool.RoleKey] != builder.RoleCaptured || s.Metadata[builder.VersionKey] != "3" {
					t.Errorf("%s: snapshot %+v is left", when, s)
				}
				delete(w.snapshots, s.ID)
			}
			built, err := w.run(t.Context())
			if err != nil {
				t.Fatalf("%s: the next build: %v", when, err)
			}
			w.left(when, built.Snapshot)
		}
	}
	for _, call := range []string{"create 2", "guest 2", "snapshot 2", "delete 1",
		fnruntime.PathRestored + ` {"env":{"COLOR":"red"}} 1`, fnruntime.PathRehearse + " {} 2"} {
		w := newStage(t)
		w.refuse = call
		if _, err := w.run(t.Context()); err == nil {
			t.Errorf("%s failed, and the build did not", call)
		}
		w.left(call)
	}
	for _, call := range []string{"delete 2", "delete snapshot 1"} { // the version is built; a sweep removes the rest
		w := newStage(t)
		w.refuse = call
		built, err := w.run(t.Context())
		if err != nil || w.from[w.taken[built.Snapshot]] == "" {
			t.Errorf("%s failed: %v", call, err)
		}
		if len(w.machines) > 0 || len(w.snapshots) != 2 {
			t.Errorf("%s failed: machines %v, snapshots %v", call, w.machines, w.snapshots)
		}
	}
}

// TestBrokenRehearsal checks what the user reads whose handler does not survive a restore, or fails then.
func TestBrokenRehearsal(t *testing.T) {
	for path, want := range map[string]string{
		fnruntime.PathRestored: "the handler could not be loaded: Broken: it is broken",
		fnruntime.PathRehearse: "the process of the handler failed after its machine was restored: " +
			"Broken: it is broken",
	} {
		w := newStage(t)
		w.broken = path
		if _, err := w.run(t.Context()); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
		w.left(path)
	}
}
