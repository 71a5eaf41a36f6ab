package integrationtest_test

import (
	"crypto/ed25519"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/integrationtest"
)

// A client without a key of the workspace wakes no sandbox; one with a key does, and keeps its rights over restarts.
func TestSSHWakesAfterAuthentication(t *testing.T) {
	w := integrationtest.New(t)
	ctx := t.Context()
	box, err := w.Client.Sandboxes.Create(ctx, api.CreateRequest{Template: "base", Persistent: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Client.Sandboxes.Hibernate(ctx, box.ID); err != nil {
		t.Fatal(err)
	}
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dial := func() (*ssh.Client, error) {
		at, err := w.Client.SSHKeys.Gateway(ctx)
		if err != nil {
			t.Fatal(err)
		}
		host, _, _, _, err := ssh.ParseAuthorizedKey([]byte(at.HostKeys[0]))
		if err != nil {
			t.Fatal(err)
		}
		return ssh.Dial("tcp", w.SSH, &ssh.ClientConfig{
			User: string(box.ID), Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)},
			HostKeyCallback: ssh.FixedHostKey(host), Timeout: time.Minute,
		})
	}
	state := func() api.Status {
		s, err := w.Client.Sandboxes.Get(ctx, box.ID)
		if err != nil {
			t.Fatal(err)
		}
		return s.Status
	}
	if _, err := dial(); err == nil {
		t.Fatal("a key that is not known was accepted")
	}
	if s := state(); s != api.Hibernated {
		t.Fatalf("the sandbox is %s after a login that failed, want hibernated", s)
	}
	public := string(ssh.MarshalAuthorizedKey(signer.PublicKey()))
	key, err := w.Client.SSHKeys.Add(ctx, api.AddSSHKeyRequest{PublicKey: public, Label: "laptop"})
	if err != nil {
		t.Fatal(err)
	}
	for _, restart := range []func(){func() {}, w.Crash, w.Restart} {
		restart()
		c, err := dial()
		if err != nil {
			t.Fatal(err)
		}
		s, err := c.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		if out, err := s.CombinedOutput("echo hello"); err != nil || string(out) != "hello\n" {
			t.Errorf("the command printed %q, %v", out, err)
		}
		if s := state(); s != api.Running {
			t.Errorf("the sandbox is %s after a command, want running", s)
		}
		_ = c.Close()
	}
	all, err := w.Client.SSHKeys.List(ctx)
	if err != nil || len(all) != 1 || all[0].ID != key.ID || all[0].Label != "laptop" || all[0].LastUsedAt == nil {
		t.Errorf("List() = %+v, %v, want the key, used", all, err)
	}
	if err := w.Client.SSHKeys.Delete(ctx, key.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := dial(); err == nil {
		t.Error("a key that was deleted was accepted")
	}
}
