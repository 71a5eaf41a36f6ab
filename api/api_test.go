package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
)

// declaredCodes returns the constants of type Code in the source, so that a new code cannot be left out of the table.
func declaredCodes(t *testing.T) []api.Code {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var codes []api.Code
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if id, ok := spec.Type.(*ast.Ident); ok && id.Name == "Code" {
			s, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			codes = append(codes, api.Code(s))
		}
		return true
	})
	return codes
}

func TestCodeTableIsTotal(t *testing.T) {
	declared := declaredCodes(t)
	if len(declared) < 14 {
		t.Fatalf("found only %d codes in the source: %v", len(declared), declared)
	}
	seen := map[api.Code]int{}
	for _, m := range api.Codes() {
		seen[m.Code]++
		if m.Status < 400 || m.Status > 599 || m.Exit < 1 || m.Exit > 255 || m.Summary == "" {
			t.Errorf("%s has info %+v, want status, exit code and summary", m.Code, m)
		}
		if got := m.Code.Info(); got != m {
			t.Errorf("Code(%q).Info() = %+v, want %+v", m.Code, got, m)
		}
	}
	for _, c := range declared {
		if seen[c] != 1 {
			t.Errorf("the table has code %s %d times, want once", c, seen[c])
		}
	}
	if len(seen) != len(declared) {
		t.Errorf("table has %d codes, source declares %d", len(seen), len(declared))
	}
	if got := api.Code("nonsense").Info().Code; got != api.Internal {
		t.Errorf("Info of an unknown code = %s, want internal", got)
	}
}

