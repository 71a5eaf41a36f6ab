package builder_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/buildevent"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/app"
	"github.com/pandastack/pandastack/internal/control/app/appspec"
	"github.com/pandastack/pandastack/internal/control/app/builder"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/guest/buildplan"
	"github.com/pandastack/pandastack/internal/guest/buildplan/plantest"
)

// world is a builder over machines that are directories, in which the program itself runs.
type world struct {
	*builder.Builder
	t       *testing.T
	cfg     builder.Config
	dir     string
	uploads map[string][]byte
	files   map[string]string // by key and name
	log     []string
	onStep  func(string) error
	image   func(builder.ImageBuild) (api.Template, error)
	main    func(p buildplan.Place, ctx context.Context, args []string, in io.Reader, out io.Writer) int

	scripted bool           // there is nothing in a machine
	running  sync.WaitGroup // programs

	mu        sync.Mutex
	next      int
	machines  map[api.SandboxID]api.Sandbox
	snapshots map[api.SnapshotID]api.Snapshot
	creates   []api.CreateRequest
	verbs     []string
	fail      string // the call that fails once
}

func newWorld(t *testing.T) *world {
	t.Helper()
	plantest.Lock(t)
	w := &world{t: t, dir: t.TempDir(), uploads: map[string][]byte{}, files: map[string]string{},
		machines: map[api.SandboxID]api.Sandbox{}, snapshots: map[api.SnapshotID]api.Snapshot{}}
	w.main = func(p buildplan.Place, ctx context.Context, args []string, in io.Reader, out io.Writer) int {
		return p.Main(ctx, args, in, out, out)
	}
	program := filepath.Join(w.dir, "program")
	if err := os.WriteFile(program, []byte("program"), 0o755); err != nil {
		t.Fatal(err)
	}
	w.cfg = builder.Config{Template: "base", Program: program, OnStep: func(step string) error {
		if w.onStep != nil {
			return w.onStep(step)
		}
		return nil
	}}
	w.start()
	return w
}

// start makes the builder, as a program that starts does.
func (w *world) start() {
	w.t.Helper()
	b, err := builder.New(w.cfg, builder.Deps{Sandboxes: w, Finder: w, Templates: w, Uploads: uploads{w},
		Files: files{w}, Images: images{w}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		w.t.Fatal(err)
	}
	w.Builder = b
}

func (w *world) call(name string) error {
	if w.fail == name {
		w.fail = ""
		return api.Errorf(api.Unavailable, "%s failed", name)
	}
	return nil
}

func (w *world) at(id string) string { return filepath.Join(w.dir, id) }

func (w *world) clone(from, to string) {
	if w.scripted {
		return
	}
	if out, err := exec.Command("cp", "-a", w.at(from), w.at(to)).CombinedOutput(); err != nil {
		w.t.Errorf("copy a machine: %v: %s", err, out)
	}
}

func (w *world) Create(_ context.Context, p auth.Principal, req api.CreateRequest) (api.Sandbox, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next++
	box := api.Sandbox{ID: api.SandboxID(fmt.Sprintf("sbx%d", w.next)), Metadata: req.Metadata}
	w.creates = append(w.creates, req)
	if p.Owner.Kind != app.OwnerKind {
		w.t.Errorf("a machine was made for %v", p)
	}
	if req.FromSnapshot == "" {
		if err := os.MkdirAll(w.at(string(box.ID)), 0o755); err != nil {
			return box, err
		}
	} else if _, known := w.snapshots[req.FromSnapshot]; known {
		w.clone(string(req.FromSnapshot), string(box.ID))
	} else {
		return box, api.Errorf(api.NotFound, "snapshot %s not found", req.FromSnapshot)
	}
	w.machines[box.ID] = box
	return box, w.call("create")
}

func (w *world) Delete(_ context.Context, _ auth.Principal, id api.SandboxID) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, known := w.machines[id]; !known {
		return api.Errorf(api.NotFound, "sandbox not found")
	}
	delete(w.machines, id)
	return w.call("delete")
}

