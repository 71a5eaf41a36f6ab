// Package builder makes snapshots of machines in which functions are loaded.
//
// A build begins with a machine of the template, or of a layer, which is a snapshot of one in which the dependencies
// are installed. A layer is known by all that its content depends on, and is made once. The bundle is unpacked over it,
// the program pandastack-runtime loads the handler, an optional request warms it up, and the machine is captured. With
// Config.Rehearse a machine of that capture is asked as those of invocations are, and captured in its place.
//
// Everything that a build makes belongs to the function. What a build that was killed has left is removed by the next
// build of the version, or with the function. Bundles, and what machines say, are not trusted.
package builder

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/fnruntime"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/function/pool"
	"github.com/pandastack/pandastack/internal/control/sandbox"
)

// Config configures a Builder. Program is required; zero durations mean the default.
type Config struct {
	Program     string        // path of pandastack-runtime on this host
	Timeout     time.Duration // of one build; 15 min
	LoadTimeout time.Duration // until the handler is loaded; 1 min
	Mirrors     Mirrors
	// Rehearse captures a version from a machine that was itself restored, and has answered requests since. Machines of
	// the capture are then ready sooner if their monitors keep translated code.
	Rehearse bool
	// OnStep, for tests, is called after every step of a build; an error fails the build there.
	OnStep func(step string) error
}

// Mirrors says how machines reach what they download. Users can read all of it.
type Mirrors struct {
	Certificates string            // PEM of authorities to trust, beside those of the template
	Hosts        []string          // lines of /etc/hosts
	Env          map[string]string // of package managers
}

// Sandboxes is the part of sandbox.Service that builds use.
type Sandboxes interface {
	Create(ctx context.Context, p auth.Principal, req api.CreateRequest) (api.Sandbox, error)
	Delete(ctx context.Context, p auth.Principal, id api.SandboxID) error
	List(ctx context.Context, p auth.Principal, f api.SandboxFilter) (sandbox.Page, error)
	Guest(ctx context.Context, p auth.Principal, id api.SandboxID) (guestapi.Guest, error)
	TakeSnapshot(ctx context.Context, p auth.Principal, id api.SandboxID, req api.SnapshotRequest) (api.Snapshot, error)
	Snapshots(ctx context.Context, p auth.Principal, f api.SnapshotFilter) (sandbox.SnapshotPage, error)
	DeleteSnapshot(ctx context.Context, p auth.Principal, id api.SnapshotID) error
}

// Templates resolves names of templates.
type Templates interface {
	Resolve(ctx context.Context, p auth.Principal, name string) (api.Template, error)
}

// Log takes the lines of a build's log.
type Log interface {
	// Append adds a line. Level is info, warn or error; step names what is being done.
	Append(level, step, line string)
}

// Roles of what a build makes, in the metadata of machines and snapshots under pool.RoleKey.
const (
	RoleBuild    = "build"    // a machine
	RoleLayer    = "layer"    // a snapshot with dependencies; its name is what it depends on
	RoleCaptured = "captured" // a snapshot of a version
)

// VersionKey is the key of the metadata with the number of the version.
const VersionKey = "version"

// Build is a version to be built.
type Build struct {
	Principal  auth.Principal // that acts for the function
	Name       string         // of the function
	Version    int64
	Runtime    api.FunctionRuntime
	Entrypoint string
	Template   string
	MemoryMB   int
	Network    *api.Network
	WarmUp     *api.WarmUp
	Timeout    time.Duration // of the warm-up
	Env        map[string]string
	Instance   string // this process
	Open       func(ctx context.Context) (io.ReadCloser, error)
	Log        Log
}

// Built is what a build left.
type Built struct {
	Layer    api.SnapshotID // "": there is nothing to install
	Snapshot api.SnapshotID
	Style    string
}

// Builder builds versions of functions. Make it with New.
type Builder struct {
	cfg       Config
	boxes     Sandboxes
	templates Templates
	log       *slog.Logger
}

// New returns a Builder.
func New(cfg Config, boxes Sandboxes, templates Templates, log *slog.Logger) (*Builder, error) {
	if cfg.Program == "" || boxes == nil || templates == nil || log == nil {
		return nil, errors.New("builder: program, sandboxes, templates and log are required")
	}
	cfg.Timeout = cmp.Or(cfg.Timeout, 15*time.Minute)
	cfg.LoadTimeout = cmp.Or(cfg.LoadTimeout, time.Minute)
	return &Builder{cfg: cfg, boxes: boxes, templates: templates, log: log}, nil
}

// work is one build.
type work struct {
	*Builder
	Build
	program  string // SHA-256
	template api.Template
}

// cleanTimeout bounds the removal of what a build leaves.
const cleanTimeout = time.Minute

// Build returns when a version is built. Errors that the user can do something about are *api.Error.
func (b *Builder) Build(ctx context.Context, in Build) (built Built, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, b.cfg.Timeout, api.Errorf(api.Timeout,
		"the build took longer than %s: the server's setting functions.build_timeout bounds it", b.cfg.Timeout))
	defer cancel()
	w := &work{Builder: b, Build: in}
	if err := w.clean(ctx); err != nil {
		return built, err
	}
	defer func() {
		end, cancel := detached(ctx)
		defer cancel()
		if e := w.clean(end); e != nil { // the next build of the version or the removal of the function does it
			b.log.Warn("removing the machines of a build failed", "function", in.Principal.Owner.ID, "err", e)
		}
	}()
	built, err = w.build(ctx)
	if because := context.Cause(ctx); err != nil && because != nil {
		err = because
	}
	return built, err
}

