package sshgate_test

import (
	"context"
	"crypto/ed25519"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/audit"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/sshkey"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/guest/agent"
	"github.com/pandastack/pandastack/internal/guest/process"
	"github.com/pandastack/pandastack/internal/guest/system"
	"github.com/pandastack/pandastack/internal/ingress/access"
	"github.com/pandastack/pandastack/internal/ingress/sshgate"
	"github.com/pandastack/pandastack/internal/lib/budget"
)

// testTimeout bounds every wait of the tests.
const testTimeout = time.Minute

// world is a gate over a sandbox that is this machine.
type world struct {
	t        *testing.T
	gate     *sshgate.Gate
	addr     string
	id       api.SandboxID
	dir      string // working directory of the sandbox
	keys     *auth.Keys
	ssh      *sshkey.Keys
	buffers  *budget.Pool
	halfOpen *budget.Pool
	host     ssh.Signer
	sandbox  *sandboxes
	recorded *recorder
}

// sandboxes has one sandbox.
type sandboxes struct {
	box   api.Sandbox
	guest guestapi.Guest

	mu    sync.Mutex
	woken int   // guarded by mu
	err   error // of the next uses; guarded by mu
}

func (s *sandboxes) Get(_ context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error) {
	if id != s.box.ID || p.Workspace != s.box.Workspace {
		return api.Sandbox{}, api.Errorf(api.NotFound, "sandbox not found")
	}
	return s.box, nil
}

