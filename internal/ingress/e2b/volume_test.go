package e2b_test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/ingress/access"
	"github.com/pandastack/pandastack/internal/ingress/e2b"
)

type madeVolume struct {
	VolumeID, Name, Token string
}

func (w *fixture) newVolume(name string) madeVolume {
	w.t.Helper()
	var v madeVolume
	w.decode(w.must(201, "POST", "/volumes", fmt.Sprintf(`{"name":%q}`, name)), &v)
	return v
}

// contentOf sends a request for what a volume has, as clients do, with a token.
func (w *fixture) contentOf(token, id, method, what, query, body string) (int, string) {
	w.t.Helper()
	at := fmt.Sprintf("%s/volumecontent/%s/%s?%s", w.url, id, what, query)
	req, err := http.NewRequestWithContext(w.t.Context(), method, at, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	status, text, _ := w.do(req)
	return status, text
}

func TestVolumes(t *testing.T) {
	w := newFixture(t)
	v := w.newVolume("data")
	if v.VolumeID == "" || v.Name != "data" || v.Token == "" {
		t.Errorf("created %+v, want id, name and token", v)
	}
	var again madeVolume
	w.decode(w.must(200, "GET", "/volumes/"+v.VolumeID, ""), &again)
	if again.VolumeID != v.VolumeID || again.Name != "data" || again.Token == "" {
		t.Errorf("got %+v, want the volume with a token", again)
	}
	list := w.must(200, "GET", "/volumes", "")
	if want := fmt.Sprintf("[{\"volumeID\":%q,\"name\":\"data\"}]\n", v.VolumeID); list != want {
		t.Errorf("list = %s, want %s", list, want)
	}
	for body, want := range map[string]int{
		`{"name":"data"}`: 409, `{"name":""}`: 400, `{}`: 400, `{"name":"a/b"}`: 400, `{"name":"x","access":1}`: 400,
	} {
		if status, text, _ := w.call("POST", "/volumes", w.key, body); status != want ||
			!strings.Contains(text, "name") && !strings.Contains(text, "access") {
			t.Errorf("create with %s: got %d %s, want %d and the field", body, status, text, want)
		}
	}
	other := w.otherKey()
	for _, method := range []string{"GET", "DELETE"} {
		if status, text, _ := w.call(method, "/volumes/"+v.VolumeID, other, ""); status != 404 {
			t.Errorf("%s from another workspace: got %d %s, want 404", method, status, text)
		}
	}
	for n := range maxVolumes - 1 {
		w.newVolume(fmt.Sprint("more-", n))
	}
	if status, text, header := w.call("POST", "/volumes", w.key, `{"name":"one-more"}`); status != 429 ||
		header.Get("Retry-After") == "" {
		t.Errorf("a volume above the quota: got %d %s, want 429", status, text)
	}
	w.must(204, "DELETE", "/volumes/"+v.VolumeID, "")
	w.must(404, "DELETE", "/volumes/"+v.VolumeID, "")
	w.must(404, "GET", "/volumes/"+v.VolumeID, "")
}

// TestVolumeContent checks every operation on the content of a volume, with and without force, and its refusals.
func TestVolumeContent(t *testing.T) {
	w := newFixture(t)
	v := w.newVolume("data")
	for _, tt := range []struct {
		method, what, query, body string
		status                    int
		has                       []string
	}{
		{"GET", "dir", "path=/", "", 200, []string{"[]"}},
		{"PUT", "file", "path=/a.txt&uid=1001&gid=1002&mode=493", "hello", 201, []string{
			`"name":"a.txt"`, `"type":"file"`, `"path":"/a.txt"`, `"size":5`, `"mode":493`, `"uid":1001`, `"gid":1002`,
			`"atime":"2`, `"mtime":"2`, `"ctime":"2`,
		}},
		{"GET", "file", "path=/a.txt", "", 200, []string{"hello"}},
		{"PUT", "file", "path=/a.txt", "again", 409, []string{"force"}},
		{"PUT", "file", "path=a.txt&force=true", "", 201, []string{`"size":0`}},
		{"GET", "file", "path=/a.txt", "", 200, nil},
		{"PUT", "file", "path=/no/such/b.txt", "x", 404, []string{"/no/such"}},
		{"PUT", "file", "path=/no/such/b.txt&force=1&uid=7", "x", 201, []string{`"uid":7`}},
		{"GET", "path", "path=/no", "", 200, []string{`"type":"directory"`, `"uid":7`}},
		{"PUT", "file", "path=/no&force=true", "x", 409, []string{"directory"}},
		{"POST", "dir", "path=/d1/d2", "", 404, []string{"/d1"}},
		{"POST", "dir", "path=/d1/d2&force=true&mode=448", "", 201, []string{`"mode":448`, `"path":"/d1/d2"`}},
		{"POST", "dir", "path=/d1/d2", "", 409, []string{"exists"}},
		{"POST", "dir", "path=/d1/d2&force=true&mode=511", "", 201, []string{`"mode":448`}},
		{"POST", "dir", "path=/a.txt&force=true", "", 409, []string{"exists"}},
		{"GET", "dir", "path=/d1", "", 200, []string{`"path":"/d1/d2"`}},
		{"GET", "dir", "path=/&depth=3", "", 200, []string{`"/d1/d2"`, `"/no/such/b.txt"`}},
		{"GET", "dir", "path=/nothing", "", 404, nil},
		{"GET", "dir", "path=/a.txt", "", 400, nil},
		{"GET", "file", "path=/nothing", "", 404, nil},
		{"GET", "file", "path=/d1", "", 400, nil},
		{"PATCH", "path", "path=/a.txt", `{"uid":5,"gid":6,"mode":384}`, 200, []string{
			`"uid":5`, `"gid":6`, `"mode":384`}},
		{"PATCH", "path", "path=/a.txt", `{"mode":0}`, 200, []string{`"uid":5`, `"mode":0`}},
		{"PATCH", "path", "path=/a.txt", `{}`, 200, []string{`"uid":5`}},
		{"PATCH", "path", "path=/nothing", `{"mode":384}`, 404, nil},
		{"PATCH", "path", "path=/a.txt", `{"mode":4096}`, 400, []string{"mode"}},
		{"PATCH", "path", "path=/a.txt", `{"uid":4294967295}`, 400, []string{"uid"}},
		{"PATCH", "path", "path=/a.txt", `{"uid":-1}`, 400, []string{"uid"}},
		{"PATCH", "path", "path=/a.txt", `{"owner":1}`, 400, []string{"owner"}},
		{"PUT", "file", "path=/x&uid=-1", "", 400, []string{"uid"}},
		{"PUT", "file", "path=/x&mode=0644x", "", 400, []string{"mode"}},
		{"PUT", "file", "path=/x&force=perhaps", "", 400, []string{"force"}},
		{"GET", "dir", "path=/&depth=-1", "", 400, []string{"depth"}},
		{"GET", "dir", "path=/&depth=65", "", 400, []string{"depth"}},
		{"GET", "dir", "", "", 400, []string{"path"}},
		{"GET", "dir", "path=%00", "", 400, []string{"path"}},
		{"PUT", "file", "force=true&path=/" + strings.Repeat("a/", 100) + "f", "", 400, []string{"path"}},
		{"DELETE", "path", "path=/", "", 400, []string{"root"}},
		{"DELETE", "path", "path=/../..", "", 400, []string{"root"}},
		{"DELETE", "path", "path=/nothing", "", 404, nil},
		{"DELETE", "path", "path=/d1", "", 204, nil},
		{"GET", "path", "path=/d1/d2", "", 404, nil},
	} {
		status, text := w.contentOf(v.Token, v.VolumeID, tt.method, tt.what, tt.query, tt.body)
		if status != tt.status {
			t.Errorf("%s %s?%s: got %d %.300s, want %d", tt.method, tt.what, tt.query, status, text, tt.status)
		}
		for _, want := range tt.has {
			if !strings.Contains(text, want) {
				t.Errorf("%s %s?%s: got %.500s, want %s", tt.method, tt.what, tt.query, text, want)
			}
		}
		if status >= 400 && !strings.Contains(text, fmt.Sprintf(`"code":"%d"`, status)) {
			t.Errorf("%s %s?%s: got %s, want the code as text", tt.method, tt.what, tt.query, text)
		}
	}
}

// TestVolumeTokens checks that a token opens one volume, for no longer and to no more than its key.
func TestVolumeTokens(t *testing.T) {
	l := &log{}
	w := newFixture(t, func(cfg *e2b.Config, keys *auth.Keys) {
		cfg.Guard = access.New(access.Config{FailuresPerMinute: 1000, RecordFileReads: true}, keys, l)
	})
	v, other := w.newVolume("data"), w.newVolume("other")
	_, theirs, err := w.keys.Issue(t.Context(), "another", "theirs")
	if err != nil {
		t.Fatal(err)
	}
	var foreign madeVolume
	_, text, _ := w.call("POST", "/volumes", theirs, `{"name":"data"}`)
	w.decode(text, &foreign)
	parts := strings.Split(v.Token, ".")
	with := func(i int, text string) string {
		other := slices.Clone(parts)
		other[i] = text
		return strings.Join(other, ".")
	}
	for name, tt := range map[string]struct {
		token, id string
		want      int
	}{
		"its own":            {v.Token, v.VolumeID, 200},
		"a key":              {w.key, v.VolumeID, 200},
		"none":               {"", v.VolumeID, 401},
		"of another volume":  {other.Token, v.VolumeID, 401},
		"moved":              {with(0, strings.Replace(parts[0], v.VolumeID, other.VolumeID, 1)), other.VolumeID, 401},
		"of another key":     {with(1, auth.PrefixOf(theirs)), v.VolumeID, 401},
		"longer":             {with(2, "99999999999"), v.VolumeID, 401},
		"not a time":         {with(2, "x"), v.VolumeID, 401},
		"no signature":       {with(3, ""), v.VolumeID, 401},
		"cut":                {v.Token[:len(v.Token)-2], v.VolumeID, 401},
		"by name":            {v.Token, "data", 401},
		"foreign":            {foreign.Token, foreign.VolumeID, 200},
		"key elsewhere":      {w.key, foreign.VolumeID, 404},
		"a long way of dots": {"e2bv_" + strings.Repeat(".", 4000), v.VolumeID, 401},
	} {
		if status, text := w.contentOf(tt.token, tt.id, "GET", "dir", "path=/", ""); status != tt.want {
			t.Errorf("token %s: got %d %s, want %d", name, status, text, tt.want)
		}
	}
	for _, path := range []string{"/volumes", "/volumes/" + v.VolumeID, "/v2/sandboxes"} {
		if status, text, _ := w.call("GET", path, v.Token, ""); status != 401 {
			t.Errorf("GET %s with a token of a volume: got %d %s, want 401", path, status, text)
		}
	}

	// A key that may not use files learns no token.
	reader := w.newKey(auth.KeyRequest{Role: api.RoleViewer})
	var seen madeVolume
	_, text, _ = w.call("GET", "/volumes/"+v.VolumeID, reader, "")
	w.decode(text, &seen)
	if seen.VolumeID != v.VolumeID || seen.Token != "" {
		t.Errorf("a viewer got %+v, want the volume without a token", seen)
	}

	// The token ends with its key.
	writer := w.newKey(auth.KeyRequest{})
	_, text, _ = w.call("GET", "/volumes/"+v.VolumeID, writer, "")
	w.decode(text, &seen)
	if status, text := w.contentOf(seen.Token, v.VolumeID, "PUT", "file", "path=/f", "x"); status != 201 {
		t.Errorf("write with the token of a key: got %d %s, want 201", status, text)
	}
	w.contentOf(seen.Token, v.VolumeID, "GET", "file", "path=/f", "")
	err = w.keys.Revoke(t.Context(), auth.Principal{Workspace: auth.DefaultWorkspace}, auth.PrefixOf(writer))
	if err != nil {
		t.Fatal(err)
	}
	if status, text := w.contentOf(seen.Token, v.VolumeID, "GET", "file", "path=/f", ""); status != 401 {
		t.Errorf("read with the token of a revoked key: got %d %s, want 401", status, text)
	}

	var got []string
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.all {
		if e.Principal.KeyPrefix == auth.PrefixOf(writer) {
			got = append(got, fmt.Sprintf("%s %s %s", e.Action, e.Target, e.Outcome))
		}
	}
	want := []string{
		"PUT /volumecontent/{id}/file " + v.VolumeID + " ok",
		"GET /volumecontent/{id}/file /f " + v.VolumeID + " ok",
	}
	if !slices.Equal(got, want) {
		t.Errorf("recorded of the key %q, want %q", got, want)
	}
}

// TestTokensFailLikeKeys checks that wrong tokens of volumes use up the failed authentications of an address, and that
// a valid one still opens its volume.
func TestTokensFailLikeKeys(t *testing.T) {
	w := newFixture(t, func(cfg *e2b.Config, keys *auth.Keys) {
		cfg.Guard = access.New(access.Config{FailuresPerMinute: 2}, keys, nil)
	})
	v := w.newVolume("data")
	for _, want := range []int{401, 401, 429} {
		status, text := w.contentOf(v.Token+"0", v.VolumeID, "GET", "dir", "path=/", "")
		if status != want {
			t.Errorf("a wrong token: got %d %s, want %d", status, text, want)
		}
	}
	if status, text := w.contentOf(v.Token, v.VolumeID, "GET", "dir", "path=/", ""); status != 200 {
		t.Errorf("a valid token: got %d %s, want 200", status, text)
	}
}

// TestVolumeMounts checks that a sandbox has the volumes that its create names, and that a volume has one writer.
func TestVolumeMounts(t *testing.T) {
	w := newFixture(t)
	v := w.newVolume("data")
	if status, text := w.contentOf(v.Token, v.VolumeID, "PUT", "file", "path=/in", "before"); status != 201 {
		t.Fatalf("write: got %d %s", status, text)
	}
	made := w.create("/v2/sandboxes", `{"templateID":"base","volumeMounts":[{"name":"data","path":"/mnt/d"}]}`)
	const shown = `"volumeMounts":[{"name":"data","path":"/mnt/d"}]`
	for _, path := range []string{"/sandboxes/" + made.SandboxID, "/v2/sandboxes"} {
		if got := w.must(200, "GET", path, ""); !strings.Contains(got, shown) {
			t.Errorf("GET %s = %s, want %s", path, got, shown)
		}
	}
	g, err := w.boxes.Guest(t.Context(), w.principal(), api.SandboxID(made.SandboxID))
	if err != nil {
		t.Fatal(err)
	}
	if info, err := g.Stat(t.Context(), "/mnt/d/in", ""); err != nil || info.Size != 6 {
		t.Errorf("the file in the sandbox = %+v, %v; want 6 bytes", info, err)
	}
	if status, text := w.contentOf(v.Token, v.VolumeID, "PUT", "file", "path=/in&force=1", "after!!"); status != 201 {
		t.Errorf("write to a volume of a sandbox: got %d %s, want 201", status, text)
	}
	if info, err := g.Stat(t.Context(), "/mnt/d/in", ""); err != nil || info.Size != 7 {
		t.Errorf("the file in the sandbox = %+v, %v; want 7 bytes", info, err)
	}
	many := strings.Repeat(`{"name":"d","path":"/x"},`, api.MaxVolumeMounts)
	for body, want := range map[string]struct {
		status int
		text   string
	}{
		`[{"name":"data","path":"/x"}]`:                              {409, made.SandboxID},
		`[{"name":"none","path":"/x"}]`:                              {404, "none"},
		`[{"name":"a b","path":"/x"}]`:                               {400, "volumeMounts[0].name"},
		`[{"name":"data","path":"x"}]`:                               {400, "volumeMounts[0].path"},
		`[{"name":"data"}]`:                                          {400, "volumeMounts[0].path"},
		`[{"name":"data","path":"/proc/x"}]`:                         {400, "volumeMounts[0].path"},
		`[{"name":"data","path":"/x"},{"name":"other","path":"/x"}]`: {400, "/x"},
		`[{"name":"data","path":"/x","readOnly":true}]`:              {400, "readOnly"},
		`"data"`:                                 {400, "volumeMounts"},
		`[` + many + `{"name":"d","path":"/y"}]`: {400, "volumes"},
	} {
		status, text, _ := w.call("POST", "/v2/sandboxes", w.key, `{"templateID":"base","volumeMounts":`+body+`}`)
		if status != want.status || !strings.Contains(text, want.text) {
			t.Errorf("volumeMounts %s: got %d %s, want %d and %s", body, status, text, want.status, want.text)
		}
	}
	if status, text, _ := w.call("DELETE", "/volumes/"+v.VolumeID, w.key, ""); status != 409 {
		t.Errorf("delete of a volume that a sandbox has: got %d %s, want 409", status, text)
	}
	w.must(204, "DELETE", "/sandboxes/"+made.SandboxID, "")
	w.must(204, "DELETE", "/volumes/"+v.VolumeID, "")
}

// TestWithoutVolumes checks that a server without volumes says so.
func TestWithoutVolumes(t *testing.T) {
	w := newFixture(t, func(cfg *e2b.Config, _ *auth.Keys) { cfg.Volumes = nil })
	for _, r := range []route{
		{"GET", "/volumes", "", 0}, {"POST", "/volumes", `{"name":"a"}`, 0}, {"DELETE", "/volumes/a", "", 0},
		{"GET", "/volumecontent/a/dir?" + url.Values{"path": {"/"}}.Encode(), "", 0},
	} {
		if status, text, _ := w.call(r.method, r.path, w.key, r.body); status != 501 ||
			!strings.Contains(text, "volumes") {
			t.Errorf("%s %s: got %d %s, want 501", r.method, r.path, status, text)
		}
	}
}
