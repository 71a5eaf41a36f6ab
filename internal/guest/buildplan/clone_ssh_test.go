package buildplan_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/pandastack/pandastack/internal/contract/buildevent"
)

// sshServer serves one repository to everybody.
type sshServer struct {
	t    *testing.T
	l    net.Listener
	repo string

	mu   sync.Mutex
	host ssh.Signer
	wg   sync.WaitGroup
}

func newSSHServer(t *testing.T) *sshServer {
	t.Helper()
	for _, program := range []string{"ssh", "git"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("probe %s: it is not installed on this host", program)
		}
	}
	s := &sshServer{t: t, repo: filepath.Join(t.TempDir(), "site.git")}
	work := t.TempDir()
	for _, argv := range [][]string{
		{"init", "-q", "-b", "main", work}, {"init", "-q", "--bare", "-b", "main", s.repo},
		{"-C", work, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "first"},
		{"-C", work, "push", "-q", s.repo, "main"},
	} {
		if out, err := exec.Command("git", argv...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", argv, err, out)
		}
	}
	s.newKey()
	var err error
	if s.l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	s.wg.Go(s.accept)
	t.Cleanup(func() {
		_ = s.l.Close()
		s.wg.Wait()
	})
	return s
}

// newKey gives the server another host key.
func (s *sshServer) newKey() {
	s.t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.host = signer
}

func (s *sshServer) accept() {
	for {
		c, err := s.l.Accept()
		if err != nil {
			return
		}
		s.wg.Go(func() { s.serve(c) })
	}
}

func (s *sshServer) serve(c net.Conn) {
	defer c.Close()
	cfg := &ssh.ServerConfig{PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) {
		return nil, nil
	}}
	s.mu.Lock()
	cfg.AddHostKey(s.host)
	s.mu.Unlock()
	_, channels, requests, err := ssh.NewServerConn(c, cfg)
	if err != nil {
		return // the client refused
	}
	s.wg.Go(func() { ssh.DiscardRequests(requests) })
	for one := range channels {
		channel, requests, err := one.Accept()
		if err != nil {
			return
		}
		s.wg.Go(func() { s.session(channel, requests) })
	}
}

func (s *sshServer) session(channel ssh.Channel, requests <-chan *ssh.Request) {
	defer channel.Close()
	for r := range requests {
		if r.Type != "exec" {
			_ = r.Reply(r.Type == "env", nil)
			continue
		}
		_ = r.Reply(true, nil)
		cmd := exec.Command("git", "upload-pack", s.repo)
		in, err := cmd.StdinPipe()
		if err != nil {
			return
		}
		cmd.Stdout = channel
		if cmd.Start() != nil {
			return
		}
		s.wg.Go(func() {
			_, _ = io.Copy(in, channel)
			_ = in.Close()
		})
		_ = cmd.Wait()
		_, _ = channel.SendRequest("exit-status", false, []byte{0, 0, 0, 0})
		return
	}
}

// source returns what a clone reported.
func (all events) cloned(t *testing.T) *buildevent.Source {
	t.Helper()
	for _, e := range all {
		if e.Source != nil {
			return e.Source
		}
	}
	t.Fatalf("nothing was cloned: %+v\n%s", all.failure(), strings.Join(all.lines(), "\n"))
	return nil
}

// TestHostKeys clones over ssh: the first clone learns the key of the server, and later ones refuse another.
func TestHostKeys(t *testing.T) {
	f, s := newFixture(t), newSSHServer(t)
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		t.Fatal(err)
	}
	git := buildevent.Git{URL: "ssh://git@" + s.l.Addr().String() + "/site.git", Key: string(pem.EncodeToMemory(block))}
	learned := f.run("clone", buildevent.Request{Git: &git}).cloned(t)
	s.mu.Lock()
	want := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(s.host.PublicKey())))
	s.mu.Unlock()
	if !strings.Contains(learned.HostKeys, want) || strings.Count(learned.HostKeys, "\n") != 1 {
		t.Fatalf("host keys %q, want %s", learned.HostKeys, want)
	}
	git.HostKeys = learned.HostKeys
	if again := f.run("clone", buildevent.Request{Git: &git}).cloned(t); again.HostKeys != "" {
		t.Errorf("a clone that knows the key reports %q", again.HostKeys)
	}
	s.newKey()
	failed := f.run("clone", buildevent.Request{Git: &git}).failure()
	if failed == nil || failed.Field != "git_host_keys" || !strings.Contains(failed.Message, "127.0.0.1") {
		t.Fatalf("a server with another key: %+v", failed)
	}
	git.HostKeys = "git.example.com " + want + "\n"
	failed = f.run("clone", buildevent.Request{Git: &git}).failure()
	if failed == nil || failed.Field != "git_host_keys" || !strings.Contains(failed.Message, "knows no such host key") {
		t.Errorf("a server without a key in the list: %+v", failed)
	}
	if _, err := os.Stat(filepath.Join(f.Dir, "source", ".git", "refs", "remotes")); err == nil {
		t.Error("a refused server was read")
	}
}
