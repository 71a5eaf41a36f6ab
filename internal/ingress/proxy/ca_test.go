package proxy_test

import (
	"bytes"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/ingress/proxy"
)

func TestPrivateTLS(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	names := []string{"localhost", "*.sandboxes.test", "127.0.0.1"}
	first, caFile, err := proxy.PrivateTLS(dir, names, now)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(caFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(data) {
		t.Fatal("the authority's file holds no certificate")
	}
	for _, name := range []string{"localhost", "3000-sbxa.sandboxes.test", "127.0.0.1"} {
		if _, err := first.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots, CurrentTime: now}); err != nil {
			t.Errorf("%s: certificate is not valid: %v", name, err)
		}
	}
	if _, err := first.Leaf.Verify(x509.VerifyOptions{DNSName: "a.b.sandboxes.test", Roots: roots}); err == nil {
		t.Error("the wildcard is valid for two labels, want one")
	}

	same, _, err := proxy.PrivateTLS(dir, names[:2], now.Add(24*time.Hour))
	if err != nil || !bytes.Equal(same.Certificate[0], first.Certificate[0]) {
		t.Errorf("a valid certificate was replaced, want it kept (error %v)", err)
	}
	for name, again := range map[string]func() ([][]byte, error){
		"other-names": func() ([][]byte, error) {
			c, _, err := proxy.PrivateTLS(dir, []string{"other.test"}, now)
			return c.Certificate, err
		},
		"nearly-over": func() ([][]byte, error) {
			c, _, err := proxy.PrivateTLS(dir, []string{"other.test"}, now.Add(300*24*time.Hour))
			return c.Certificate, err
		},
	} {
		got, err := again()
		if err != nil || bytes.Equal(got[0], first.Certificate[0]) {
			t.Errorf("%s: the old certificate was kept, want a new one (error %v)", name, err)
		}
		if !bytes.Equal(got[1], first.Certificate[1]) {
			t.Errorf("%s: the authority changed, want it kept: no client trusts a new one", name)
		}
	}

	if info, err := os.Stat(filepath.Join(dir, "ca.key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the authority's key has mode %v, want 0600 (error %v)", info.Mode(), err)
	}
	if err := os.WriteFile(caFile, []byte("garbage"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := proxy.PrivateTLS(dir, names, now); err == nil {
		t.Error("a damaged authority was replaced, want an error")
	}
}
