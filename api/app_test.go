package api_test

import (
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
)

// TestAppRequests checks what requests of apps may say, and that a refusal names the field.
func TestAppRequests(t *testing.T) {
	app := func(change func(*api.CreateAppRequest)) *api.CreateAppRequest {
		r := &api.CreateAppRequest{Name: "shop"}
		change(r)
		return r
	}
	git := func(url string) *api.CreateAppRequest {
		return app(func(r *api.CreateAppRequest) { r.GitURL = url })
	}
	text := func(s string) *string { return &s }
	for _, tt := range []struct {
		r     interface{ Validate() error }
		field string // "": it is valid
	}{
		{app(func(*api.CreateAppRequest) {}), ""},
		{app(func(r *api.CreateAppRequest) { r.Name = "pr-1--shop" }), "name"},
		{app(func(r *api.CreateAppRequest) { r.RootDirectory = "../x" }), "root_directory"},
		{app(func(r *api.CreateAppRequest) { r.GitBranch = "--upload-pack=x" }), "git_branch"},
		{app(func(r *api.CreateAppRequest) { r.GitBranch = "feature/a+b" }), ""},
		{app(func(r *api.CreateAppRequest) { r.Scale = &api.AppScale{Min: 2, Max: 1} }), "scale.min"},
		{app(func(r *api.CreateAppRequest) { r.IdleTimeoutSeconds = 1 << 40 }), "idle_timeout_seconds"},
		{git("https://git.example.com/a/b.git"), ""},
		{git("ssh://git@git.example.com:2222/a/b.git"), ""},
		{git("git@git.example.com:a/b.git"), ""},
		{git("https://user:secret@git.example.com/a"), "git_url"},
		{git("https://token@git.example.com/a"), "git_url"},
		{git("ssh://git:secret@git.example.com/a"), "git_url"},
		{git("ssh://-oProxyCommand=x/a"), "git_url"},
		{git("-oProxyCommand=x@host:a"), "git_url"},
		{git("ext::sh -c id"), "git_url"},
		{git("file:///etc"), "git_url"},
		{git("/etc"), "git_url"},
		{&api.UpdateAppRequest{}, ""},
		{&api.UpdateAppRequest{Name: text("a_b")}, "name"},
		{&api.UpdateAppRequest{GitURL: text("file:///etc")}, "git_url"},
		{&api.UpdateAppRequest{Scale: &api.AppScale{Max: 99}}, "scale.max"},
		{&api.DeployRequest{}, ""},
		{&api.DeployRequest{GitRef: "v1.2.3"}, ""},
		{&api.DeployRequest{GitRef: "-b"}, "git_ref"},
		{&api.DeployRequest{GitRef: "a..b"}, "git_ref"},
		{&api.DeployRequest{GitRef: "main", Upload: "upl"}, "upload"},
		{&api.DeployRequest{Restart: true}, ""},
		{&api.DeployRequest{Restart: true, GitRef: "main"}, "restart"},
		{&api.RollbackRequest{}, ""},
		{&api.RollbackRequest{DeploymentID: "dpl"}, "deployment_id"},
		{&api.SetVariableRequest{Scope: "every"}, "scope"},
		{&api.SetVariableRequest{Scope: api.EnvPreview}, ""},
		{&api.ImportEnvRequest{}, "dotenv"},
		{&api.ImportEnvRequest{Dotenv: strings.Repeat("x", api.MaxDotenv+1)}, "dotenv"},
		{&api.ImportEnvRequest{Dotenv: "A=1"}, ""},
		{&api.AddDomainRequest{Domain: "www.example.com"}, ""},
		{&api.AddDomainRequest{Domain: "xn--bcher-kva.example"}, ""},
		{&api.AddDomainRequest{Domain: "example.com:8080"}, "domain"},
		{&api.AddDomainRequest{Domain: "*.example.com"}, "domain"},
		{&api.AddDomainRequest{Domain: "192.0.2.1"}, "domain"},
		{&api.AddDomainRequest{Domain: "localhost"}, "domain"},
		{&api.AppRunRequest{}, "command"},
		{&api.AppRunRequest{Command: "id", TimeoutSeconds: -1}, "timeout_seconds"},
		{&api.AppRunRequest{Command: "id"}, ""},
		{&api.PreviewRepo{}, "github_repo_id"},
	} {
		err := tt.r.Validate()
		if tt.field == "" {
			if err != nil {
				t.Errorf("%+v: %v, want it to be valid", tt.r, err)
			}
			continue
		}
		if err == nil || api.AsError(err).Details["field"] != tt.field {
			t.Errorf("%.80v: got %v, want a refusal of %s", tt.r, err, tt.field)
		}
	}
}
