// Package repotest simulates the machines of repositories: git runs as an ordinary process, in a directory of the test.
package repotest

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/control/volume"
)

// Machines are sandboxes and volumes. Make it with New.
type Machines struct {
	dir string

	mu      sync.Mutex
	Boxes   map[api.SandboxID]api.Sandbox // guarded by mu, as are the others
	Volumes map[string]api.CreateVolumeRequest
	Created []api.CreateRequest
	Owners  []hostapi.Owner
	Calls   []string
	Fail    map[string]error // by call
}

// New returns machines whose volumes are directories of the test.
func New(t testing.TB) *Machines {
	t.Helper()
	return &Machines{dir: t.TempDir(), Boxes: map[api.SandboxID]api.Sandbox{},
		Volumes: map[string]api.CreateVolumeRequest{}, Fail: map[string]error{}}
}

// Dir returns the directory that a volume is.
func (m *Machines) Dir(volume string) string { return filepath.Join(m.dir, volume) }

// Locked calls f while nothing changes.
func (m *Machines) Locked(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

func (m *Machines) call(name string) error {
	m.Calls = append(m.Calls, name)
	return m.Fail[name]
}

// Create implements repo.Sandboxes.
func (m *Machines) Create(_ context.Context, p auth.Principal, req api.CreateRequest) (api.Sandbox, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.call("create"); err != nil {
		return api.Sandbox{}, err
	}
	for _, v := range req.Volumes {
		if _, ok := m.Volumes[v.Name]; !ok {
			return api.Sandbox{}, api.Errorf(api.NotFound, "volume %s not found", v.Name)
		}
	}
	b := api.Sandbox{ID: api.NewSandboxID(), Status: api.Running, Workspace: p.Workspace, Metadata: req.Metadata}
	m.Boxes[b.ID] = b
	m.Created, m.Owners = append(m.Created, req), append(m.Owners, p.Owner)
	return b, nil
}

// List implements repo.Sandboxes.
func (m *Machines) List(context.Context, auth.Principal, api.SandboxFilter) (sandbox.Page, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var page sandbox.Page
	for _, b := range m.Boxes {
		page.Sandboxes = append(page.Sandboxes, b)
	}
	return page, m.call("list")
}

// Guest implements repo.Sandboxes.
func (m *Machines) Guest(_ context.Context, _ auth.Principal, id api.SandboxID) (guestapi.Guest, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.call("guest"); err != nil {
		return nil, err
	}
	if _, ok := m.Boxes[id]; !ok {
		return nil, api.Errorf(api.NotFound, "sandbox %s not found", id)
	}
	for name := range m.Volumes {
		return &guest{dir: m.Dir(name)}, nil
	}
	return nil, errors.New("repotest: there is no volume")
}

// Delete implements repo.Sandboxes.
func (m *Machines) Delete(_ context.Context, _ auth.Principal, id api.SandboxID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.call("delete"); err != nil {
		return err
	}
	if _, ok := m.Boxes[id]; !ok {
		return api.Errorf(api.NotFound, "sandbox %s not found", id)
	}
	delete(m.Boxes, id)
	return nil
}

// Get implements repo.Volumes.
func (m *Machines) Get(_ context.Context, _ auth.Principal, name string) (api.Volume, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.Volumes[name]; !ok {
		return api.Volume{}, api.Errorf(api.NotFound, "volume %s not found", name)
	}
	return api.Volume{Name: name}, m.call("volume")
}

// CreateFor implements repo.Volumes.
func (m *Machines) CreateFor(
	_ context.Context,
	_ auth.Principal,
	owner hostapi.Owner,
	req api.CreateVolumeRequest,
	_ volume.Disk,
) (api.Volume, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.call("create volume"); err != nil {
		return api.Volume{}, err
	}
	m.Volumes[req.Name] = req
	m.Owners = append(m.Owners, owner)
	return api.Volume{Name: req.Name}, os.MkdirAll(m.Dir(req.Name), 0o700)
}

// Detach implements repo.Volumes.
func (m *Machines) Detach(
	context.Context,
	auth.Principal,
	api.SandboxID,
	string,
	bool,
) (api.Sandbox, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return api.Sandbox{}, m.call("detach")
}

// guest runs programs on this machine.
type guest struct {
	guestapi.Guest
	dir string
}

// Start implements guestapi.Guest.
func (g *guest) Start(_ context.Context, spec guestapi.ProcessSpec) (guestapi.Process, error) {
	argv := make([]string, len(spec.Argv))
	for i, a := range spec.Argv {
		argv[i] = strings.Replace(a, "/repository", g.dir, 1)
	}
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:gosec,noctx // the test's own programs, which outlive calls
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/nonexistent"}
	for k, v := range spec.Env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p := &process{cmd: cmd, events: make(chan guestapi.Event, 16), done: make(chan struct{})}
	var err error
	if spec.Stdin {
		if p.in, err = cmd.StdinPipe(); err != nil {
			return nil, err
		}
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	complaints, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go p.run(out, complaints)
	return p, nil
}

// Signal implements guestapi.Guest.
func (g *guest) Signal(_ context.Context, ref guestapi.ProcessRef, signal int, _ bool) error {
	if err := syscall.Kill(-int(ref.PID), syscall.Signal(signal)); err != nil {
		return guestapi.ErrNotFound
	}
	return nil
}

type process struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	events chan guestapi.Event
	done   chan struct{} // closed by Close
	once   sync.Once
}

func (p *process) run(out, complaints io.Reader) {
	var wg sync.WaitGroup
	for stream, r := range map[guestapi.Stream]io.Reader{
		guestapi.StreamStdout: out, guestapi.StreamStderr: complaints,
	} {
		wg.Go(func() {
			var at int64
			for {
				buf := make([]byte, 8<<10)
				n, err := r.Read(buf)
				if n > 0 {
					p.event(guestapi.Event{Stream: stream, Offset: at, Data: buf[:n]})
					at += int64(n)
				}
				if err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	_ = p.cmd.Wait() // the state has it
	exit := guestapi.Exit{Code: p.cmd.ProcessState.ExitCode()}
	p.event(guestapi.Event{Exit: &exit})
	close(p.events)
}

func (p *process) event(e guestapi.Event) {
	select {
	case p.events <- e:
	case <-p.done:
	}
}

// PID implements guestapi.Process.
func (p *process) PID() uint32 { return uint32(p.cmd.Process.Pid) } //nolint:gosec // it is positive

// Next implements guestapi.Process.
func (p *process) Next(ctx context.Context) (guestapi.Event, error) {
	select {
	case e, ok := <-p.events:
		if !ok {
			return e, io.EOF
		}
		return e, nil
	case <-ctx.Done():
		return guestapi.Event{}, context.Cause(ctx)
	}
}

// Write implements guestapi.Process.
func (p *process) Write(b []byte) (int, error) { return p.in.Write(b) }

// CloseInput implements guestapi.Process.
func (p *process) CloseInput() error {
	if p.in == nil {
		return nil
	}
	return p.in.Close()
}

// Resize implements guestapi.Process.
func (p *process) Resize(context.Context, guestapi.Size) error { return errors.ErrUnsupported }

// Close implements guestapi.Process.
func (p *process) Close() error {
	p.once.Do(func() { close(p.done) })
	if p.in != nil {
		_ = p.in.Close() // it frees a writer
	}
	return nil
}
