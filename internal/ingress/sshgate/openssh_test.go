package sshgate_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/ingress/sshgate"
)

// tool returns the path of a program of OpenSSH or the like.
func tool(t *testing.T, name string) string {
	t.Helper()
	at, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("probe %s: not installed", name)
	}
	return at
}

// run runs a client and returns what it printed.
func run(t *testing.T, stdin, name string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	c := exec.CommandContext(ctx, tool(t, name), args...)
	var out, errs bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader(stdin), &out, &errs
	c.WaitDelay = time.Second
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s %v: %v", name, args, err)
	}
	return out.String(), errs.String(), c.ProcessState.ExitCode()
}

// must is run for a client that has to succeed.
func must(t *testing.T, stdin, name string, args ...string) string {
	t.Helper()
	out, errs, code := run(t, stdin, name, args...)
	if code != 0 {
		t.Fatalf("%s %v: exit code %d: %s%s", name, args, code, out, errs)
	}
	return out
}

// content writes a file of random bytes and returns its path and content.
func content(t *testing.T, size int) (string, []byte) {
	t.Helper()
	data := make([]byte, size)
	if _, err := rand.Read(data); err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(t.TempDir(), "local file")
	if err := os.WriteFile(at, data, 0o640); err != nil {
		t.Fatal(err)
	}
	return at, data
}

// same fails the test unless a file has some content.
func same(t *testing.T, at string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(at)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s has %d bytes, want the %d that were sent", at, len(got), len(want))
	}
}

func TestOpenSSHRunsPrograms(t *testing.T) {
	w := start(t, sshgate.Limits{}, 0)
	cfg := w.clientFiles(w.addUser("w"))
	out, errs, code := run(t, "typed\n", "ssh", "-F", cfg, "-o", "SetEnv=WORD=given", "box",
		`cat; pwd; echo "$WORD"; echo bad >&2; exit 7`)
	if want := "typed\n" + w.dir + "\ngiven\n"; out != want || errs != "bad\n" || code != 7 {
		t.Errorf("ssh printed %q and %q with code %d, want %q and %q with 7", out, errs, code, want, "bad\n")
	}
	if out := must(t, "echo from a shell\n", "ssh", "-F", cfg, "box"); !strings.Contains(out, "from a shell") {
		t.Errorf("a shell without a terminal printed %q", out)
	}
	out = must(t, "", "ssh", "-F", cfg, "-tt", "box", "tty; stty size; echo $TERM")
	if !strings.Contains(out, "/dev/pts/") {
		t.Errorf("a terminal printed %q, want the name of its device", out)
	}
	for _, action := range []string{"ssh login", "ssh exec", "ssh shell"} {
		if !w.recorded.has(action, "ok") {
			t.Errorf("%q was not recorded", action)
		}
	}
}

