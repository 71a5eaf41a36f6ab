package sshgate_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/ingress/sshgate"
)

// A client that cannot prove a key of the sandbox's workspace gets nothing, and wakes nothing.
func TestStrangersGetNothing(t *testing.T) {
	w := start(t, sshgate.Limits{}, 0)
	member, other := w.addUser("w"), w.addUser("other")
	viewer := w.stranger()
	p := auth.Principal{Workspace: "w"}
	_, token, err := w.keys.Create(t.Context(), p, auth.KeyRequest{Role: api.RoleViewer})
	if err != nil {
		t.Fatal(err)
	}
	viewer.key, err = w.ssh.Add(t.Context(), auth.Principal{Workspace: "w", KeyPrefix: auth.PrefixOf(token)},
		api.AddSSHKeyRequest{PublicKey: string(ssh.MarshalAuthorizedKey(viewer.signer.PublicKey()))})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, user string
		who        sshUser
	}{
		{"unknown key", string(w.id), w.stranger()},
		{"other workspace", string(w.id), other},
		{"other sandbox", string(api.NewSandboxID()), member},
		{"no sandbox", "root", member},
		{"empty user", string(w.id) + "+", member},
		{"control characters", string(w.id) + "+a\nb", member},
		{"viewer", string(w.id), viewer},
	} {
		if c, err := w.dial(tt.who, tt.user); err == nil {
			_ = c.Close()
			t.Errorf("%s: the login succeeded", tt.name)
		}
	}
	for _, method := range []ssh.AuthMethod{ssh.Password(member.token), ssh.KeyboardInteractive(
		func(string, string, []string, []bool) ([]string, error) { return nil, nil })} {
		_, err := ssh.Dial("tcp", w.addr, &ssh.ClientConfig{
			User: string(w.id), Auth: []ssh.AuthMethod{method}, HostKeyCallback: ssh.FixedHostKey(w.host.PublicKey()),
		})
		if err == nil {
			t.Error("a login without a key succeeded")
		}
	}
	until(t, "failures are recorded", func() bool { return w.recorded.has("ssh login", string(api.Unauthenticated)) })
	if n := w.sandbox.wakes(); n != 0 {
		t.Errorf("logins used the sandbox %d times", n)
	}
	w.mustDial(member)
	if n := w.sandbox.wakes(); n != 0 {
		t.Errorf("a connection without channels used the sandbox %d times", n)
	}
}

// attempt tries what needs each scope and returns what succeeded.
func attempt(t *testing.T, c *ssh.Client, port string) (done []string) {
	t.Helper()
	if s, err := c.NewSession(); err == nil {
		if s.Run("true") == nil {
			done = append(done, "exec")
		}
		_ = s.Close()
	}
	if f, err := sftp.NewClient(c); err == nil {
		if _, err := f.Getwd(); err == nil {
			done = append(done, "files")
		}
		_ = f.Close()
	}
	if conn, err := c.Dial("tcp", port); err == nil {
		done = append(done, "ports")
		_ = conn.Close()
	}
	return done
}

func TestScopes(t *testing.T) {
	w := start(t, sshgate.Limits{}, 0)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, scope := range []api.Scope{api.ScopeExec, api.ScopeFiles, api.ScopePorts} {
		got := attempt(t, w.mustDial(w.addUser("w", scope)), l.Addr().String())
		if len(got) != 1 || got[0] != string(scope) {
			t.Errorf("a key with the scope %s did %v", scope, got)
		}
	}
	if !w.recorded.has("ssh exec", string(api.Forbidden)) || !w.recorded.has("ssh sftp", string(api.Forbidden)) {
		t.Error("what was refused was not recorded")
	}
}

