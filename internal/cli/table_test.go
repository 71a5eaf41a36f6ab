package cli_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/cli"
)

// screen is a terminal of some columns.
type screen struct {
	bytes.Buffer
	columns int
}

func (s *screen) Columns() int { return s.columns }

// id returns an id of a kind, which a number distinguishes at its end or, if it is negative, early.
func id(kind string, n int) string {
	if n < 0 {
		return fmt.Sprintf("%s%d%s", kind, -n, strings.Repeat("y", 19))
	}
	return fmt.Sprintf("%s%s%02d", kind, strings.Repeat("x", 18), n)
}

// lists returns what a server with long names has, by path.
func lists() map[string]any {
	ago := time.Now().Add(-3*time.Hour - 30*time.Minute)
	later := time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)
	long := strings.Repeat("long ", 30)
	box := api.Sandbox{
		ID: api.SandboxID(id("sbx", -1)), Status: "paused", PauseReason: "waiting for disk space", Template: "base",
		MemoryMB: 512, CPU: 2, DiskMB: 4096, CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Metadata:   map[string]string{"name": "web", "owner": long},
		Persistent: true, FailureReason: long,
	}
	other, escape := box, box
	other.ID, other.PauseReason, other.Template = api.SandboxID(id("sbx", -2)), "", "code-interpreter"
	escape.ID, escape.Metadata = api.SandboxID(id("sbx", -3)), map[string]string{"name": "a\x1b[2J\nb"}
	return map[string]any{
		"/v1/sandboxes":                   []api.Sandbox{box, other, escape},
		"/v1/sandboxes/" + string(box.ID): box,
		"/v1/sandboxes/" + string(box.ID) + "/ports": []api.Port{
			{Port: 8080, Label: "web", Listening: true, Program: "python3 -m http.server 8080"},
		},
		"/v1/snapshots": []api.Snapshot{{
			ID: api.SnapshotID(id("snp", -1)), Name: "before the upgrade", SandboxID: box.ID,
			Template: "code-interpreter", SizeBytes: 900 << 20, CreatedAt: ago,
		}},
		"/v1/templates": []api.Template{
			{
				Name: "code-interpreter", Baked: true, CPU: 2, MemoryMB: 2048, DiskMB: 8192, SizeBytes: 3 << 30,
				ApparentBytes: 9 << 30, Description: long,
			},
			{Name: "mini", Bake: &api.Bake{State: "running", Step: "boot and warm up", Percent: 42}},
		},
		"/v1/templates/builds": []api.Build{{
			ID: api.BuildID(id("bld", 1)), Name: "my-own-template", Status: "building", Steps: 12, StepsDone: 3,
			Step: "RUN apt-get install -y " + long,
		}},
		"/v1/volumes": []api.Volume{{
			Name: "models-of-the-research-group", SizeBytes: 100 << 30, UsedBytes: 51 << 30, AttachedTo: box.ID,
			CreatedAt: ago,
		}},
		"/v1/databases": []api.Database{{
			ID: api.DatabaseID(id("dbs", -1)), Label: "shop in production, in the region of the west", Size: "16g",
			Status: "provisioning", Version: "16.10 (Ubuntu 16.10-1)", CreatedAt: float64(ago.Unix()),
		}},
		"/v1/schedules": []api.Schedule{{
			ID: api.ScheduleID(id("sch", 1)), Name: "report-of-every-working-day", Cron: "0,15,30,45 9-17 * * 1-5",
			LastStatus: "succeeded", Paused: true,
		}},
		"/v1/apps": []api.App{{
			Name: "my-own-project", Status: "running", CreatedAt: ago,
			URL: "https://my-own-project-with-a-suffix.apps.sandboxes.example.com",
		}},
		"/v1/functions": []api.Function{{
			Name: "hello-of-the-team", Runtime: "python3.12", Status: "active", Version: 12, CreatedAt: ago,
			URL: "https://hello-of-the-team-with-a-suffix.fn.sandboxes.example.com",
		}},
		"/v1/me/tokens": api.TokenList{Items: []api.Token{{
			Prefix: "pds_abcdefgh", Label: "continuous integration", Role: "developer", Scopes: []api.Scope{"read"},
			CIDRs: []string{"192.0.2.0/24", "2001:db8::/32"}, CreatedAt: ago, LastUsedAt: &ago, ExpiresAt: &later,
			Operator: true,
		}}},
		"/v1/workspaces": api.WorkspaceList{Items: []api.WorkspaceInfo{
			{ID: "acme-of-the-west", Name: "The workspace of Acme, " + long, Status: "active", CreatedAt: ago},
		}},
		"/v1/workspace": api.WorkspaceInfo{Quotas: []api.Quota{
			{Kind: "builds_per_hour", Used: new(int64), Allowed: 1000, Unit: "builds", Summary: long},
		}},
		"/v1/audit": api.AuditList{Entries: []api.AuditEntry{{
			Time: later, Workspace: "acme-of-the-west", Key: "pds_abcdefgh", Remote: "2001:db8::1234:5678",
			Action: "DELETE /v1/sandboxes/{sandbox}", Target: string(box.ID), Outcome: "not_found",
		}}},
		"/v1/ssh-keys": []api.SSHKey{{
			ID: api.SSHKeyID(id("ssh", 1)), Label: "ada@workstation.research.example.com", KeyPrefix: "pds_abcdefgh",
			CreatedAt: ago,
		}},
		"/v1/capacity": api.Capacity{
			Driver: "qemu", DriverVersion: "10.0.2 (Debian 1:10.0.2+ds-2+deb13u1~bpo12+1)", Accelerator: "tcg",
			CPUs:     16,
			MemoryMB: 65536, MemoryShort: true,
		},
	}
}

