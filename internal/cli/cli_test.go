package cli_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/cli"
)

// run runs one command line with an empty home directory, and returns its exit code and output.
func run(t *testing.T, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	home := t.TempDir()
	p := cli.Process{
		Version: "test",
		Env:     append([]string{"HOME=" + home, "PANDASTACK_DATA_DIR=" + home}, env...),
		Stdin:   strings.NewReader(""),
		Stdout:  &out,
		Stderr:  &errs,
	}
	code = cli.Run(t.Context(), p, args)
	return code, out.String(), errs.String()
}

func TestWrongUse(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"unknown-command",
			[]string{"nonsense"}, 2,
			`unknown command "nonsense" in "pandastack"; pandastack --help lists them`},
		{"command-of-a-group",
			[]string{"exec", "sbx", "true"}, 2,
			`unknown command "exec" in "pandastack"; did you mean sandbox exec?`},
		{
			"command-of-groups", []string{"create"}, 2,
			"; did you mean app create or backup create or db create or fn create or key create or sandbox create or " +
				"schedule create or volume create or workspace create?",
		},
		{"unknown-flag", []string{"sandbox", "list", "--loud"}, 2, "unknown flag: --loud"},
		{"missing-argument", []string{"sandbox", "get"}, 2, "(0 given); usage: pandastack sandbox get ID"},
		{"unknown-word",
			[]string{"sandbox", "creat"}, 2,
			`unknown command "creat" in "pandastack sandbox"; did you mean create?`},
		{"unknown-monitor", []string{"conformance", "xen"}, 2, "usage: pandastack conformance {firecracker|qemu}"},
		{"unknown-group",
			[]string{"bench", "--only", "create,creat"}, 2,
			`--only: unknown group of series "creat"; the groups are create, exec`},
		{"bench-nowhere",
			[]string{"bench", "--output", "/nowhere/report.json"}, 2,
			"--output: /nowhere is not a directory"},
		{"bench-nothing", []string{"bench", "--scale", "0"}, 2, "--scale and --max-idle must be positive"},
		{"unknown-kernel",
			[]string{"setup", "--kernel", "fast"}, 2,
			`--kernel: "fast" is neither distribution nor tuned`},
		{"no-id", []string{"sandbox", "get", ""}, 5, `sandbox "" not found`},
		{"name", []string{"sandbox", "get", "x"}, 12, "cannot reach the server"},
		{"no-command",
			[]string{"sandbox", "exec", "sbxaaaaaaaaaaaaaaaaaaaa"}, 2,
			"usage: pandastack sandbox exec ID [flags] COMMAND"},
		{"two-sides", []string{"sandbox", "cp", "a", "b"}, 2, "exactly one side"},
		{"no-state", []string{"sandbox", "list", "--status", "asleep"}, 2, `"asleep" is not a state`},
		{"delete-nothing", []string{"sandbox", "delete"}, 2, "--all"},
		{"allow-alone", []string{"sandbox", "create", "--allow-out", "a.example"}, 2, "add --no-internet"},
		{"no-domain",
			[]string{"sandbox", "network", "sbxaaaaaaaaaaaaaaaaaaaa", "--deny-out", "a.example:443"}, 2,
			`deny_out: "a.example:443" is not`},
		{"open-and-shut",
			[]string{"sandbox", "network", "sbxaaaaaaaaaaaaaaaaaaaa", "--open", "--no-internet"}, 2,
			"none of the others can be"},
		{"no-node", []string{"--api", "http://127.0.0.1:1", "sandbox", "list"}, 12, "cannot reach"},
		{"no-address", []string{"--api", "nowhere", "sandbox", "list"}, 2, "is not like http://host:port"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, out, errs := run(t, nil, tt.args...)
			if code != tt.code || !strings.Contains(errs, tt.want) || out != "" {
				t.Errorf(
					"exit %d, stdout %q, stderr %q; want exit %d, stderr with %q",
					code,
					out,
					errs,
					tt.code,
					tt.want,
				)
			}
			if n := strings.Count(strings.TrimSpace(errs), "\n"); n > 0 {
				t.Errorf("the error takes %d lines, want one:\n%s", n+1, errs)
			}
		})
	}
}

func TestJSONErrors(t *testing.T) {
	code, _, errs := run(t, nil, "--json", "--api", "http://127.0.0.1:1", "sandbox", "list")
	if code != 12 || !strings.Contains(errs, `"code": "unavailable"`) {
		t.Errorf("exit %d, stderr %s", code, errs)
	}
}

// TestNodeWantsAKey checks the hint for a key that belongs to another node, as with two nodes on one machine.
func TestNodeWantsAKey(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"code": "unauthenticated", "error": "no key"}`)
	}))
	defer other.Close()
	code, _, errs := run(t, nil, "--api", other.URL, "sandbox", "list")
	if code != 3 || !strings.Contains(errs, "no key; give a key of this node with --key") {
		t.Errorf("exit %d, stderr %s", code, errs)
	}
}

func TestConfigExplain(t *testing.T) {
	code, out, errs := run(t, []string{"PANDASTACK_LOG_LEVEL=debug"}, "config", "explain")
	if code != 0 || !strings.Contains(out, "log.level = \"debug\"\n    from PANDASTACK_LOG_LEVEL\n") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
	code, _, errs = run(t, []string{"PANDASTACK_LOG_LEVEL=loud"}, "config", "explain")
	if code != 2 || !strings.Contains(errs, `log.level: "loud" is not one of`) {
		t.Errorf("exit %d: %s", code, errs)
	}
}

func TestCompletion(t *testing.T) {
	code, out, _ := run(t, nil, "completion", "bash")
	if code != 0 || !strings.Contains(out, "pandastack") {
		t.Errorf("exit %d, %d bytes", code, len(out))
	}
	_, out, _ = run(t, nil, "__complete", "sandbox", "f")
	if !strings.Contains(out, "fork-tree") {
		t.Errorf("completes to %q", out)
	}
}

// TestRelativePaths gives paths relative to the working directory, by flag and by variable.
func TestRelativePaths(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	code, out, errs := run(
		t,
		[]string{"PANDASTACK_OBJECT_STORE_KEY=keys/master"},
		"config",
		"explain",
		"--data-dir",
		"data",
	)
	for _, want := range []string{
		"data_dir = \"" + filepath.Join(dir, "data") + "\"\n    from --data-dir\n",
		"object_store.key = \"" + filepath.Join(dir, "keys/master") + "\"\n    from PANDASTACK_OBJECT_STORE_KEY\n",
	} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("exit %d, %s\n%s\nwant %s", code, errs, out, want)
		}
	}
	for _, tt := range []struct{ variable, value, want string }{
		{"PANDASTACK_VMM_QEMU", "qemu-system-x86_64", "qemu-system-x86_64"}, // a name, to be looked up
		{"PANDASTACK_VMM_QEMU", "bin/qemu", filepath.Join(dir, "bin/qemu")},
		{"PANDASTACK_TLS_LISTEN", ":7443", ":7443"}, // no path at all
	} {
		_, out, errs := run(t, []string{tt.variable + "=" + tt.value}, "config", "explain")
		if want := " = \"" + tt.want + "\"\n    from " + tt.variable + "\n"; !strings.Contains(out, want) {
			t.Errorf("%s=%s: want %q in\n%s%s", tt.variable, tt.value, want, out, errs)
		}
	}
}