func TestOpenSSHCopiesFiles(t *testing.T) {
	w := start(t, sshgate.Limits{}, 0)
	cfg := w.clientFiles(w.addUser("w"))
	for _, size := range []int{0, 1, 3<<20 + 17} {
		local, data := content(t, size)
		name := fmt.Sprintf("file %d", size)
		must(t, "", "scp", "-F", cfg, "-p", local, "box:"+name)
		same(t, filepath.Join(w.dir, name), data)
		back := filepath.Join(t.TempDir(), "back")
		must(t, "", "scp", "-F", cfg, "-p", "box:"+name, back)
		same(t, back, data)
		for _, at := range []string{filepath.Join(w.dir, name), back} {
			was, err := os.Stat(local)
			if err != nil {
				t.Fatal(err)
			}
			is, err := os.Stat(at)
			if err != nil {
				t.Fatal(err)
			}
			if is.Mode() != was.Mode() || is.ModTime().Unix() != was.ModTime().Unix() {
				t.Errorf("%s has mode %v and time %v, want %v and %v", at, is.Mode(), is.ModTime(), was.Mode(),
					was.ModTime())
			}
		}
	}
	// A file that exists is written in place: it gets shorter, and keeps its identity.
	target := filepath.Join(w.dir, "target")
	if err := os.WriteFile(target, bytes.Repeat([]byte("x"), 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(target, target+".link"); err != nil {
		t.Fatal(err)
	}
	local, data := content(t, 200<<10)
	must(t, "", "scp", "-F", cfg, local, "box:target")
	same(t, target+".link", data)
	_, errs, code := run(t, "", "scp", "-F", cfg, local, "box:none/target")
	if code == 0 || !strings.Contains(errs, "No such file") {
		t.Errorf("scp into a directory that does not exist: code %d, %q", code, errs)
	}
	// A directory with everything in it.
	tree := filepath.Join(t.TempDir(), "tree")
	if err := os.MkdirAll(filepath.Join(tree, "below"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tree, "below", "a"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	must(t, "", "scp", "-F", cfg, "-r", tree, "box:")
	same(t, filepath.Join(w.dir, "tree", "below", "a"), data)
}

func TestOpenSSHSftp(t *testing.T) {
	w := start(t, sshgate.Limits{}, 0)
	cfg := w.clientFiles(w.addUser("w"))
	local, data := content(t, 1<<20)
	half := filepath.Join(w.dir, "half")
	if err := os.WriteFile(half, data[:400<<10], 0o600); err != nil {
		t.Fatal(err)
	}
	batch := strings.Join([]string{
		"mkdir d", "put \"" + local + "\" d/a", "rename d/a d/b", "ln -s b d/link", "ln d/b d/hard", "chmod 600 d/b",
		"ls -la d", "reput \"" + local + "\" half", "pwd", "-rmdir none", "-rm d", "mkdir e", "rmdir e",
		"get d/link \"" + local + ".back\"",
	}, "\n") + "\n"
	out := must(t, batch, "sftp", "-F", cfg, "-b", "-", "box")
	for _, want := range []string{"link", "hard", "Remote working directory: " + w.dir} {
		if !strings.Contains(out, want) {
			t.Errorf("sftp printed %q, want %q in it", out, want)
		}
	}
	for _, at := range []string{half, filepath.Join(w.dir, "d", "b"), filepath.Join(w.dir, "d", "hard"),
		local + ".back"} {
		same(t, at, data)
	}
	if to, err := os.Readlink(filepath.Join(w.dir, "d", "link")); err != nil || to != "b" {
		t.Errorf("the link leads to %q, %v, want b", to, err)
	}
	if info, err := os.Stat(filepath.Join(w.dir, "d", "b")); err != nil || info.Mode() != 0o600 {
		t.Errorf("the mode is %v, %v, want 0600", info.Mode(), err)
	}
	if _, err := os.Stat(filepath.Join(w.dir, "e")); !os.IsNotExist(err) {
		t.Errorf("the directory was not removed: %v", err)
	}
}

func TestRsync(t *testing.T) {
	w := start(t, sshgate.Limits{}, 0)
	cfg := w.clientFiles(w.addUser("w"))
	tool(t, "rsync")
	dir := filepath.Join(t.TempDir(), "source")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	_, data := content(t, 2<<20)
	for range 2 { // the second time only differences are sent
		data[1<<20]++
		if err := os.WriteFile(filepath.Join(dir, "a"), data, 0o644); err != nil {
			t.Fatal(err)
		}
		must(t, "", "rsync", "-a", "--checksum", "-e", "ssh -F "+cfg, dir, "box:")
		same(t, filepath.Join(w.dir, "source", "a"), data)
	}
}

// The client forwards a port of its own to one of the sandbox.
func TestOpenSSHForwardsPorts(t *testing.T) {
	w := start(t, sshgate.Limits{}, 0)
	cfg := w.clientFiles(w.addUser("w"))
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { // replies when the client has ended its direction
		defer close(served)
		c, err := server.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		data, _ := io.ReadAll(c)
		_, _ = c.Write(append([]byte("got "), data...))
	}()
	defer func() { _ = server.Close(); <-served }()
	out := must(t, "hello", "ssh", "-F", cfg, "-W", server.Addr().String(), "box")
	if out != "got hello" {
		t.Errorf("the forwarded connection got %q", out)
	}
	_, errs, code := run(t, "", "ssh", "-F", cfg, "-W", "192.0.2.1:80", "box")
	if code == 0 || !strings.Contains(errs, "ports of the sandbox alone") {
		t.Errorf("a connection to elsewhere: code %d, %q", code, errs)
	}
}