func (s *sandboxes) GuestAndSandbox(
	ctx context.Context,
	p auth.Principal,
	id api.SandboxID,
) (guestapi.Guest, api.Sandbox, error) {
	if _, err := s.Get(ctx, p, id); err != nil {
		return nil, api.Sandbox{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.woken++
	return s.guest, s.box, s.err
}

func (s *sandboxes) wakes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.woken
}

func (s *sandboxes) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// recorder keeps the entries of the audit log.
type recorder struct {
	mu      sync.Mutex
	entries []audit.Entry
}

func (r *recorder) Record(_ context.Context, e audit.Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries = append(r.entries, e)
}

func (r *recorder) RecordUse(ctx context.Context, e audit.Entry) { r.Record(ctx, e) }

// has reports whether an action was recorded with an outcome.
func (r *recorder) has(action, outcome string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.entries {
		if e.Action == action && e.Outcome == outcome {
			return true
		}
	}
	return false
}

// start serves a gate until the test ends.
func start(t *testing.T, limits sshgate.Limits, failures int) *world {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	db, err := store.Open(t.Context(), store.Config{DSN: filepath.Join(t.TempDir(), "c.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	w := &world{t: t, id: api.NewSandboxID(), dir: t.TempDir(), recorded: &recorder{}}
	if w.keys, err = auth.New(db, log); err != nil {
		t.Fatal(err)
	}
	if w.ssh, err = sshkey.New(db); err != nil {
		t.Fatal(err)
	}
	b := agent.New(agent.Config{System: &system.Linux{}, Workload: system.Unfrozen{}, Reaper: process.NewReaper(false)})
	t.Cleanup(b.Close)
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	w.sandbox = &sandboxes{
		guest: b, box: api.Sandbox{ID: w.id, Workspace: "w", User: me.Username, Workdir: w.dir},
	}
	w.buffers = budget.New(budget.Config{
		Name: "buffered bytes", Total: 1 << 30, Levels: []budget.Level{{Name: "workspace"}, {Name: "sandbox"}},
	})
	w.halfOpen = budget.New(budget.Config{
		Name: "connections", Total: 64, Levels: []budget.Level{{Name: "address", Max: 2}},
	})
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	if w.host, err = ssh.NewSignerFromKey(private); err != nil {
		t.Fatal(err)
	}
	w.gate, err = sshgate.New(sshgate.Config{
		HostKeys: []ssh.Signer{w.host}, Sandboxes: w.sandbox, Keys: w.ssh, Principals: w.keys,
		Guard: access.New(access.Config{FailuresPerMinute: failures}, w.keys, nil), Audit: w.recorded,
		HalfOpen: w.halfOpen, Buffers: w.buffers, Limits: limits, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	w.listen()
	return w
}

func (w *world) listen() {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.gate.Serve(ctx, l) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("Serve() = %v", err)
		}
		if n := w.buffers.Used(); n != 0 {
			w.t.Errorf("%d bytes are not given back", n)
		}
		if n := w.halfOpen.Used(); n != 0 {
			w.t.Errorf("%d connections are not given back", n)
		}
	})
}

// user is somebody with an SSH key.
type sshUser struct {
	signer ssh.Signer
	pem    []byte
	token  string
	key    api.SSHKey
}

// addUser makes an API key with scopes of a workspace, and an SSH key for it.
func (w *world) addUser(workspace api.Workspace, scopes ...api.Scope) sshUser {
	w.t.Helper()
	u := w.stranger()
	p := auth.Principal{Workspace: workspace}
	_, token, err := w.keys.Create(w.t.Context(), p, auth.KeyRequest{Role: api.RoleDeveloper, Scopes: scopes})
	if err != nil {
		w.t.Fatal(err)
	}
	u.token = token
	u.key, err = w.ssh.Add(w.t.Context(), auth.Principal{Workspace: workspace, KeyPrefix: auth.PrefixOf(token)},
		api.AddSSHKeyRequest{PublicKey: string(ssh.MarshalAuthorizedKey(u.signer.PublicKey()))})
	if err != nil {
		w.t.Fatal(err)
	}
	return u
}

// stranger makes a key that is not known.
func (w *world) stranger() sshUser {
	w.t.Helper()
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		w.t.Fatal(err)
	}
	var u sshUser
	if u.signer, err = ssh.NewSignerFromKey(private); err != nil {
		w.t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		w.t.Fatal(err)
	}
	u.pem = pem.EncodeToMemory(block)
	return u
}

// dial connects with the Go client.
func (w *world) dial(u sshUser, name string) (*ssh.Client, error) {
	w.t.Helper()
	c, err := ssh.Dial("tcp", w.addr, &ssh.ClientConfig{
		User: name, Auth: []ssh.AuthMethod{ssh.PublicKeys(u.signer)},
		HostKeyCallback: ssh.FixedHostKey(w.host.PublicKey()), Timeout: testTimeout,
	})
	if err == nil {
		w.t.Cleanup(func() { _ = c.Close() })
	}
	return c, err
}

// mustDial is dial for a connection that has to succeed.
func (w *world) mustDial(u sshUser) *ssh.Client {
	w.t.Helper()
	c, err := w.dial(u, string(w.id))
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// clientFiles writes a configuration for OpenSSH and returns its path. The sandbox is the host "box".
func (w *world) clientFiles(u sshUser) string {
	w.t.Helper()
	dir := w.t.TempDir()
	write := func(name string, data []byte) string {
		at := filepath.Join(dir, name)
		if err := os.WriteFile(at, data, 0o600); err != nil {
			w.t.Fatal(err)
		}
		return at
	}
	host, port, err := net.SplitHostPort(w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	key := write("id", u.pem)
	known := write("known_hosts", fmt.Appendf(nil, "[%s]:%s %s", host, port,
		ssh.MarshalAuthorizedKey(w.host.PublicKey())))
	return write("config", fmt.Appendf(nil, "Host box\n  HostName %s\n  Port %s\n  User %s\n  IdentityFile %s\n"+
		"  IdentitiesOnly yes\n  UserKnownHostsFile %s\n  StrictHostKeyChecking yes\n  BatchMode yes\n",
		host, port, w.id, key, known))
}

// until waits for a condition.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(testTimeout)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s until %s", testTimeout, what)
		}
		<-tick.C
	}
}