// The connections of a key end with it, whether the API key or the SSH key is taken away.
func TestRevocationEndsConnections(t *testing.T) {
	w := start(t, sshgate.Limits{Recheck: 5 * time.Millisecond}, 0)
	admin := auth.Principal{Workspace: "w"}
	for name, end := range map[string]func(u sshUser) error{
		"API key": func(u sshUser) error { return w.keys.Revoke(t.Context(), admin, auth.PrefixOf(u.token)) },
		"SSH key": func(u sshUser) error {
			return w.ssh.Delete(t.Context(), auth.Principal{Workspace: "w", KeyPrefix: u.key.KeyPrefix}, u.key.ID)
		},
	} {
		u, other := w.addUser("w"), w.addUser("w")
		c, stays := w.mustDial(u), w.mustDial(other)
		s, err := c.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Start("sleep 1000"); err != nil {
			t.Fatal(err)
		}
		if err := end(u); err != nil {
			t.Fatal(err)
		}
		if err := s.Wait(); err == nil {
			t.Errorf("%s: the program went on", name)
		}
		if _, err := w.dial(u, string(w.id)); err == nil {
			t.Errorf("%s: another login succeeded", name)
		}
		if got := attempt(t, stays, "127.0.0.1:1"); len(got) != 2 {
			t.Errorf("%s: the connection of another key did %v, want exec and files", name, got)
		}
	}
}

// An SSH key goes over to the key that its API key is rotated to.
func TestRotation(t *testing.T) {
	w := start(t, sshgate.Limits{Recheck: 5 * time.Millisecond}, 0)
	u := w.addUser("w")
	c := w.mustDial(u)
	admin := auth.Principal{Workspace: "w"}
	if _, _, _, err := w.keys.Rotate(t.Context(), admin, auth.PrefixOf(u.token), 0); err != nil {
		t.Fatal(err)
	}
	if got := attempt(t, c, "127.0.0.1:1"); len(got) != 2 {
		t.Errorf("the connection did %v, want exec and files", got)
	}
	w.mustDial(u)
}