func (w *world) Guest(_ context.Context, _ auth.Principal, id api.SandboxID) (guestapi.Guest, error) {
	return &guest{w: w, id: id}, w.call("guest")
}

func (w *world) TakeSnapshot(
	_ context.Context,
	_ auth.Principal,
	id api.SandboxID,
	req api.SnapshotRequest,
) (api.Snapshot, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.call("snapshot"); err != nil {
		return api.Snapshot{}, err
	}
	if err := req.Validate(); err != nil {
		return api.Snapshot{}, err
	}
	w.next++
	s := api.Snapshot{ID: api.SnapshotID(fmt.Sprintf("snp%d", w.next)), Name: req.Name, Metadata: req.Metadata}
	w.clone(string(id), string(s.ID))
	w.snapshots[s.ID] = s
	return s, nil
}

func (w *world) DeleteSnapshot(_ context.Context, _ auth.Principal, id api.SnapshotID) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.snapshots, id)
	return w.call("delete snapshot")
}

func (w *world) Machines(context.Context, auth.Principal) (all []api.Sandbox, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.machines {
		all = append(all, m)
	}
	return all, nil
}

func (w *world) Snapshots(context.Context, auth.Principal) (all []api.Snapshot, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.snapshots {
		all = append(all, s)
	}
	return all, nil
}

func (w *world) Resolve(_ context.Context, _ auth.Principal, name string) (api.Template, error) {
	return api.Template{Name: name, Host: name, MemoryMB: 512, Start: "nginx"}, nil
}

// uploads are the uploads of a world.
type uploads struct{ *world }

func (w uploads) Open(_ context.Context, _ api.AppID, id string) (io.ReadCloser, error) {
	data, known := w.uploads[id]
	if !known {
		return nil, api.Errorf(api.NotFound, "upload not found")
	}
	return io.NopCloser(bytes.NewReader(data)), nil
}

// files keeps the files of apps.
type files struct{ *world }

func (w files) Delete(_ context.Context, key string) error {
	maps.DeleteFunc(w.files, func(name, _ string) bool { return strings.HasPrefix(name, key+"/") })
	return nil
}

func (w files) Store(_ context.Context, key string, archive io.Reader) error {
	for in := tar.NewReader(archive); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		data, err := io.ReadAll(in)
		if err != nil {
			return err
		}
		w.files[key+"/"+h.Name] = string(data)
	}
}

// images are the images of a world.
type images struct{ *world }

func (w images) Build(
	_ context.Context,
	_ auth.Principal,
	b builder.ImageBuild,
	log func(level, step, line string),
) (api.Template, error) {
	log("info", "image", "built")
	return w.image(b)
}

func (w images) Forget(context.Context, api.AppID) error { return nil }

// Append implements app.Log.
func (w *world) Append(level, step, line string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, level+" "+step+" "+line)
}

// guest is a machine as a guest: a directory, and the program.
type guest struct {
	guestapi.Guest
	w  *world
	id api.SandboxID
}

func (g *guest) Write(_ context.Context, path string, opt guestapi.WriteOptions, r io.Reader) (guestapi.FileInfo,
	error) {
	data, err := io.ReadAll(r)
	if err != nil || path != buildevent.Program || opt.Mode != 0o755 || string(data) != "program" {
		g.w.t.Errorf("%s was written with %+v (%v)", path, opt, err)
	}
	return guestapi.FileInfo{}, g.w.call("write")
}

func (g *guest) Processes(context.Context) ([]guestapi.ProcessInfo, error) {
	return []guestapi.ProcessInfo{{PID: 7}, {PID: 8, Exit: &guestapi.Exit{}}}, nil
}

func (g *guest) Signal(_ context.Context, ref guestapi.ProcessRef, signal int, group bool) error {
	g.w.mu.Lock()
	defer g.w.mu.Unlock()
	g.w.verbs = append(g.w.verbs, fmt.Sprintf("signal %d %d %t", ref.PID, signal, group))
	return nil
}

