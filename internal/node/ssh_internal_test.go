package node

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/lib/config"
)

func TestHostKeyStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), sshHostKey)
	first, err := hostKey(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("the file has the mode %v, %v", info.Mode(), err)
	}
	again, err := hostKey(path)
	if err != nil || string(again.PublicKey().Marshal()) != string(first.PublicKey().Marshal()) {
		t.Errorf("the key changed: %v", err)
	}
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := hostKey(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a damaged file: %v, want an error with its name", err)
	}
}

func TestSSHAddress(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	for _, tt := range []struct {
		set, public, host string
		port              int
	}{
		{"", "", "127.0.0.1", port},
		{"", "https://api.example.com:8443/", "api.example.com", port},
		{"ssh.example.com:22", "https://api.example.com", "ssh.example.com", 22},
	} {
		set := &config.Node{PublicURL: tt.public, SSH: config.SSH{Public: tt.set}}
		n := &node{Options: Options{Config: set}, ssh: l}
		if got, err := n.sshAddress(); err != nil || got.Host != tt.host || got.Port != tt.port {
			t.Errorf("sshAddress() = %+v, %v, want %s, port %d", got, err, tt.host, tt.port)
		}
	}
}
