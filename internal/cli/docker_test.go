package cli_test

import (
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/integrationtest"
)

// Commands as users of Docker type them.
func TestCommandsOfDockerUsers(t *testing.T) {
	w := integrationtest.New(t)
	env := []string{"PANDASTACK_API=" + w.URL, "PANDASTACK_API_KEY=" + w.Key}
	web, err := w.Client.Sandboxes.Create(t.Context(), api.CreateRequest{
		Template: "base", Metadata: map[string]string{"name": "web"},
	})
	if err != nil {
		t.Fatal(err)
	}
	id := string(web.ID)
	for _, tt := range []struct {
		args []string
		code int
		out  string // what standard output has to be
		errs string // what standard error has to contain
	}{
		{[]string{"sandbox", "exec", "web", "echo", "-x", "--json", "-i"}, 0, "-x --json -i\n", ""},
		{[]string{"sandbox", "exec", "web", "--", "echo", "a"}, 0, "a\n", ""},
		{[]string{"sandbox", "exec", id[:12], "--user", "root", "--", "echo", "b"}, 0, "b\n", ""},
		{[]string{"sandbox", "exec", "--user", "root", id, "echo", "c"}, 0, "c\n", ""},
		{[]string{"sandbox", "exec", "web"}, 2, "", "usage: pandastack sandbox exec ID"},
		{[]string{"sandbox", "exec", "web", "--user", "root"}, 2, "", "no command was given"},
		{[]string{"sandbox", "exec", "-t", "--timeout", "1s", "web", "true"}, 2, "", "--tty: is not possible"},
		{[]string{"sandbox", "exec", "none", "true"}, 5, "", `sandbox "none" not found`},
		{[]string{"sandbox", "list", "-q"}, 0, id + "\n", ""},
		{[]string{"sandbox", "run", "--rm", "echo", "-x", "d"}, 0, "-x d\n", ""},
		{[]string{"sandbox", "list", "--quiet"}, 0, id + "\n", ""},
		{[]string{"sandbox", "signal", "web", "0"}, 2, "", "is not the number of a process"},
		{[]string{"sandbox", "signal", "web", "1", "NONE"}, 2, "", `"NONE" is not a signal`},
		{[]string{"sandbox", "signal", "web", "4000000", "hup"}, 5, "", "not found"},
		{[]string{"--version"}, 0, "pandastack version test\n", ""},
		{[]string{"sandbox", "rm", "web"}, 0, "", "web deleted"},
	} {
		code, out, errs := run(t, env, tt.args...)
		if code != tt.code || out != tt.out || !strings.Contains(errs, tt.errs) {
			t.Errorf("%v: exit code %d, %q, %q; want %d, %q and %q", tt.args, code, out, errs, tt.code, tt.out, tt.errs)
		}
	}
	if code, _, errs := run(t, env, "sandbox", "create", "-t", "ubuntu-24.04"); code != 0 ||
		!strings.Contains(errs, "ubuntu-24.04 is an alias of base: ") {
		t.Errorf("create by an alias: exit code %d, %q", code, errs)
	}
	if code, out, errs := run(t, env, "capacity"); code != 0 || !strings.Contains(out, "can be promised") {
		t.Errorf("capacity: exit code %d, %q, %q", code, out, errs)
	}
}

func TestProcesses(t *testing.T) {
	w := integrationtest.New(t)
	env := []string{"PANDASTACK_API=" + w.URL, "PANDASTACK_API_KEY=" + w.Key}
	box, err := w.Client.Sandboxes.Create(t.Context(), api.CreateRequest{Template: "base"})
	if err != nil {
		t.Fatal(err)
	}
	res, err := w.Client.Sandboxes.Exec(t.Context(), box.ID, api.ExecRequest{
		Cmd: "sleep 1000 " + strings.Repeat("0", 100), Background: true, Tag: "long",
	})
	if err != nil || res.PID == 0 {
		t.Fatalf("Exec() = %+v, %v", res, err)
	}
	_, out, errs := run(t, env, "sandbox", "ps", string(box.ID))
	if !strings.Contains(out, "sleep 1000") || !strings.Contains(out, "long") || !strings.Contains(out, "...") {
		t.Errorf("ps prints %q, %q", out, errs)
	}
	for line := range strings.Lines(out) {
		if len(line) > 81 {
			t.Errorf("a line of ps has %d columns: %s", len(line)-1, line)
		}
	}
}
