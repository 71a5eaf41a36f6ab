//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/buildevent"
	"github.com/pandastack/pandastack/test/nodelab"
)

// buildMachine is a sandbox of the template of builds, with the program.
type buildMachine struct {
	t  *testing.T
	n  *nodelab.Node
	id string
}

// run runs a verb of the program with a request and returns its events.
func (m *buildMachine) run(verb string, req buildevent.Request) (all []buildevent.Event) {
	m.t.Helper()
	data, err := json.Marshal(req)
	if err != nil {
		m.t.Fatal(err)
	}
	local := filepath.Join(m.t.TempDir(), "request.json")
	if err := os.WriteFile(local, data, 0o600); err != nil {
		m.t.Fatal(err)
	}
	m.n.OK("sandbox", "cp", local, m.id+":/dev/shm/request.json")
	out := m.n.Sh(m.id, "sudo "+buildevent.Program+" "+verb+" < /dev/shm/request.json || true")
	d := buildevent.NewDecoder()
	bad, err := d.Write([]byte(out+"\n"), func(e buildevent.Event) error {
		if e.Error != nil {
			m.t.Fatalf("%s: %+v\n%s", verb, e.Error, out)
		}
		all = append(all, e)
		return nil
	})
	if bad > 0 || err != nil {
		m.t.Fatalf("%s: %d malformed lines (%v):\n%s", verb, bad, err, out)
	}
	return all
}

// TestBuildProgram builds an app without dependencies in a machine of the template base and starts it.
func TestBuildProgram(t *testing.T) {
	if os.Getenv("PANDASTACK_TEST_SLOW") == "" {
		t.Skip("probe PANDASTACK_TEST_SLOW: it is not set, and TestApps runs the same program")
	}
	dir := nodelab.DataDir(t)
	n := nodelab.Start(t, dir)
	n.Bake("base")
	m := &buildMachine{t: t, n: n, id: n.Create("--template", "base").ID}
	n.OK("sandbox", "cp", filepath.Join(filepath.Dir(nodelab.Program(t)), "pandastack-build"), m.id+":/tmp/program")
	n.Sh(m.id, "sudo install -D -m 755 /tmp/program "+buildevent.Program)
	m.run("setup", buildevent.Request{Mirrors: &buildevent.Mirrors{Hosts: []string{"192.0.2.1 mirror.example"}}})
	n.Sh(m.id, "mkdir -p /tmp/app && cd /tmp/app && "+
		`echo '{"scripts":{"build":"setsid sleep 1000 & setsid sleep 1000 &","start":"node server.js"}}' `+
		"> package.json && "+
		`echo 'require("http").createServer((q, r) => r.end("hello from the app")).listen(process.env.PORT)' `+
		"> server.js && "+
		"tar -cf - . | sudo "+buildevent.Program+" unpack")
	var plan *buildevent.Plan
	for _, e := range m.run("plan", buildevent.Request{}) {
		if e.Plan != nil {
			plan = e.Plan
		}
	}
	if plan == nil || plan.Framework != "node" || len(plan.Steps) == 0 {
		t.Fatalf("plan %+v", plan)
	}
	for i := range plan.Steps {
		m.run("step", buildevent.Request{Step: i})
	}
	var result *buildevent.Result
	for _, e := range m.run("finish", buildevent.Request{}) {
		if e.Result != nil {
			result = e.Result
		}
	}
	if result == nil || result.Start != "npm run start" || result.Runtime != "node" {
		t.Fatalf("result %+v", result)
	}
	if got := n.Sh(m.id, "pgrep -x sleep; true"); got != "" {
		t.Errorf("processes %q outlive the build", got)
	}
	start := fmt.Sprintf("cd %s && PATH=%s PORT=3000 setsid %s >/tmp/app.log 2>&1 & "+
		"for i in $(seq 300); do curl -sf localhost:3000 && exit; sleep 0.1; done; cat /tmp/app.log",
		result.Workdir, result.Env["PATH"], result.Start)
	if got := n.Sh(m.id, "sudo sh -c '"+start+"'"); !strings.Contains(got, "hello from the app") {
		t.Errorf("the app says %q", got)
	}
	got := n.Sh(m.id, "getent hosts mirror.example; ls -d /var/lib/pandastack/build 2>&1 || true")
	if !strings.HasPrefix(got, "192.0.2.1") || !strings.Contains(got, "No such file") {
		t.Errorf("the machine says %q, want the name of the mirror and no source", got)
	}
}
