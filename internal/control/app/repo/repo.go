// Package repo keeps the git repositories that users push their apps to.
//
// The bare repository of an app is on a volume that the app owns. git runs in a small machine that has the volume and
// no network, so that nothing that a client sends is unpacked on the host. The machine is made for the first request
// and ends, with the volume unmounted, some time after the last.
//
// All methods may be called concurrently. Run ends machines that are idle.
package repo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/app"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
	"github.com/pandastack/pandastack/internal/control/sandbox/keyed"
	"github.com/pandastack/pandastack/internal/control/volume"
)

// Role is the value of the metadata app.RoleKey that the machines of repositories have.
const Role = "git"

// Dir is the directory of the repository in its volume.
const Dir = "repo.git"

// mount is where a machine has its volume.
const mount = "/repository"

// VolumeName returns the name of the volume that has the repository of an app.
func VolumeName(id api.AppID) string { return "git-" + string(id) }

// Config configures a Service. Zero durations mean the default.
type Config struct {
	Template  string // of the machines; it has git
	VolumeMiB int    // size of a repository's volume
	PushMiB   int    // that one push may send

	Idle     time.Duration // after which a machine ends; 2 min
	Timeout  time.Duration // of one request; 15 min
	Interval time.Duration // between looks at idle machines; 5 s
}

// Sandboxes are the methods of *sandbox.Service that repositories need.
type Sandboxes interface {
	Create(ctx context.Context, p auth.Principal, req api.CreateRequest) (api.Sandbox, error)
	List(ctx context.Context, p auth.Principal, f api.SandboxFilter) (sandbox.Page, error)
	Guest(ctx context.Context, p auth.Principal, id api.SandboxID) (guestapi.Guest, error)
	Delete(ctx context.Context, p auth.Principal, id api.SandboxID) error
}

// Volumes are the methods of *volume.Service that repositories need.
type Volumes interface {
	Get(ctx context.Context, p auth.Principal, name string) (api.Volume, error)
	CreateFor(
		ctx context.Context,
		p auth.Principal,
		owner hostapi.Owner,
		req api.CreateVolumeRequest,
		disk volume.Disk,
	) (api.Volume, error)
	Detach(
		ctx context.Context,
		p auth.Principal,
		box api.SandboxID,
		name string,
		force bool,
	) (api.Sandbox, error)
}

// Service keeps repositories. Make it with New.
type Service struct {
	cfg     Config
	boxes   Sandboxes
	volumes Volumes
	log     *slog.Logger
	locks   keyed.Locks // by app, held while a machine is made or ended; taken before mu

	mu       sync.Mutex
	machines map[api.AppID]*machine // guarded by mu
}

// machine is the machine of a repository. users and idle are guarded by Service.mu.
type machine struct {
	app   api.AppID
	box   api.SandboxID
	p     auth.Principal
	users int
	idle  time.Time // since when it has no users
}

// New returns a Service. It touches neither sandboxes nor volumes.
func New(cfg Config, boxes Sandboxes, volumes Volumes, log *slog.Logger) (*Service, error) {
	if cfg.Template == "" || cfg.VolumeMiB < 1 || cfg.PushMiB < 1 || boxes == nil || volumes == nil || log == nil {
		return nil, errors.New("repo: a template, sizes, sandboxes, volumes and log are required")
	}
	for _, d := range []struct {
		at       *time.Duration
		standard time.Duration
	}{{&cfg.Idle, 2 * time.Minute}, {&cfg.Timeout, 15 * time.Minute}, {&cfg.Interval, 5 * time.Second}} {
		if *d.at <= 0 {
			*d.at = d.standard
		}
	}
	return &Service{cfg: cfg, boxes: boxes, volumes: volumes, log: log, machines: map[api.AppID]*machine{}}, nil
}

// Program is the program of git that serves a request.
type Program string

// The programs.
const (
	UploadPack  Program = "upload-pack"  // for fetch and clone
	ReceivePack Program = "receive-pack" // for push
)

// Request is what a client of a repository asks.
type Request struct {
	Program   Program
	Advertise bool   // of the refs; In is not read
	Protocol  string // as the header Git-Protocol has it
	In        io.Reader
	Out       io.Writer
}

// Serve serves a request with the repository of an app, which is made if it is missing.
//
// It returns when git has ended and what it wrote is on the medium. Errors are *api.Error.
func (s *Service) Serve(ctx context.Context, a api.App, req Request) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.Timeout,
		api.Errorf(api.Timeout, "git took longer than %s", s.cfg.Timeout))
	defer cancel()
	g, leave, err := s.open(ctx, a)
	if err != nil {
		return api.AsError(err)
	}
	defer leave()
	if err := s.run(ctx, g, a, req); err != nil {
		return api.AsError(err)
	}
	return nil
}