func TestBounds(t *testing.T) {
	w := start(t, sshgate.Limits{PerSandbox: 2, Channels: 3, Files: 2}, 0)
	u := w.addUser("w")
	first := w.mustDial(u)
	var sessions []*ssh.Session
	for range 3 {
		s, err := first.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		sessions = append(sessions, s)
	}
	if _, err := first.NewSession(); err == nil {
		t.Error("one more channel was opened")
	}
	_ = sessions[0].Close()
	until(t, "a channel that was closed makes room", func() bool {
		s, err := first.NewSession()
		return err == nil && s.Close() == nil
	})
	_ = sessions[1].Close()
	var files *sftp.Client
	until(t, "sftp starts", func() (ok bool) {
		var err error
		files, err = sftp.NewClient(first)
		return err == nil
	})
	for i, name := range []string{"a", "b", "c"} {
		if _, err := files.Create(name); (err == nil) != (i < 2) {
			t.Errorf("creating %s: %v", name, err)
		}
	}
	w.mustDial(u)
	third, err := w.dial(u, string(w.id))
	if err == nil {
		err = third.Wait()
	}
	if err == nil {
		t.Error("one more connection stays")
	}
	// Connections that say nothing do not keep others of the address out for longer than the time for a login.
	for range 2 {
		c, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.ReadFull(c, make([]byte, len("SSH-2.0-"))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.dial(u, string(w.id)); err == nil {
		t.Error("one more connection of an address that has not logged in was served")
	}
}

func TestLoginTimeout(t *testing.T) {
	w := start(t, sshgate.Limits{Login: 20 * time.Millisecond}, 0)
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetReadDeadline(time.Now().Add(testTimeout)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a connection that says nothing stays open")
	}
}

// An address whose logins fail is refused for a while, before anything is computed for it.
func TestFailuresArePaused(t *testing.T) {
	w := start(t, sshgate.Limits{}, 3)
	for range 3 {
		if _, err := w.dial(w.stranger(), string(w.id)); err == nil {
			t.Fatal("a stranger logged in")
		}
	}
	until(t, "the address is refused", func() bool {
		c, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		n, _ := c.Read(make([]byte, 1))
		return n == 0
	})
}

// What the sandbox says when it cannot be used is shown to the user.
func TestSandboxThatCannotBeUsed(t *testing.T) {
	w := start(t, sshgate.Limits{}, 0)
	w.sandbox.fail(api.Errorf(api.WrongState, "sandbox is paused: resume it first"))
	s, err := w.mustDial(w.addUser("w")).NewSession()
	if err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	s.Stderr = &errs
	var exit *ssh.ExitError
	if err := s.Run("true"); !errors.As(err, &exit) || exit.ExitStatus() != 255 ||
		!strings.Contains(errs.String(), "resume it first") {
		t.Errorf("Run() = %v, %q, want code 255 and the reason", err, errs.String())
	}
}

// A program is hung up when its client goes away, and gets the signals that the client sends.
func TestProgramsEndWithTheirClient(t *testing.T) {
	w := start(t, sshgate.Limits{}, 0)
	u := w.addUser("w")
	for name, end := range map[string]func(c *ssh.Client, s *ssh.Session) error{
		"client closes the connection": func(c *ssh.Client, _ *ssh.Session) error { return c.Close() },
		"client closes the session":    func(_ *ssh.Client, s *ssh.Session) error { return s.Close() },
		"signal":                       func(_ *ssh.Client, s *ssh.Session) error { return s.Signal(ssh.SIGHUP) },
	} {
		mark := filepath.Join(w.dir, strings.ReplaceAll(name, " ", "-"))
		c := w.mustDial(u)
		s, err := c.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		out, err := s.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Start("trap 'touch " + mark + "; exit' HUP; echo ready; while :; do sleep 0.01; done"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
			t.Fatal(err)
		}
		if err := end(c, s); err != nil {
			t.Fatal(err)
		}
		until(t, name+": the program is hung up", func() bool {
			_, err := os.Stat(mark)
			return err == nil
		})
	}
}

// Pieces of files arrive in any order and anywhere.
func TestSftpWritesAnywhere(t *testing.T) {
	w := start(t, sshgate.Limits{}, 0)
	c, err := sftp.NewClient(w.mustDial(w.addUser("w")), sftp.UseConcurrentWrites(true))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	at := filepath.Join(w.dir, "file")
	f, err := c.Create("file")
	if err != nil {
		t.Fatal(err)
	}
	for _, piece := range []struct {
		text   string
		offset int64
	}{{"0123456789", 0}, {"tail", 20}, {"ab", 3}, {"XY", 8}} {
		if _, err := f.WriteAt([]byte(piece.text), piece.offset); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	same(t, at, []byte("012ab567XY\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00tail"))
	if f, err = c.OpenFile("file", os.O_WRONLY|os.O_APPEND); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{" and ", "more"} { // this client counts from what it appends
		if _, err := io.WriteString(f, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(28); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	same(t, at, []byte("012ab567XY\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00tail and"[:28]))
	big, data := content(t, 5<<20+3)
	from, err := os.Open(big)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	if f, err = c.Create("big"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.ReadFrom(from); err != nil { // concurrently
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	same(t, filepath.Join(w.dir, "big"), data)
	if f, err = c.Open("big"); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	piece := make([]byte, 100)
	for _, offset := range []int64{4 << 20, 10, 5<<20 - 97, 1 << 20, 0} {
		if _, err := f.ReadAt(piece, offset); err != nil || !bytes.Equal(piece, data[offset:offset+100]) {
			t.Errorf("ReadAt(%d) returns something else, %v", offset, err)
		}
	}
	if n, err := f.ReadAt(piece, int64(len(data))-1); n != 1 || err != io.EOF {
		t.Errorf("ReadAt at the end = %d, %v, want 1 and EOF", n, err)
	}
	if _, err := c.OpenFile("big", os.O_WRONLY|os.O_CREATE|os.O_EXCL); err == nil {
		t.Error("an exclusive create of a file that exists succeeded")
	}
	if _, err := c.Open("none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Open of a file that does not exist: %v", err)
	}
	if err := c.Rename("file", "big"); err == nil {
		t.Error("a file was renamed over another one")
	}
	if err := c.PosixRename("file", "big"); err != nil {
		t.Error(err)
	}
}
