package github_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/app/appspec"
	"github.com/pandastack/pandastack/internal/control/app/github"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

const token = "ghp_token"

var sha = strings.Repeat("1", 40)

// standIn is GitHub's API as far as it is used. It refuses what the documents of the API do not allow.
type standIn struct {
	t    *testing.T
	told chan struct{} // after each request

	mu          sync.Mutex
	statuses    []string
	deployments map[int64][]string // states, by id
	comments    map[int64]string
	foreign     map[int64]bool // comments of other users
	requests    []string
	fail        []int // statuses of the next requests
}

// fields are the fields that a request may have; those with * are required.
var fields = map[string]string{
	"POST /repos/acme/shop/statuses/" + sha: "state* target_url description context",
	"POST /repos/acme/shop/deployments": "ref* task auto_merge required_contexts environment description " +
		"transient_environment production_environment payload",
	"POST /repos/acme/shop/deployments/1/statuses": "state* log_url description environment environment_url " +
		"auto_inactive",
	"POST /repos/acme/shop/issues/12/comments": "body*",
}

func (s *standIn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.told <- struct{}{} }()
	s.requests = append(s.requests, r.Method+" "+r.URL.Path)
	w.Header().Set("Content-Type", "application/json")
	reply := func(status int, v any) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v)
	}
	if r.Header.Get("Authorization") != "Bearer "+token {
		reply(401, map[string]string{"message": "Bad credentials"})
		return
	}
	if len(s.fail) > 0 {
		status := s.fail[0]
		s.fail = s.fail[1:]
		reply(status, map[string]string{"message": "no"})
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Error(err)
	}
	var sent map[string]any
	if len(body) > 0 {
		if err := json.Unmarshal(body, &sent); err != nil {
			s.t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
	}
	s.check(r.Method+" "+r.URL.Path, sent)
	var id int64
	switch path := r.URL.Path; {
	case r.Method == "POST" && strings.Contains(path, "/statuses/"+sha):
		s.statuses = append(s.statuses, fmt.Sprint(sent["context"], " ", sent["state"], " ", sent["target_url"]))
		reply(201, sent)
	case r.Method == "GET" && path == "/repos/acme/shop/deployments":
		if q := r.URL.Query(); q.Get("sha") != sha || q.Get("environment") == "" {
			s.t.Errorf("listed deployments with %s", r.URL.RawQuery)
		}
		list := []map[string]any{}
		for id := range s.deployments {
			list = append(list, map[string]any{"id": id})
		}
		reply(200, list)
	case r.Method == "POST" && path == "/repos/acme/shop/deployments":
		id = int64(len(s.deployments) + 1)
		s.deployments[id] = nil
		reply(201, map[string]any{"id": id})
	case r.Method == "POST" && scan(path, "/repos/acme/shop/deployments/%d/statuses", &id):
		s.deployments[id] = append(s.deployments[id], fmt.Sprint(sent["state"]))
		reply(201, sent)
	case r.Method == "GET" && path == "/repos/acme/shop/issues/12/comments":
		list := []map[string]any{}
		for id, text := range s.comments {
			list = append(list, map[string]any{"id": id, "body": text})
		}
		reply(200, list)
	case r.Method == "POST" && path == "/repos/acme/shop/issues/12/comments":
		id = int64(len(s.comments) + 100)
		s.comments[id] = fmt.Sprint(sent["body"])
		reply(201, map[string]any{"id": id})
	case r.Method == "PATCH" && scan(path, "/repos/acme/shop/issues/comments/%d", &id):
		if s.foreign[id] {
			reply(403, map[string]string{"message": "Forbidden"})
		} else if _, ok := s.comments[id]; ok {
			s.comments[id] = fmt.Sprint(sent["body"])
			reply(200, map[string]any{"id": id})
		} else {
			reply(404, map[string]string{"message": "Not Found"})
		}
	default:
		s.t.Errorf("GitHub has no %s %s", r.Method, r.URL)
		reply(404, map[string]string{"message": "Not Found"})
	}
}

