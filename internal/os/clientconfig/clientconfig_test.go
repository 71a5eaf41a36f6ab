package clientconfig_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/pandastack/pandastack/internal/os/clientconfig"
)

func TestRead(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "usr/local/share/ca-certificates")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"b.crt": "-----BEGIN CERTIFICATE-----\nb\n", "a.crt": "-----BEGIN CERTIFICATE-----\na\n", "c.crt": "binary",
		"notes.txt": "-----BEGIN CERTIFICATE-----\nno\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	hosts := "127.0.0.1 localhost\n127.0.1.1 me\n::1 me6\n# 192.0.2.9 no\n" +
		"192.0.2.1\tnpm.example  npm # mirror\nbad line\n" +
		"fe80::1 six\n224.0.0.1 all\n0.0.0.0 blocked.example\n192.0.2.2 pypi.example\n"
	if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "etc/hosts"), []byte(hosts), 0o644); err != nil {
		t.Fatal(err)
	}
	says := map[string]string{"npm": "https://user:secret@npm.example/x/\n", "go": "https://a:b@go.example,direct\n"}
	h := clientconfig.Host{Root: root, Run: func(_ context.Context, name string, _ ...string) (string, error) {
		if text, installed := says[name]; installed {
			return text, nil
		}
		return "", &exec.Error{Name: name, Err: exec.ErrNotFound}
	}}
	got, err := h.Read(t.Context())
	want := clientconfig.Config{
		Certificates: "-----BEGIN CERTIFICATE-----\na\n-----BEGIN CERTIFICATE-----\nb\n",
		NPM:          "https://npm.example/x/", Go: "https://go.example,direct",
		Hosts: []string{"192.0.2.1 npm.example npm", "192.0.2.2 pypi.example"},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("Read() = %+v, %v, want %+v", got, err, want)
	}
	broken := errors.New("broken")
	h.Run = func(context.Context, string, ...string) (string, error) { return "", broken }
	if _, err := h.Read(t.Context()); !errors.Is(err, broken) {
		t.Errorf("Read() = %v, want %v", err, broken)
	}
}