// script runs git for one request. $1 is the repository, $2 its first branch, and the rest the command.
//
// git init changes nothing in a repository that is there.
const script = `set -e
repository=$1 branch=$2
shift 2
git init --quiet --bare --initial-branch="$branch" "$repository" >&2
status=0
git "$@" "$repository" || status=$?
sync -f "$repository"
exit $status`

// maxComplaint bounds what is kept of what git prints to standard error.
const maxComplaint = 4 << 10

func (s *Service) run(ctx context.Context, g guestapi.Guest, a api.App, req Request) error {
	branch := a.GitBranch
	if branch == "" {
		branch = "main"
	}
	argv := []string{"/bin/sh", "-c", script, "git", path.Join(mount, Dir), branch}
	argv = append(argv, s.settings()...)
	argv = append(argv, string(req.Program), "--stateless-rpc")
	if req.Advertise {
		argv = append(argv, "--advertise-refs")
	}
	env := map[string]string{"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "LC_ALL": "C.UTF-8"}
	if validProtocol(req.Protocol) {
		env["GIT_PROTOCOL"] = req.Protocol
	}
	cmd := guestexec.Command{
		Spec:     guestapi.ProcessSpec{Argv: argv, Env: env, User: "root", Dir: "/", Timeout: s.cfg.Timeout},
		Overtime: 10 * time.Second,
	}
	if !req.Advertise {
		cmd.Input = func(_ context.Context, w io.Writer) error {
			_, err := io.Copy(w, req.In)
			return err
		}
	}
	var complaint bytes.Buffer
	st, err := guestexec.Stream(ctx, g, cmd, guestexec.Sink{Output: func(e guestapi.Event) error {
		if e.Stream == guestapi.StreamStdout {
			_, err := req.Out.Write(e.Data)
			return err
		}
		if room := maxComplaint - complaint.Len(); room > 0 {
			complaint.Write(e.Data[:min(room, len(e.Data))])
		}
		return nil
	}})
	switch {
	case err != nil:
		return hosterror.OfGuest(err, "the repository of app "+a.Name)
	case st.Exit.Code == 0 && st.Exit.Error == "":
		return nil
	}
	text := strings.ToValidUTF8(strings.TrimSpace(complaint.String()), "?")
	if strings.Contains(text, "No space left on device") {
		return api.Errorf(api.NoSpace, "the repository of app %s is full", a.Name)
	}
	return api.Errorf(api.Invalid, "git %s ended with status %d: %s", req.Program, st.Exit.Code,
		strings.TrimSpace(st.Exit.Error+" "+text))
}

// settings are the options of git that bound what clients can do.
func (s *Service) settings() []string {
	var argv []string
	for _, set := range []string{
		"core.hooksPath=/dev/null",
		fmt.Sprintf("receive.maxInputSize=%d", int64(s.cfg.PushMiB)<<20),
		"receive.fsckObjects=true",
		"receive.unpackLimit=1", // packs are checked as a whole and kept
		"receive.hideRefs=refs", "receive.hideRefs=!refs/heads", "receive.hideRefs=!refs/tags",
		"receive.denyDeleteCurrent=refuse",
		"receive.advertisePushOptions=false",
		"gc.autoDetach=false",
		"uploadpack.allowFilter=true",
	} {
		argv = append(argv, "-c", set)
	}
	return argv
}

// validProtocol reports whether a client's words on the protocol can be handed to git.
func validProtocol(text string) bool {
	if text == "" || len(text) > 64 {
		return false
	}
	return strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789:=") == ""
}

// principal returns the caller that acts for an app.
func principal(a api.App) auth.Principal {
	return auth.Principal{Workspace: a.Workspace, Owner: hostapi.Owner{Kind: app.OwnerKind, ID: string(a.ID)}}
}

// open returns the guest of the machine of a repository, and a function that ends the use.
func (s *Service) open(ctx context.Context, a api.App) (guestapi.Guest, func(), error) {
	held, release, err := s.locks.Acquire(ctx, string(a.ID))
	if err != nil {
		return nil, nil, err
	}
	defer release()
	p := principal(a)
	m, err := s.join(held, a, p)
	if err != nil {
		return nil, nil, err
	}
	g, err := s.boxes.Guest(ctx, p, m.box)
	if code := api.CodeOf(err); code == api.NotFound || code == api.WrongState {
		s.leave(m)
		s.drop(m)
		if err := s.remove(held, p, m.box); err != nil {
			return nil, nil, err
		}
		if m, err = s.start(held, a, p); err != nil {
			return nil, nil, err
		}
		g, err = s.boxes.Guest(ctx, p, m.box)
	}
	if err != nil {
		s.leave(m)
		return nil, nil, err
	}
	return g, sync.OnceFunc(func() { s.leave(m) }), nil
}

// join returns the machine of a repository with one more user. The lock of the app is held.
func (s *Service) join(ctx context.Context, a api.App, p auth.Principal) (*machine, error) {
	s.mu.Lock()
	m := s.machines[a.ID]
	if m != nil {
		m.users++
	}
	s.mu.Unlock()
	if m != nil {
		return m, nil
	}
	// An earlier process may have left one, or another process on the same store may have it.
	page, err := s.boxes.List(ctx, p, api.SandboxFilter{Metadata: map[string]string{app.RoleKey: Role}})
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(page.Sandboxes, func(b api.Sandbox) bool { return b.Status == api.Running })
	if i >= 0 {
		return s.register(a.ID, page.Sandboxes[i].ID, p), nil
	}
	for _, b := range page.Sandboxes {
		if err := s.remove(ctx, p, b.ID); err != nil {
			return nil, err
		}
	}
	return s.start(ctx, a, p)
}

func (s *Service) register(id api.AppID, box api.SandboxID, p auth.Principal) *machine {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := &machine{app: id, box: box, p: p, users: 1}
	s.machines[id] = m
	return m
}

// start makes a machine with one user. The lock of the app is held.
func (s *Service) start(ctx context.Context, a api.App, p auth.Principal) (*machine, error) {
	if _, err := s.volumes.Get(ctx, p, VolumeName(a.ID)); api.CodeOf(err) == api.NotFound {
		req := api.CreateVolumeRequest{Name: VolumeName(a.ID), SizeMB: s.cfg.VolumeMiB}
		if _, err := s.volumes.CreateFor(ctx, p, p.Owner, req, volume.Disk{}); err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, err
	}
	box, err := s.boxes.Create(ctx, p, api.CreateRequest{
		Template: s.cfg.Template, Egress: new(false),
		Metadata: map[string]string{app.RoleKey: Role},
		Volumes:  []api.VolumeMount{{Name: VolumeName(a.ID), MountPath: mount}},
		// A machine that this process does not end ends by itself.
		TTLSeconds: new(int64((2*s.cfg.Idle + s.cfg.Timeout) / time.Second)),
	})
	if err != nil {
		return nil, err
	}
	return s.register(a.ID, box.ID, p), nil
}

func (s *Service) remove(ctx context.Context, p auth.Principal, box api.SandboxID) error {
	if err := s.boxes.Delete(ctx, p, box); api.CodeOf(err) != api.NotFound {
		return err
	}
	return nil
}

func (s *Service) leave(m *machine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.users--
	m.idle = time.Now()
}

// drop forgets a machine unless another one took its place.
func (s *Service) drop(m *machine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.machines[m.app] == m {
		delete(s.machines, m.app)
	}
}

// Run ends idle machines until ctx ends. Then it ends all that have no user.
func (s *Service) Run(ctx context.Context) error {
	t := time.NewTicker(s.cfg.Interval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), 30*time.Second,
				errors.New("the process stops"))
			defer cancel()
			s.EndIdle(last, 0)
			return nil
		case <-t.C:
			s.EndIdle(ctx, s.cfg.Idle)
		}
	}
}

