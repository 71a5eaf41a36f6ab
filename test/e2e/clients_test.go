//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// clientLimit is how long a client's whole scenario may take on a busy machine.
const clientLimit = 8 * time.Minute

// TestE2BClient drives a real node with E2B's published JavaScript client, unmodified: every operation of
// the scenario is a test of its own.
func TestE2BClient(t *testing.T) {
	t.Setenv("PANDASTACK_TEST_SPARES", "2")
	dir := dataDir(t)
	n := start(t, dir)
	n.bake("base")
	place := filepath.Join(repository(t), ".cache", "clients", "e2b-2.51.0")
	npmInstall(t, place, "e2b@2.51.0")
	script, err := os.ReadFile(filepath.Join(repository(t), "test", "clients", "e2b.mjs"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(place, "scenario.mjs"), script, 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), clientLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", "scenario.mjs")
	cmd.Dir = place
	cmd.Env = append(os.Environ(), "E2B_API_KEY=e2b_"+strings.TrimPrefix(n.accessKey(), "pds_"), "E2B_API_URL="+n.url, "E2B_SANDBOX_URL="+n.url)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	operations := 0
	for lines := bufio.NewScanner(strings.NewReader(string(out))); lines.Scan(); {
		var told struct {
			Operation, Error string
			OK               bool
		}
		if json.Unmarshal(lines.Bytes(), &told) != nil || told.Operation == "" {
			t.Logf("printed: %s", lines.Text())
			continue
		}
		operations++
		t.Run(strings.ReplaceAll(told.Operation, " ", "-"), func(t *testing.T) {
			if !told.OK {
				t.Error(told.Error)
			}
		})
	}
	if err != nil || operations == 0 {
		t.Errorf("the scenario ended with %v after %d operations", err, operations)
	}
}

// npmInstall puts a published package into dir, once.
func npmInstall(t *testing.T, dir, name string) {
	t.Helper()
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("probe npm: it is not installed on this machine")
	}
	if _, err := os.Stat(filepath.Join(dir, "installed")); err == nil {
		return
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), clientLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", "install", "--prefix", dir, "--no-audit", "--no-fund", "--ignore-scripts", name)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("npm install %s: %v\n%s", name, err, out)
	}
	if err := os.WriteFile(filepath.Join(dir, "installed"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
}