// TestTables prints every list in terminals of several widths. The golden file has those of 80 columns.
func TestTables(t *testing.T) {
	all := lists()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reply, ok := all[r.URL.Path]
		if !ok {
			t.Errorf("the command asks for %s, which the test does not have", r.URL.Path)
		}
		_ = json.NewEncoder(w).Encode(reply)
	}))
	defer srv.Close()
	address := regexp.MustCompile(`127\.0\.0\.1:[0-9]+`)
	box := id("sbx", -1)
	var tables strings.Builder
	for _, line := range []string{
		"sandbox list", "sandbox get " + box, "sandbox ports " + box, "snapshot list", "template list",
		"template builds", "volume list", "db list", "schedule list", "app list", "fn list", "key list",
		"workspace list", "workspace quota", "audit list", "ssh-key list", "capacity",
	} {
		for _, columns := range []int{80, 120} {
			out := print(t, srv.URL, columns, strings.Fields(line)...)
			out = address.ReplaceAllString(out, "127.0.0.1:54321")
			if columns == 80 {
				fmt.Fprintf(&tables, "$ pandastack %s\n%s\n", line, out)
			}
			for l := range strings.Lines(out) {
				n := utf8.RuneCountInString(strings.TrimSuffix(l, "\n"))
				if n > columns || strings.Contains(l, "\x1b") {
					t.Errorf("%s: a line of %d columns in a terminal of %d: %q", line, n, columns, l)
				}
			}
		}
		whole := print(t, srv.URL, 0, strings.Fields(line)...)
		if wide := print(t, srv.URL, 80, append(strings.Fields(line), "-o", "wide")...); wide != whole {
			t.Errorf("%s -o wide gives %q, want what is printed into a file: %q", line, wide, whole)
		}
	}
	golden(t, filepath.Join("testdata", "tables.txt"), tables.String())
}

// golden compares text with a file, and writes the file with the flag -update, which the tests of package cli have.
func golden(t *testing.T, file, text string) {
	t.Helper()
	if flag.Lookup("update").Value.String() == "true" {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil || text != string(want) {
		t.Errorf("%s is not current (%v); run make generate; it has to be:\n%s", file, err, text)
	}
}

// print runs a command in a terminal of some columns, or none for 0, and returns what it prints.
func print(t *testing.T, server string, columns int, args ...string) string {
	t.Helper()
	out := &screen{columns: columns}
	var errs strings.Builder
	home := t.TempDir()
	code := cli.Run(t.Context(), cli.Process{
		Env:   []string{"HOME=" + home, "PANDASTACK_API=" + server, "PANDASTACK_API_KEY=pds_x"},
		Stdin: strings.NewReader(""), Stdout: out, Stderr: &errs,
	}, args)
	if code != 0 {
		t.Errorf("%v: exit code %d: %s", args, code, errs.String())
	}
	return out.String()
}

// TestQuietLists prints names alone.
func TestQuietLists(t *testing.T) {
	all := lists()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(all[r.URL.Path])
	}))
	defer srv.Close()
	for command, want := range map[string]string{
		"snapshot list -q": id("snp", -1), "template ls --quiet": "code-interpreter\nmini",
		"key list -q":    "pds_abcdefgh",
		"volume list -q": "models-of-the-research-group", "db list -q": id("dbs", -1), "app list -q": "my-own-project",
		"fn list -q": "hello-of-the-team", "schedule list -q": id("sch", 1), "workspace list -q": "acme-of-the-west",
	} {
		if got := print(t, srv.URL, 80, strings.Fields(command)...); got != want+"\n" {
			t.Errorf("%s prints %q, want %q", command, got, want)
		}
	}
}