// EndIdle ends machines that had no user for some time. What fails is tried again at the next call.
func (s *Service) EndIdle(ctx context.Context, idle time.Duration) {
	s.mu.Lock()
	var all []*machine
	for _, m := range s.machines {
		if m.users == 0 && time.Since(m.idle) >= idle {
			all = append(all, m)
		}
	}
	s.mu.Unlock()
	for _, m := range all {
		if err := s.end(ctx, m); err != nil && ctx.Err() == nil {
			s.log.Warn("the machine of a repository was not ended; it is tried again", "app", m.app, "err", err)
		}
	}
}

// end ends a machine if it has no user. Its volume is unmounted first.
func (s *Service) end(ctx context.Context, m *machine) error {
	ctx, release, err := s.locks.Acquire(ctx, string(m.app))
	if err != nil {
		return err
	}
	defer release()
	s.mu.Lock()
	used := m.users > 0 || s.machines[m.app] != m
	s.mu.Unlock()
	if used {
		return nil
	}
	_, err = s.volumes.Detach(ctx, m.p, m.box, VolumeName(m.app), true)
	if err != nil && api.CodeOf(err) != api.NotFound {
		s.log.Warn("a repository was not unmounted; its next use checks it", "app", m.app, "err", err)
	}
	if err := s.remove(ctx, m.p, m.box); err != nil {
		return err
	}
	s.drop(m)
	return nil
}

// Forget forgets the machine of an app that is being deleted. Machine and volume belong to the app, and end with it.
func (s *Service) Forget(ctx context.Context, id api.AppID) error {
	_, release, err := s.locks.Acquire(ctx, string(id))
	if err != nil {
		return err
	}
	defer release()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.machines, id)
	return nil
}
