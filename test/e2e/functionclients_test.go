//go:build e2e

package e2e

import (
	"os/exec"
	"testing"

	"github.com/pandastack/pandastack/test/nodelab"
)

var functionClients = []published{
	{client: "@pandastack/sdk", version: "0.9.0", script: "test/sdk/functions.mjs", part: "functions", plain: true},
	{
		client: "pandastack", version: "0.10.0", script: "test/sdk/functions.py", part: "functions",
		program: "python3", plain: true,
	},
}

// TestPublishedFunctions drives the functions of a real node with the published SDKs, as TestPublishedClients does. The
// functions need nothing from a registry.
func TestPublishedFunctions(t *testing.T) {
	for _, name := range []string{"npm", "node", "python3"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("probe %s: it is not installed on this host", name)
		}
	}
	n := nodelab.Start(t, nodelab.DataDir(t))
	n.Bake("base")
	defer n.Clean()
	w := &clientSetup{Node: n}
	for _, p := range functionClients {
		t.Run(p.client+"-"+p.version+"-"+p.registry(), func(t *testing.T) {
			if err := p.install(t.Context(), p.dir(t)); err != nil {
				t.Fatal(err)
			}
			p.drive(t, w)
		})
	}
}