func TestErrorOnTheWire(t *testing.T) {
	e := api.Errorf(api.NoCapacity, "no room: %w", io.ErrShortWrite).With("free_mib", 12)
	e.RequestID = "reqx"
	b, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"error":"no room: short write","code":"no_capacity","request_id":"reqx","retryable":true,` +
		`"details":{"free_mib":12}}`
	if string(b) != want {
		t.Errorf("body = %s\nwant   %s", b, want)
	}
	if !errors.Is(e, io.ErrShortWrite) {
		t.Error("the error does not wrap its cause")
	}
}

func TestAsError(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want api.Code
	}{
		{"nil", nil, ""},
		{"plain", errors.New("secret /path"), api.Internal},
		{"wrapped", fmt.Errorf("a: %w", api.Errorf(api.Conflict, "x")), api.Conflict},
		{"deadline", fmt.Errorf("a: %w", context.DeadlineExceeded), api.Timeout},
		{"canceled", context.Canceled, api.Canceled},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := api.CodeOf(tt.err); got != tt.want {
				t.Errorf("code = %q, want %q", got, tt.want)
			}
		})
	}
	if msg := api.AsError(errors.New("secret /path")).Message; strings.Contains(msg, "secret") {
		t.Errorf("message %q reveals the cause", msg)
	}
}

func TestIDs(t *testing.T) {
	a, b := api.NewSandboxID(), api.NewSandboxID()
	if a == b || !a.Valid() || !b.Valid() {
		t.Errorf("ids %q and %q: want two different valid ones", a, b)
	}
	if n := len("65535-" + string(a)); n > 63 {
		t.Errorf("a port and an id have %d letters, want at most the 63 of a DNS label", n)
	}
	for _, s := range []string{
		"", "sbx", string(a) + "x", "sbx-" + string(a)[4:], "SBX" + string(a)[3:], "../" + string(a)[3:],
	} {
		if _, err := api.ParseSandboxID(s); api.CodeOf(err) != api.NotFound {
			t.Errorf("ParseSandboxID(%q) = %v, want not_found", s, err)
		}
	}
}

func TestStatusTable(t *testing.T) {
	for _, s := range api.Statuses() {
		if !s.Valid() {
			t.Errorf("%s is not in the table", s)
		}
		if s != api.Stopping && s != api.Deleted && !s.CanBecome(api.Stopping) {
			t.Errorf("%s cannot become stopping, want yes: DELETE is legal in every state", s)
		}
		if s.CanBecome(s) {
			t.Errorf("%s can become itself, want no", s)
		}
		for _, next := range api.Statuses() {
			if s == api.Deleted && s.CanBecome(next) {
				t.Errorf("deleted can become %s, want no", next)
			}
		}
	}
}

type validator interface{ Validate() error }

func TestValidateNamesTheField(t *testing.T) {
	neg, big := int64(-1), int64(1<<40)
	allow := func(entry string) *api.Network { return &api.Network{AllowOut: []string{entry}, DenyOthers: true} }
	many := map[string]string{}
	for i := range 300 {
		many[fmt.Sprint("K", i)] = "v"
	}
	for _, tt := range []struct {
		name  string
		req   validator
		field string // "": valid
	}{
		{"create-empty", &api.CreateRequest{}, ""},
		{"create-template", &api.CreateRequest{Template: "../x"}, "template"},
		{"create-template-deep", &api.CreateRequest{Template: "a/b/c"}, "template"},
		{"create-template-elsewhere", &api.CreateRequest{Template: "ours/app:next"}, ""},
		{"create-snapshot", &api.CreateRequest{FromSnapshot: "x"}, "from_snapshot"},
		{"create-both", &api.CreateRequest{Template: "base", FromSnapshot: api.NewSnapshotID()}, ""},
		{"create-ttl-negative", &api.CreateRequest{TTLSeconds: &neg}, "ttl_seconds"},
		{"create-ttl-big", &api.CreateRequest{TTLSeconds: &big}, "ttl_seconds"},
		{"create-timeout", &api.CreateRequest{TimeoutSeconds: -1}, "timeout_seconds"},
		{"create-disk", &api.CreateRequest{DiskMB: -1}, "disk_mb"},
		{"create-disk-gb", &api.CreateRequest{DiskGB: 5000}, "disk_gb"},
		{"create-cpu", &api.CreateRequest{CPU: -1}, "cpu"},
		{"create-memory", &api.CreateRequest{MemoryMB: -1}, "memory_mb"},
		{"create-volumes",
			&api.CreateRequest{Volumes: []api.VolumeMount{{Name: "v"}, {Name: "w", MountPath: "/mnt/v"}}},
			"volumes"},
		{"create-volume-name", &api.CreateRequest{Volumes: []api.VolumeMount{{Name: "v/w"}}}, "volumes.name"},
		{"create-volume-path", &api.CreateRequest{Volumes: []api.VolumeMount{{Name: "v", MountPath: "/a/../b"}}},
			"volumes.mount_path"},
		{"create-volume-proc", &api.CreateRequest{Volumes: []api.VolumeMount{{Name: "v", MountPath: "/proc/x"}}},
			"volumes.mount_path"},
		{"volume-name", &api.CreateVolumeRequest{Name: ".."}, "name"},
		{"volume-name-of-an-id", &api.CreateVolumeRequest{Name: string(api.NewVolumeID())}, "name"},
		{"volume-size", &api.CreateVolumeRequest{Name: "v", SizeMB: api.MaxVolumeMB + 1}, "size_mb"},
		{"volume-sources", &api.CreateVolumeRequest{Name: "v", FromVolume: "w", FromBackup: api.NewBackupID()},
			"from_volume"},
		{"volume-keep", &api.VolumePatch{Backup: &api.BackupPolicy{Keep: api.Keep{Daily: -1}}}, "backup.keep.daily"},
		{"volume-every", &api.VolumePatch{Backup: &api.BackupPolicy{EverySeconds: 1}}, "backup.every_seconds"},
		{"volume-restore", &api.VolumeRestoreRequest{}, "snapshot"},
		{"create-user", &api.CreateRequest{User: "a b"}, "user"},
		{"create-workdir", &api.CreateRequest{Workdir: "tmp"}, "workdir"},
		{"create-env-name", &api.CreateRequest{Env: map[string]string{"1A": ""}}, "env"},
		{"create-env-zero", &api.CreateRequest{Env: map[string]string{"A": "\x00"}}, "env.A"},
		{"create-env-many", &api.CreateRequest{Env: many}, "env"},
		{"create-env-bytes", &api.CreateRequest{Env: map[string]string{"A": strings.Repeat("x", 1<<18)}}, "env"},
		{"create-metadata-many", &api.CreateRequest{Metadata: many}, "metadata"},
		{"create-metadata-reserved", &api.CreateRequest{Metadata: map[string]string{"kind": "x"}}, "metadata.kind"},
		{"create-metadata-long", &api.CreateRequest{
			Metadata: map[string]string{"a": strings.Repeat("x", 5000)},
		}, "metadata.a"},
		{"create-key", &api.CreateRequest{IdempotencyKey: strings.Repeat("x", 256)}, "Idempotency-Key"},
		{"create-network", &api.CreateRequest{Network: allow("a.example")}, ""},
		{"create-network-and-egress", &api.CreateRequest{Egress: new(bool), Network: allow("a.example")}, "egress"},
		{"create-network-allow", &api.CreateRequest{
			Network: &api.Network{AllowOut: []string{"a.example"}},
		}, "network.deny_others"},
		{"create-network-entry", &api.CreateRequest{Network: allow("a.example/x")}, "network.allow_out"},
		{"network-open", &api.Network{}, ""},
		{"network-ipv6", &api.Network{DenyOut: []string{"::1"}}, "deny_out"},
		{"exec-empty", &api.ExecRequest{}, "cmd"},
		{"exec-zero", &api.ExecRequest{Cmd: "a\x00"}, "cmd"},
		{"exec-long", &api.ExecRequest{Cmd: strings.Repeat("x", 2<<20)}, "cmd"},
		{"exec-timeout", &api.ExecRequest{Cmd: "true", TimeoutSeconds: -1}, "timeout_seconds"},
		{"exec-user", &api.ExecRequest{Cmd: "true", User: "-x"}, "user"},
		{"exec-cwd", &api.ExecRequest{Cmd: "true", Cwd: "\x00"}, "cwd"},
		{"exec-tag", &api.ExecRequest{Cmd: "true", Tag: strings.Repeat("x", 129)}, "tag"},
		{"exec", &api.ExecRequest{Cmd: "true", TimeoutSeconds: 0.5}, ""},
		{"signal", &api.SignalRequest{Signal: 99}, "signal"},
		{"signal-default", &api.SignalRequest{}, ""},
		{"mkdir", &api.MakeDirRequest{}, "path"},
		{"move-from", &api.MoveRequest{To: "/a"}, "from"},
		{"move-to", &api.MoveRequest{From: "/a", To: strings.Repeat("x", 5000)}, "to"},
		{"snapshot-name", &api.SnapshotRequest{Name: "a b"}, "name"},
		{"fork-default", &api.ForkRequest{}, ""},
		{"fork-count", &api.ForkRequest{Count: 65}, "count"},
		{"fork-mode", &api.ForkRequest{Mode: "hot"}, "mode"},
		{"fork-ttl", &api.ForkRequest{TTLSeconds: &neg}, "ttl_seconds"},
		{"fork-tree-count", &api.ForkTreeRequest{Count: -1}, "count"},
		{"promote-tree", &api.PromoteRequest{TreeID: api.TreeID(strings.Repeat("x", 65))}, "tree_id"},
		{"lifecycle-nothing", &api.LifecyclePatch{}, "ttl_seconds"},
		{"lifecycle-timeout", &api.LifecyclePatch{TimeoutSeconds: &neg}, "timeout_seconds"},
		{"port", &api.PortRequest{Port: 70000}, "port"},
		{"port-label", &api.PortRequest{Port: 80, Label: strings.Repeat("x", 65)}, "label"},
		{"preview-ttl", &api.PreviewRequest{Port: 80, TTLSeconds: 604801}, "ttl_seconds"},
		{"preview-path", &api.PreviewRequest{Port: 80, Paths: []string{"x"}}, "paths"},
		{"preview-path-bar", &api.PreviewRequest{Port: 80, Paths: []string{"/a|b"}}, "paths"},
		{"token-days", &api.TokenRequest{ExpiresInDays: -1}, "expires_in_days"},
		{"token-label", &api.TokenRequest{Label: strings.Repeat("x", 129)}, "label"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.req.Validate()
			if tt.field == "" {
				if err != nil {
					t.Fatalf("Validate() = %v, want nil", err)
				}
				return
			}
			e, ok := errors.AsType[*api.Error](err)
			if !ok || e.Code != api.Invalid || e.Details["field"] != tt.field ||
				!strings.HasPrefix(e.Message, tt.field+": ") {
				t.Errorf("error = %#v, want invalid naming field %q", err, tt.field)
			}
		})
	}
}

func TestValidateSetsDefaults(t *testing.T) {
	f, tree := &api.ForkRequest{}, &api.ForkTreeRequest{}
	tok, p := &api.TokenRequest{Name: "n"}, &api.PreviewRequest{Port: 1}
	for _, v := range []validator{f, tree, tok, p} {
		if err := v.Validate(); err != nil {
			t.Fatal(err)
		}
	}
	if f.Count != 1 || tree.Count != 2 || tok.Label != "n" || p.TTLSeconds != 3600 {
		t.Errorf("got %d %d %q %d, want 1 2 n 3600", f.Count, tree.Count, tok.Label, p.TTLSeconds)
	}
}

var update = flag.Bool("update", false, "write the page of error codes")

// TestErrorPage compares docs/errors.md with the table.
func TestErrorPage(t *testing.T) {
	const page = "../docs/errors.md"
	var b strings.Builder
	b.WriteString(
		"# Error codes\n\n" +
			"Every response of the API that is not 2xx is JSON of this form; " +
			"programs compare `code`, never `error`:\n\n" +
			"```json\n" +
			`{"error":"sandbox ... not found","code":"not_found","request_id":"req...",` +
			`"retryable":false,"details":{}}` +
			"\n```\n\n" +
			"`go test ./api -run ErrorPage -update` writes this page from the table in `api/errors.go`.\n\n" +
			"| code | HTTP status | exit code of the command line | retry | meaning |\n|---|---:|---:|---|---|\n",
	)
	for _, m := range api.Codes() {
		retry := "no"
		if m.Retryable {
			retry = "yes"
		}
		fmt.Fprintf(&b, "| `%s` | %d | %d | %s | %s |\n", m.Code, m.Status, m.Exit, retry, m.Summary)
	}
	if *update {
		if err := os.WriteFile(page, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != b.String() {
		t.Error("docs/errors.md differs from the table: run go test ./api -run ErrorPage -update")
	}
}