func (g *guest) Start(ctx context.Context, spec guestapi.ProcessSpec) (guestapi.Process, error) {
	g.w.mu.Lock()
	defer g.w.mu.Unlock()
	g.w.verbs = append(g.w.verbs, spec.Argv[1])
	if err := g.w.call("start " + spec.Argv[1]); err != nil {
		return nil, err
	}
	if spec.User != "root" || spec.Argv[0] != buildevent.Program {
		g.w.t.Errorf("started %+v", spec)
	}
	in, input := io.Pipe()
	p := &process{events: make(chan guestapi.Event), closed: make(chan struct{}), input: input}
	var place buildplan.Place
	if !g.w.scripted {
		place = plantest.Place(g.w.t, g.w.at(string(g.id)))
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	g.w.running.Go(func() {
		defer cancel()
		defer in.Close() //nolint:errcheck // of a pipe it is nil
		code := g.w.main(place, run, spec.Argv[1:], in, &stdout{p: p})
		p.send(guestapi.Event{Exit: &guestapi.Exit{Code: code}})
	})
	p.kill = cancel
	return p, nil
}

// process is a run of the program.
type process struct {
	guestapi.Process
	events chan guestapi.Event
	closed chan struct{}
	input  *io.PipeWriter
	kill   context.CancelFunc
}

func (p *process) send(e guestapi.Event) bool {
	select {
	case p.events <- e:
		return true
	case <-p.closed:
		return false
	}
}

func (p *process) Next(ctx context.Context) (guestapi.Event, error) {
	select {
	case e := <-p.events:
		return e, nil
	case <-ctx.Done():
		return guestapi.Event{}, context.Cause(ctx)
	}
}

func (p *process) Write(b []byte) (int, error) { return p.input.Write(b) }
func (p *process) CloseInput() error           { return p.input.Close() }
func (p *process) PID() uint32                 { return 1 }

func (p *process) Close() error {
	p.kill() // in these tests a stream is closed when its program has ended, or is to end
	close(p.closed)
	return nil
}

// stdout is the output of a program.
type stdout struct {
	p      *process
	offset int64
}

func (s *stdout) Write(b []byte) (int, error) {
	if !s.p.send(guestapi.Event{Stream: guestapi.StreamStdout, Offset: s.offset, Data: bytes.Clone(b)}) {
		return 0, io.ErrClosedPipe
	}
	s.offset += int64(len(b))
	return len(b), nil
}

// archive makes a tar archive of files: name and content in turns.
func archive(t *testing.T, files ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	out := tar.NewWriter(&b)
	for i := 0; i < len(files); i += 2 {
		if err := out.WriteHeader(&tar.Header{Name: files[i], Mode: 0o644, Size: int64(len(files[i+1])),
			Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Write([]byte(files[i+1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

const shop = api.AppID("app00000000000000000000")

// upload is a build of an upload.
func (w *world) upload(n int, files ...string) app.Build {
	w.t.Helper()
	id := fmt.Sprintf("upl%d", n)
	w.uploads[id] = archive(w.t, files...)
	return app.Build{
		Principal:  auth.Principal{Workspace: "alice", Owner: hostapi.Owner{Kind: app.OwnerKind, ID: string(shop)}},
		App:        store.App{ID: string(shop), Workspace: "alice"},
		Deployment: store.Deployment{ID: fmt.Sprintf("dpl%d", n), App: string(shop)},
		Source:     appspec.Source{Kind: appspec.SourceUpload, Upload: id}, Log: w,
	}
}

// node is the source of an app without dependencies, whose layers are worth keeping.
func node(content string) []string {
	return []string{"package.json", `{"scripts":{"start":"node ."}}`, "server.js", content, "railpack.json",
		`{"steps":{"install":{"commands":[{"src":"package.json","dest":"package.json"},"echo installing"]},
		"build":{"commands":["wc -c server.js > built.txt"]}}}`}
}

func (w *world) build(in app.Build) app.Built {
	w.t.Helper()
	w.log, w.verbs, w.creates = nil, nil, nil
	built, err := w.Build(w.t.Context(), in)
	if err != nil {
		w.t.Fatalf("Build() = %v\n%s", err, strings.Join(w.log, "\n"))
	}
	return built
}

// names returns the roles of the snapshots that there are, sorted.
func (w *world) names() (roles []string) {
	for _, s := range w.snapshots {
		roles = append(roles, s.Metadata[app.RoleKey])
	}
	slices.Sort(roles)
	return roles
}

func (w *world) noMachines() {
	w.t.Helper()
	w.running.Wait()
	if len(w.machines) > 0 {
		w.t.Errorf("%d machines are left", len(w.machines))
	}
}

func TestUploadIsBuilt(t *testing.T) {
	w := newWorld(t)
	got := w.build(w.upload(1, node("hello")...))
	r := got.Result
	if r.Start != "npm run start" || r.Framework != "node" || r.Workdir != "/app" || r.User != "root" || r.Steps == 0 {
		t.Errorf("result %+v", r)
	}
	data, err := os.ReadFile(filepath.Join(w.at(string(got.Snapshot)), "app/built.txt"))
	if err != nil || string(data) != "5 server.js\n" {
		t.Errorf("the snapshot has %q (%v)", data, err)
	}
	if m := w.snapshots[got.Snapshot].Metadata; m[app.RoleKey] != "built" || m["deployment"] != "dpl1" {
		t.Errorf("the snapshot has the metadata %v", m)
	}
	w.noMachines()
	if want := []string{"setup", "unpack", "plan", "restore", "pack"}; !slices.Equal(w.verbs[:5], want) {
		t.Errorf("verbs %v, want %v first", w.verbs, want)
	}
}

func TestUnchangedStepsAreTakenFromEarlierBuilds(t *testing.T) {
	w := newWorld(t)
	first := w.build(w.upload(1, node("one")...))
	installs := func() int { return strings.Count(strings.Join(w.log, "\n"), "install installing") }
	if installs() != 1 {
		t.Fatalf("the first build installed %d times:\n%s", installs(), strings.Join(w.log, "\n"))
	}
	second := w.build(w.upload(2, node("second")...))
	if installs() != 0 || second.Result.StepsCached == 0 {
		t.Errorf("the second build installed again, with %d steps taken over", second.Result.StepsCached)
	}
	data, err := os.ReadFile(filepath.Join(w.at(string(second.Snapshot)), "app/built.txt"))
	if err != nil || string(data) != "6 server.js\n" || first.Snapshot == second.Snapshot {
		t.Errorf("the second snapshot has %q (%v)", data, err)
	}
	again := w.upload(3, node("second")...)
	again.Source.NoCache = true
	if w.build(again); installs() != 1 {
		t.Errorf("a build without layers installed %d times", installs())
	}
	stranger := w.upload(4, node("second")...)
	stranger.Source.Untrusted = true
	if w.build(stranger); installs() != 1 {
		t.Errorf("a build of an untrusted source took layers of trusted ones")
	}
	changed := node("second")
	changed[1] = `{"scripts":{"start":"node other"}}`
	if w.build(w.upload(5, changed...)); installs() != 1 {
		t.Errorf("a build with another list of dependencies installed %d times", installs())
	}
	layers := 0
	for _, role := range w.names() {
		if role == "layer" {
			layers++
		}
	}
	if layers > 4 {
		t.Errorf("%d layers are kept, want those of the last build: %v", layers, w.names())
	}
}

func TestStaticFilesLeaveTheMachine(t *testing.T) {
	w := newWorld(t)
	got := w.build(w.upload(1, "index.html", "hi", "css/a.css", "x"))
	want := appspec.Static{Dir: "/app", Files: "dpl1"}
	if got.Snapshot != "" || got.Result.Static == nil || *got.Result.Static != want || got.Result.Start != "" {
		t.Errorf("built %+v with %+v, want %+v", got, got.Result.Static, want)
	}
	if w.files["dpl1/index.html"] != "hi" || w.files["dpl1/css/a.css"] != "x" {
		t.Errorf("files %v", w.files)
	}
	w.noMachines()
}

func TestFailuresTellStepOutputAndRemedy(t *testing.T) {
	w := newWorld(t)
	in := w.upload(1, "package.json", `{"scripts":{"start":"node ."}}`)
	in.Settings.InstallCommand = "true"
	in.Settings.BuildCommand = `for i in $(seq 50); do echo "line $i $TOKEN"; done; exit 3`
	in.Variables = []appspec.Variable{{Name: "TOKEN", Value: "hunter2", Secret: true}}
	_, err := w.Build(t.Context(), in)
	e := api.AsError(err)
	lines := strings.Split(e.Message, "\n")
	if e.Code != api.Invalid || len(lines) != 41 || lines[40] != "line 50 "+api.MaskedValue ||
		lines[1] != "line 11 "+api.MaskedValue || !strings.HasPrefix(lines[0], "build: for i in") ||
		!strings.HasSuffix(lines[0], "failed: exit status 3: see the end of the log") {
		t.Errorf("Build() = %s %q", e.Code, e.Message)
	}
	w.noMachines()
	if slices.Contains(w.names(), "built") {
		t.Errorf("snapshots %v are left", w.names())
	}
}

func TestUntrustedSourcesSeeNoVariables(t *testing.T) {
	w := newWorld(t)
	in := w.upload(1, "package.json", `{"scripts":{"start":"node ."}}`)
	in.Settings.InstallCommand, in.Settings.BuildCommand = "true", `echo "token is ${TOKEN:-absent}"`
	in.Variables = []appspec.Variable{{Name: "TOKEN", Value: "hunter2", Secret: true}}
	in.Source.Untrusted = true
	w.build(in)
	if !slices.Contains(w.log, "info build token is absent") {
		t.Errorf("log:\n%s", strings.Join(w.log, "\n"))
	}
}

func TestHostileMachines(t *testing.T) {
	for name, c := range map[string]struct {
		say  string
		code int
		want string
	}{
		"silent": {"", 0, "the machine of the build did not say what it found: deploy again"},
		"junk": {strings.Repeat("junk\n", 1000), 0,
			"the machine of the build did not say what it found: deploy again"},
		"bad plan": {`{"kind":"plan","plan":{"steps":[{"name":"a","key":"../../x"}]}}` + "\n", 0,
			"the machine of the build did not say what it found: deploy again"},
		"crash":     {"", 139, "plan of the build ended with status 139: "},
		"one giant": {strings.Repeat("x", 70<<20), 0, "the build printed more than 64 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			program := w.main
			w.main = func(p buildplan.Place, ctx context.Context, args []string, in io.Reader, out io.Writer) int {
				if args[0] != "plan" {
					return program(p, ctx, args, in, out)
				}
				for text := c.say; text != ""; {
					n := min(len(text), 1<<20)
					if _, err := out.Write([]byte(text[:n])); err != nil {
						return 1
					}
					text = text[n:]
				}
				return c.code
			}
			_, err := w.Build(t.Context(), w.upload(1, node("x")...))
			if got := api.AsError(err).Message; got != c.want {
				t.Errorf("Build() = %q, want %q", got, c.want)
			}
			w.noMachines()
		})
	}
}

func TestBuildsEndInTime(t *testing.T) {
	w := newWorld(t)
	w.cfg.Timeout = 50 * time.Millisecond
	w.start()
	w.main = func(_ buildplan.Place, ctx context.Context, _ []string, _ io.Reader, _ io.Writer) int {
		<-ctx.Done()
		return 137
	}
	_, err := w.Build(t.Context(), w.upload(1, node("x")...))
	if api.CodeOf(err) != api.Timeout || !strings.Contains(err.Error(), "apps.build_timeout") {
		t.Errorf("Build() = %v, want a timeout that names the setting", err)
	}
	w.noMachines()
}

func TestCanceledBuildsLeaveNothing(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := api.Errorf(api.Canceled, "canceled")
	w.main = func(_ buildplan.Place, run context.Context, _ []string, _ io.Reader, _ io.Writer) int {
		cancel(stop)
		<-run.Done()
		return 137
	}
	if _, err := w.Build(ctx, w.upload(1, node("x")...)); !errors.Is(err, stop) {
		t.Errorf("Build() = %v, want %v", err, stop)
	}
	w.noMachines()
}

// stepsOf returns the steps of a build.
func stepsOf(t *testing.T, static bool) (steps []string) {
	t.Helper()
	w := newWorld(t)
	w.script(static)
	w.onStep = func(step string) error {
		steps = append(steps, step)
		return nil
	}
	w.build(w.upload(1, "a", ""))
	return steps
}

// TestFailureAndKillAfterEveryStep fails a build after each step, or ends the process there, and builds again.
func TestFailureAndKillAfterEveryStep(t *testing.T) {
	for _, static := range []bool{false, true} {
		steps := stepsOf(t, static)
		if len(steps) < 8 {
			t.Fatalf("a build has only the steps %q", steps)
		}
		for i, step := range steps {
			for _, kill := range []bool{false, true} {
				t.Run(fmt.Sprintf("static=%t/%d %s kill=%t", static, i, step, kill), func(t *testing.T) {
					w := newWorld(t)
					w.script(static)
					n := 0
					broken := api.Errorf(api.Unavailable, "broken")
					w.onStep = func(string) error {
						if n++; n != i+1 {
							return nil
						}
						if kill {
							panic(broken)
						}
						return broken
					}
					in := w.upload(1, "a", "")
					if err := w.buildOrDie(in, kill); !errors.Is(err, broken) {
						t.Fatalf("Build() = %v, want %v", err, broken)
					}
					if !kill {
						w.noMachines()
						if slices.Contains(w.names(), "built") {
							t.Errorf("snapshots %v are left", w.names())
						}
					}
					w.onStep = nil
					w.start()
					got := w.build(in)
					w.noMachines()
					want := 1
					if got.Snapshot == "" {
						want = 0
					}
					builts := 0
					for _, role := range w.names() {
						if role == "built" {
							builts++
						}
					}
					if builts != want {
						t.Errorf("%d snapshots of deployments after the second build, want %d: %v", builts, want,
							w.names())
					}
				})
			}
		}
	}
}

// script makes the machines say what a program would, without one: a plan with a step to keep and one not to keep.
func (w *world) script(static bool) {
	w.scripted = true
	w.main = func(_ buildplan.Place, _ context.Context, args []string, in io.Reader, out io.Writer) int {
		say := func(e buildevent.Event) int {
			if err := json.NewEncoder(out).Encode(e); err != nil {
				return 1
			}
			return 0
		}
		switch args[0] {
		case "plan":
			return say(buildevent.Event{Kind: buildevent.KindPlan, Plan: &buildevent.Plan{Steps: []buildevent.Step{
				{Name: "install", Key: strings.Repeat("1", 64), Keep: true}, {Name: "build", Key: strings.Repeat("2",
					64)},
			}}})
		case "finish":
			result := &buildevent.Result{Start: "run", Workdir: "/app"}
			if static {
				result.Static = &buildevent.Static{Dir: "/app"}
			}
			return say(buildevent.Event{Kind: buildevent.KindResult, Result: result})
		case "pack":
			if err := tar.NewWriter(out).Close(); err != nil {
				return 1
			}
			return 0
		}
		if _, err := io.Copy(io.Discard, in); err != nil {
			return 1
		}
		return 0
	}
}

// buildOrDie builds. With kill it ends as a process that is killed does: nothing is cleaned up.
func (w *world) buildOrDie(in app.Build, kill bool) (err error) {
	if kill {
		boxes := map[api.SandboxID]api.Sandbox{}
		snapshots := map[api.SnapshotID]api.Snapshot{}
		inner := w.onStep
		w.onStep = func(step string) (err error) {
			defer func() {
				if e, ok := recover().(error); ok { // what a killed process leaves
					maps.Copy(boxes, w.machines)
					maps.Copy(snapshots, w.snapshots)
					err = e
				}
			}()
			return inner(step)
		}
		defer func() {
			w.running.Wait()
			w.machines, w.snapshots = boxes, snapshots
		}()
	}
	_, err = w.Build(w.t.Context(), in)
	return err
}

func TestFailingCallsLeaveNothing(t *testing.T) {
	for _, call := range []string{
		"create", "guest", "write", "snapshot", "delete", "start setup", "start unpack", "start plan", "start restore",
		"start pack", "start step", "start finish",
	} {
		t.Run(call, func(t *testing.T) {
			w := newWorld(t)
			w.script(false)
			w.fail = call
			if _, err := w.Build(t.Context(), w.upload(1, "a", "")); err == nil {
				t.Error("Build() = nil although a call failed")
			}
			w.noMachines()
			if slices.Contains(w.names(), "built") {
				t.Errorf("snapshots %v are left", w.names())
			}
			w.build(w.upload(2, "a", ""))
		})
	}
}

func TestDockerfileIsHandedOver(t *testing.T) {
	w := newWorld(t)
	var got builder.ImageBuild
	names := ""
	w.image = func(b builder.ImageBuild) (api.Template, error) {
		got = b
		for in := tar.NewReader(b.Context); ; {
			h, err := in.Next()
			if err != nil {
				break
			}
			names += " " + h.Name
		}
		return api.Template{Name: "app-x", Start: "node server.js", Workdir: "/srv",
			Env: map[string]string{"A": "b"}}, nil
	}
	built := w.build(w.upload(1, "Dockerfile", "FROM x\n", "src/a", "1"))
	if got.Dockerfile != "FROM x\n" || names != " Dockerfile src src/a" || got.App != shop {
		t.Errorf("built %+v with the files%s", got, names)
	}
	r := built.Result
	if r.Start != "node server.js" || r.Workdir != "/srv" || r.Env["A"] != "b" || r.Framework != "docker" {
		t.Errorf("result %+v", r)
	}
	if last := w.verbs[len(w.verbs)-1]; last != "signal 7 9 true" {
		t.Errorf("the last call is %s, want the end of what the template runs", last)
	}
	w.noMachines()
	refused := api.Errorf(api.Invalid, "no such image")
	w.image = func(builder.ImageBuild) (api.Template, error) { return api.Template{}, refused }
	if _, err := w.Build(t.Context(), w.upload(2, "Dockerfile", "FROM x\n")); !errors.Is(err, refused) {
		t.Errorf("Build() = %v, want %v", err, refused)
	}
	w.noMachines()
}

func TestImagesAndTemplates(t *testing.T) {
	w := newWorld(t)
	w.image = func(b builder.ImageBuild) (api.Template, error) {
		return api.Template{Name: b.Image, Start: "nginx -g x"}, nil
	}
	in := w.upload(1, "x", "")
	in.Source = appspec.Source{Kind: appspec.SourceImage, Image: "nginx:1"}
	if got := w.build(in); got.Result.Start != "nginx -g x" || got.Snapshot == "" {
		t.Errorf("built %+v", got)
	}
	in.Source = appspec.Source{Kind: appspec.SourceTemplate}
	in.Settings.Template, in.Settings.StartCommand = "mine", "run"
	if got := w.build(in); got.Result.Start != "run" || w.creates[0].Template != "mine" {
		t.Errorf("built %+v of %+v", got, w.creates)
	}
	w.image = func(builder.ImageBuild) (api.Template, error) { return api.Template{Name: "quiet"}, nil }
	in.Source, in.Settings.StartCommand = appspec.Source{Kind: appspec.SourceImage, Image: "busybox"}, ""
	if _, err := w.Build(t.Context(), in); api.CodeOf(err) != api.Invalid || !strings.Contains(err.Error(),
		"start_command") {
		t.Errorf("Build() = %v, want an error of start_command", err)
	}
}