func (w *work) build(ctx context.Context) (built Built, err error) {
	if w.program, err = fileDigest(w.cfg.Program); err != nil {
		return built, fmt.Errorf("the program of functions cannot be read: %w", err)
	}
	if w.template, err = w.templates.Resolve(ctx, w.Principal, w.Template); err != nil {
		if api.CodeOf(err) == api.NotFound {
			err = api.Wrap(api.Invalid, err, "template: "+err.Error()).With("field", "template")
		}
		return built, err
	}
	archive, key, err := w.manifests(ctx)
	if err != nil {
		return built, err
	}
	if key != "" {
		if built.Layer, err = w.layer(ctx, archive, key); err != nil {
			return built, err
		}
	}
	m, err := w.start(ctx, built.Layer, w.Network)
	if err != nil {
		return built, err
	}
	if err := m.unpack(ctx); err != nil {
		return built, err
	}
	if built.Style, err = m.load(ctx); err != nil {
		return built, err
	}
	snap, err := m.capture(ctx)
	if err == nil && w.cfg.Rehearse {
		snap, err = m.rehearse(ctx, snap)
	}
	if err != nil {
		return built, err
	}
	built.Snapshot = snap
	w.Log.Append("info", "capture", "the machine with the loaded handler was captured")
	return built, nil
}

func (w *work) metadata(role string) map[string]string {
	return map[string]string{pool.RoleKey: role, VersionKey: strconv.FormatInt(w.Version, 10),
		pool.InstanceKey: w.Instance}
}

// did calls the hook of tests.
func (w *work) did(step string) error {
	if w.cfg.OnStep == nil {
		return nil
	}
	return w.cfg.OnStep(step)
}

// manifests reads what the dependencies of the bundle depend on.
func (w *work) manifests(ctx context.Context) (archive []byte, key string, err error) {
	r, err := w.Open(ctx)
	if err != nil {
		return nil, "", err
	}
	defer r.Close()
	archive, key, err = fnruntime.Manifests(r)
	if errors.Is(err, fnruntime.ErrBundle) {
		err = api.Wrap(api.Invalid, err, "code: "+err.Error()).With("field", "code")
	}
	return archive, key, err
}

// layer returns the snapshot with the dependencies, and makes it if the function has none.
func (w *work) layer(ctx context.Context, archive []byte, key string) (api.SnapshotID, error) {
	mirrors, err := json.Marshal(w.cfg.Mirrors)
	if err != nil {
		return "", err
	}
	name := digest("layer", w.template.Host, w.program, strconv.Itoa(w.memory()), string(w.Runtime), key,
		string(mirrors))
	page, err := w.boxes.Snapshots(ctx, w.Principal, api.SnapshotFilter{})
	if err != nil {
		return "", err
	}
	for _, s := range page.Snapshots {
		if s.Name == name && s.Metadata[pool.RoleKey] == RoleLayer {
			w.Log.Append("info", "install", "the dependencies have not changed")
			return s.ID, nil
		}
	}
	m, err := w.start(ctx, "", nil)
	if err != nil {
		return "", err
	}
	if err := m.trust(ctx); err != nil {
		return "", err
	}
	open := w.Open
	if archive != nil {
		open = func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil }
	}
	if err := m.push(ctx, open); err != nil {
		return "", err
	}
	w.Log.Append("info", "install", "installing dependencies")
	err = m.run(ctx, fnruntime.BuildRequest{Runtime: string(w.Runtime), Entrypoint: w.Entrypoint,
		Env: w.cfg.Mirrors.Env, Install: true})
	if err != nil {
		return "", err
	}
	snap, err := w.boxes.TakeSnapshot(ctx, w.Principal, m.id,
		api.SnapshotRequest{Name: name, Metadata: w.metadata(RoleLayer)})
	if err != nil {
		return "", err
	}
	return snap.ID, errors.Join(w.boxes.Delete(ctx, w.Principal, m.id), w.did("layer"))
}

func (w *work) memory() int { return max(w.MemoryMB, w.template.MemoryMB) }

// clean removes the machines of builds of this version.
func (w *work) clean(ctx context.Context) error {
	page, err := w.boxes.List(ctx, w.Principal, api.SandboxFilter{})
	if err != nil {
		return err
	}
	var all error
	for _, box := range page.Sandboxes {
		if box.Metadata[pool.RoleKey] != RoleBuild || box.Metadata[VersionKey] != strconv.FormatInt(w.Version, 10) {
			continue
		}
		if err := w.boxes.Delete(ctx, w.Principal, box.ID); err != nil && api.CodeOf(err) != api.NotFound &&
			api.CodeOf(err) != api.Gone {
			all = errors.Join(all, err)
		}
	}
	return all
}

// Executable opens the program of functions.
func (b *Builder) Executable() (*os.File, error) { return os.Open(b.cfg.Program) }

// digest returns a hash of parts.
func digest(parts ...string) string {
	sum := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(sum, "%d %s\n", len(p), p)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// fileDigest returns a hash of a file of this host.
func fileDigest(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	_, err = io.Copy(sum, f)
	return hex.EncodeToString(sum.Sum(nil)), err
}
