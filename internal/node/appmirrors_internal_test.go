package node

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/lib/config"
	"github.com/pandastack/pandastack/internal/os/clientconfig"
)

func TestAppMirrors(t *testing.T) {
	const authority = "-----BEGIN CERTIFICATE-----\nx\n"
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, []byte(authority), 0o600); err != nil {
		t.Fatal(err)
	}
	host := clientconfig.Host{Root: t.TempDir(), Run: func(_ context.Context, name string, _ ...string) (string,
		error) {
		if name == "npm" {
			return "https://npm.host.example/\n", nil
		}
		return "", &exec.Error{Name: name, Err: exec.ErrNotFound}
	}}
	m, err := appMirrors(t.Context(), config.AppMirrors{}, host)
	if err != nil || len(m.Env) > 0 || m.Certificates != "" {
		t.Errorf("mirrors %+v, %v without settings, want none", m, err)
	}
	set := config.AppMirrors{FromHost: true, Certificates: file, PyPI: "https://pypi.example/simple",
		Hosts: "192.0.2.1 a.example, 192.0.2.2 b.example"}
	m, err = appMirrors(t.Context(), set, host)
	if err != nil || m.Env["NPM_CONFIG_REGISTRY"] != "https://npm.host.example/" || m.Certificates != authority ||
		m.Env["PIP_INDEX_URL"] != set.PyPI || m.Env["UV_DEFAULT_INDEX"] != set.PyPI || len(m.Hosts) != 2 ||
		m.Env["NODE_EXTRA_CA_CERTS"] != machineBundle {
		t.Errorf("mirrors %+v, %v", m, err)
	}
	set.NPM = "https://npm.example/"
	if m, err = appMirrors(t.Context(), set, host); err != nil || m.Env["NPM_CONFIG_REGISTRY"] != set.NPM {
		t.Errorf("mirrors %+v, %v, want the setting before the host's", m, err)
	}
	set.Cargo, set.Maven = "https://cargo.example/index", "https://maven.example/a&b/"
	m, err = appMirrors(t.Context(), set, host)
	cargo := `registry = "sparse+https://cargo.example/index/"`
	if err != nil || !strings.Contains(m.Files["/.cargo/config.toml"], cargo) ||
		!strings.Contains(m.Files["/root/.m2/settings.xml"], "<url>https://maven.example/a&amp;b/</url>") ||
		m.Env["MVNW_REPOURL"] != "https://maven.example/a&b" {
		t.Errorf("mirrors %+v, %v", m, err)
	}
	for _, bad := range []string{filepath.Join(t.TempDir(), "none"), os.DevNull} {
		if _, err := appMirrors(t.Context(), config.AppMirrors{Certificates: bad}, host); err == nil {
			t.Errorf("certificates in %s are no error", bad)
		}
	}
}
