package cli_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
)

const gatewayKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"

// gateway serves where the SSH gateway is, and returns the environment of the command line.
func gateway(t *testing.T, at api.SSHGateway) []string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(at)
	}))
	t.Cleanup(srv.Close)
	return []string{"PANDASTACK_API=" + srv.URL, "PANDASTACK_API_KEY=pds_" + strings.Repeat("0", 32)}
}

// OpenSSH reads the file that ssh-config writes.
func TestSSHConfig(t *testing.T) {
	env := gateway(t, api.SSHGateway{Host: "ssh.example.com", Port: 2222, HostKeys: []string{gatewayKey}})
	id := string(api.NewSandboxID())
	file := filepath.Join(t.TempDir(), "config")
	if code, _, errs := run(t, env, "ssh-config", "--output", file, id); code != 0 {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
		t.Errorf("the file has the mode %v, %v", info.Mode(), err)
	}
	program, err := exec.LookPath("ssh")
	if err != nil {
		t.Skip("probe ssh: not installed")
	}
	out, err := exec.CommandContext(t.Context(), program, "-G", "-F", file, id+".pandastack").CombinedOutput()
	if err != nil {
		t.Fatalf("ssh -G: %v: %s", err, out)
	}
	for _, want := range []string{
		"hostname ssh.example.com", "port 2222", "user " + id, "stricthostkeychecking true",
		"knownhostscommand /bin/echo pandastack-gateway " + gatewayKey,
	} {
		if !strings.Contains(string(out), want+"\n") {
			t.Errorf("ssh reads %s, want %q in it", out, want)
		}
	}
}

// What a hostile server says of its gateway does not get into a configuration file or the arguments of ssh.
func TestSSHConfigOfHostileServer(t *testing.T) {
	for name, at := range map[string]api.SSHGateway{
		"option":   {Host: "-oProxyCommand=id", Port: 22, HostKeys: []string{gatewayKey}},
		"line":     {Host: "a\n  ProxyCommand id", Port: 22, HostKeys: []string{gatewayKey}},
		"port":     {Host: "a", Port: 70000, HostKeys: []string{gatewayKey}},
		"no key":   {Host: "a", Port: 22},
		"key":      {Host: "a", Port: 22, HostKeys: []string{"x\n  ProxyCommand id"}},
		"no host":  {Port: 22, HostKeys: []string{gatewayKey}},
		"brackets": {Host: "a b", Port: 22, HostKeys: []string{gatewayKey}},
	} {
		for _, command := range []string{"ssh-config", "ssh"} {
			code, out, errs := run(t, gateway(t, at), command, string(api.NewSandboxID()))
			if code == 0 || strings.Contains(out, "ProxyCommand") || !strings.Contains(errs, "the server") {
				t.Errorf("%s: %s: exit code %d, %q, %q", name, command, code, out, errs)
			}
		}
	}
}
