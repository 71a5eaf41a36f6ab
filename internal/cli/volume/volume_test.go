package volume_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
	"github.com/pandastack/pandastack/internal/cli/volume"
)

// server returns reply to every call and keeps the last call.
type server struct {
	*httptest.Server
	call, body string
	reply      any
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.call, s.body = r.Method+" "+r.URL.RequestURI(), string(body)
		if text, ok := s.reply.(string); ok {
			_, _ = io.WriteString(w, text)
			return
		}
		_ = json.NewEncoder(w).Encode(s.reply)
	}))
	t.Cleanup(s.Close)
	return s
}

// run runs one command of the group.
func (s *server) run(t *testing.T, asJSON bool, stdin string, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	f := &cmdutil.Factory{JSON: asJSON, Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: io.Discard,
		Dial: func() (*client.Client, error) { return client.New(s.URL, "pds_test") }}
	c := volume.Command(f)
	c.SilenceUsage, c.SilenceErrors = true, true
	c.SetArgs(args)
	err := c.ExecuteContext(t.Context())
	return out.String(), err
}

func TestCalls(t *testing.T) {
	s := newServer(t)
	one := api.Volume{ID: "vol1", Name: "data", SizeMB: 256, SizeBytes: 256 << 20, AttachedTo: "sbx1"}
	for _, tt := range []struct {
		args  string
		reply any
		call  string
		body  string
		out   string // part of the output
	}{
		{"create data --size 512", one, "POST /v1/volumes", `{"name":"data","size_mb":512}`, "vol1"},
		{"create data --from-backup bkp1 --daily 7", one, "POST /v1/volumes",
			`{"name":"data","from_backup":"bkp1","backup":{"keep":{"daily":7},"at_detach":true}}`, "data"},
		{"list", []api.Volume{one}, "GET /v1/volumes", "", "256.0 MiB"},
		{"get data", one, "GET /v1/volumes/data", "", "sbx1"},
		{"delete data", nil, "DELETE /v1/volumes/data", "", ""},
		{"delete data --snapshots", nil, "DELETE /v1/volumes/data?snapshots=1", "", ""},
		{"resize data --size 512", one, "PATCH /v1/volumes/data", `{"size_mb":512}`, "vol1"},
		{"clone data copy", one, "POST /v1/volumes/data/clone", `{"name":"copy"}`, "vol1"},
		{"snapshot data --name a", api.VolumeSnapshot{ID: "vsn1"}, "POST /v1/volumes/data/snapshots", `{"name":"a"}`,
			"vsn1\n"},
		{"snapshots data", []api.VolumeSnapshot{{ID: "vsn1"}}, "GET /v1/volumes/data/snapshots", "", "vsn1"},
		{"delete-snapshot data vsn1", nil, "DELETE /v1/volumes/data/snapshots/vsn1", "", ""},
		{"restore data --from-snapshot vsn1", one, "POST /v1/volumes/data/restore", `{"snapshot":"vsn1"}`, "vol1"},
		{"attach data sbx1 --at /srv --read-only", api.Sandbox{ID: "sbx1"}, "POST /v1/sandboxes/sbx1/volumes",
			`{"name":"data","read_only":true,"mount_path":"/srv"}`, "data at /srv of sbx1"},
		{"detach data sbx1 --force", api.Sandbox{}, "DELETE /v1/sandboxes/sbx1/volumes/data?force=1", "", ""},
		{"promote data sbx1 mine", one, "POST /v1/sandboxes/sbx1/volumes/data/promote", `{"name":"mine"}`, "vol1"},
		{"backup data", api.VolumeBackup{ID: "bkp1"}, "POST /v1/volumes/data/backups", "", "bkp1\n"},
		{"backups data", []api.VolumeBackup{{ID: "bkp1"}}, "GET /v1/volumes/data/backups", "", "bkp1"},
		{"backups --everywhere", []api.VolumeBackup{}, "GET /v1/volume-backups?everywhere=1", "", "STORED"},
		{"delete-backup bkp1", nil, "DELETE /v1/volume-backups/bkp1", "", ""},
		{"keep data", one, "PATCH /v1/volumes/data", `{"backup":{"keep":{}}}`, "vol1"},
		{"files data:models", api.DirListing{Entries: []api.FileEntry{{Name: "a", IsDir: true}}},
			"GET /v1/volumes/data/fs/dir?path=%2Fmodels", "", "a/"},
		{"files data", api.DirListing{}, "GET /v1/volumes/data/fs/dir?path=%2F", "", "NAME"},
		{"cat data:/a", "content", "GET /v1/volumes/data/fs?path=%2Fa", "", "content"},
		{"cp data:/a -", "content", "GET /v1/volumes/data/fs?path=%2Fa", "", "content"},
		{"cp - data:/a", api.FileWritten{}, "PUT /v1/volumes/data/fs?path=%2Fa", "stdin", ""},
		{"remove data:/a -r", nil, "DELETE /v1/volumes/data/fs?path=%2Fa&recursive=1", "", ""},
		{"import data:/site", nil, "POST /v1/volumes/data/import?path=%2Fsite", "stdin", ""},
		{"export data", "tar", "GET /v1/volumes/data/export?path=%2F", "", "tar"},
	} {
		s.reply = tt.reply
		out, err := s.run(t, false, "stdin", strings.Fields(tt.args)...)
		if err != nil || s.call != tt.call || strings.TrimSpace(s.body) != tt.body || !strings.Contains(out, tt.out) {
			t.Errorf("%s: %s %s gives %q, %v; want %s %s and %q",
				tt.args, s.call, s.body, out, err, tt.call, tt.body, tt.out)
		}
	}
}

func TestJSON(t *testing.T) {
	s := newServer(t)
	s.reply = []api.Volume{{ID: "vol1", Name: "data"}}
	out, err := s.run(t, true, "", "list")
	var got []api.Volume
	if err != nil || json.Unmarshal([]byte(out), &got) != nil || len(got) != 1 || got[0].ID != "vol1" {
		t.Errorf("got %s, %v", out, err)
	}
}

func TestLocalFiles(t *testing.T) {
	s := newServer(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "model.bin")
	if err := os.WriteFile(file, []byte("weights"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.reply = api.FileWritten{}
	if _, err := s.run(t, false, "", "cp", file, "data:/models/"); err != nil || s.body != "weights" ||
		s.call != "PUT /v1/volumes/data/fs?path=%2Fmodels%2Fmodel.bin" {
		t.Errorf("upload: %s %q, %v", s.call, s.body, err)
	}
	s.reply = "from the volume"
	if _, err := s.run(t, false, "", "cp", "data:/a/result", dir); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "result")); err != nil || string(got) != "from the volume" {
		t.Errorf("download: %q, %v", got, err)
	}
	_, err := s.run(t, false, "", "cp", dir, "data:/x")
	if err == nil || !strings.Contains(err.Error(), "volume import") {
		t.Errorf("a directory: %v", err)
	}
	for _, wrong := range [][]string{{"cp", "a", "b"}, {"cp", "data:/a", "data:/b"}, {"resize", "data"}, {"restore"}} {
		if _, err := s.run(t, false, "", wrong...); err == nil {
			t.Errorf("%v succeeds", wrong)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".pandastack-*")); left != nil {
		t.Errorf("left behind: %v", left)
	}
}