func (s *standIn) check(operation string, sent map[string]any) {
	known := strings.Fields(fields[operation])
	for name := range sent {
		if len(known) > 0 && !slices.Contains(known, name) && !slices.Contains(known, name+"*") {
			s.t.Errorf("%s has the field %s", operation, name)
		}
	}
	for _, name := range known {
		if required, ok := strings.CutSuffix(name, "*"); ok && sent[required] == nil {
			s.t.Errorf("%s has no %s", operation, required)
		}
	}
	if text, ok := sent["description"].(string); ok && len(text) > 140 {
		s.t.Errorf("%s: the description has %d bytes", operation, len(text))
	}
}

func scan(path, pattern string, id *int64) bool {
	n, err := fmt.Sscanf(path, pattern, id)
	return err == nil && n == 1
}

type fixture struct {
	*github.Reporter
	t   *testing.T
	hub *standIn
	db  *store.DB
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	db, err := store.Open(t.Context(), store.Config{DSN: filepath.Join(t.TempDir(), "c.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	f := &fixture{t: t, db: db}
	f.hub = &standIn{t: t, told: make(chan struct{}, 1000), deployments: map[int64][]string{},
		comments: map[int64]string{}, foreign: map[int64]bool{}}
	server := httptest.NewServer(f.hub)
	t.Cleanup(server.Close)
	f.Reporter, err = github.New(github.Config{API: server.URL, Retry: time.Millisecond}, db, f,
		slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = f.Run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
	return f
}

// Get implements github.Apps.
func (f *fixture) Get(ctx context.Context, p auth.Principal, app string) (api.App, error) {
	row, err := f.db.Read().App(ctx, app)
	if err != nil || row.Workspace != string(p.Workspace) {
		return api.App{}, api.Errorf(api.NotFound, "app %s not found", app)
	}
	return api.App{ID: api.AppID(app), Name: row.Name, URL: "https://" + row.Name + ".apps.test"}, nil
}

func (f *fixture) insert(name, gitURL, gitToken string, row store.App) store.App {
	f.t.Helper()
	text, err := appspec.Encode(appspec.Settings{GitURL: gitURL, GitToken: gitToken})
	if err != nil {
		f.t.Fatal(err)
	}
	row.ID, row.Workspace, row.Name, row.State, row.Settings = string(api.NewAppID()), "w", name, store.AppActive, text
	err = f.db.Write(f.t.Context(), "test", func(ctx context.Context, tx *store.Tx) error {
		return tx.InsertApp(ctx, &row)
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return row
}

func (f *fixture) observe(app store.App, state api.DeploymentStatus, step, why string) {
	f.Observe(f.t.Context(), app, store.Deployment{ID: string(api.NewDeploymentID()), App: app.ID, State: string(state),
		Source: `{"kind":"git","commit":"` + sha + `"}`, Step: step, Error: why})
}

// wait waits for a number of requests.
func (f *fixture) wait(n int) {
	f.t.Helper()
	for range n {
		select {
		case <-f.hub.told:
		case <-f.t.Context().Done():
			f.t.Fatal("the test ended")
		}
	}
}

func (f *fixture) locked(check func(*standIn)) {
	f.hub.mu.Lock()
	defer f.hub.mu.Unlock()
	check(f.hub)
}

func TestDeploymentIsTold(t *testing.T) {
	f := newFixture(t)
	app := f.insert("shop", "https://github.com/acme/shop.git", token, store.App{})
	f.observe(app, api.DeploymentBuilding, "", "")
	f.wait(4) // status, list, deployment, status of the deployment
	f.observe(app, api.DeploymentLive, "", "")
	f.wait(3)
	f.observe(app, api.DeploymentFailed, "build", strings.Repeat("it is broken ", 100))
	f.wait(3)
	f.locked(func(h *standIn) {
		want := []string{
			"pandastack/shop pending https://shop.apps.test", "pandastack/shop success https://shop.apps.test",
			"pandastack/shop failure https://shop.apps.test",
		}
		if !slices.Equal(h.statuses, want) {
			t.Errorf("statuses %q", h.statuses)
		}
		if !slices.Equal(h.deployments[1], []string{"in_progress", "success", "failure"}) || len(h.deployments) != 1 {
			t.Errorf("deployments %v", h.deployments)
		}
	})
}

func TestPreviewHasOneComment(t *testing.T) {
	f := newFixture(t)
	app := f.insert("shop", "git@github.com:acme/shop", token, store.App{})
	preview := f.insert("pr-12--shop", "https://github.com/acme/shop", "", // the preview of a fork
		store.App{PreviewOf: app.ID, PullRequest: 12, Preview: `{"number":12,"fork":true}`})
	f.locked(func(h *standIn) { // somebody imitates the comment
		h.comments[1], h.foreign[1] = "<!-- pandastack "+app.ID+" --> mine", true
	})
	f.observe(preview, api.DeploymentBuilding, "", "")
	f.wait(4 + 3) // list of comments, attempt at that of another user, comment
	f.observe(preview, api.DeploymentFailed, "build", "say `@everyone` [x](https://evil.test)")
	f.wait(3 + 1)
	f.locked(func(h *standIn) {
		own := h.comments[101]
		quoted := "`It failed at build: say '@everyone' [x](https://evil.test)`"
		if len(h.comments) != 2 || !strings.Contains(own, quoted) ||
			!strings.Contains(own, "https://pr-12--shop.apps.test") {
			t.Errorf("comments %v", h.comments)
		}
		if want := "pandastack/shop failure https://pr-12--shop.apps.test"; h.statuses[1] != want {
			t.Errorf("status %q, want %q", h.statuses[1], want)
		}
		delete(h.comments, 101) // by a user
	})
	f.Closed(preview)
	f.wait(2)
	f.locked(func(h *standIn) {
		if !strings.Contains(h.comments[101], "its preview is deleted") {
			t.Errorf("comments %v", h.comments)
		}
	})
}

func TestFaultsOfGitHub(t *testing.T) {
	f := newFixture(t)
	app := f.insert("shop", "https://github.com/acme/shop", token, store.App{})
	f.locked(func(h *standIn) { h.fail = []int{503, 502} })
	f.observe(app, api.DeploymentLive, "", "")
	f.wait(2 + 4)
	f.locked(func(h *standIn) { h.fail = []int{422} }) // no further attempt
	f.observe(app, api.DeploymentLive, "", "")
	f.wait(1)
	f.observe(app, api.DeploymentLive, "", "")
	f.wait(3)
	f.locked(func(h *standIn) {
		if len(h.statuses) != 2 {
			t.Errorf("statuses %q", h.statuses)
		}
	})
}

// TestTokenStaysAtGitHub: there are no reports of repositories on other hosts, or without a token.
func TestTokenStaysAtGitHub(t *testing.T) {
	f := newFixture(t)
	for i, c := range []struct{ url, token string }{
		{"https://example.com/acme/shop", token}, {"https://github.com/acme/shop", ""}, {"", token},
		{"https://github.com/acme", token}, {"https://github.com/acme/shop/../../x", token},
		{"https://github.com/../shop", token}, {"https://github.com.evil.test/acme/shop", token},
		{"git@github.com.evil.test:acme/shop", token},
	} {
		app := f.insert(fmt.Sprintf("app%d", i), c.url, c.token, store.App{})
		f.observe(app, api.DeploymentLive, "", "")
	}
	f.observe(f.insert("shop", "https://github.com/acme/shop", token, store.App{}), api.DeploymentLive, "", "")
	f.wait(4)
	f.locked(func(h *standIn) {
		if len(h.requests) != 4 || len(h.statuses) != 1 || !strings.HasPrefix(h.statuses[0], "pandastack/shop") {
			t.Errorf("requests %q, statuses %q", h.requests, h.statuses)
		}
	})
}
