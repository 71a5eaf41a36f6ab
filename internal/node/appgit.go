package node

import (
	"context"
	"net/http"

	"github.com/pandastack/pandastack/internal/control/app"
	"github.com/pandastack/pandastack/internal/control/app/appenv"
	"github.com/pandastack/pandastack/internal/control/app/github"
	"github.com/pandastack/pandastack/internal/control/app/hook"
	"github.com/pandastack/pandastack/internal/control/app/repo"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/ingress/access"
	"github.com/pandastack/pandastack/internal/ingress/githttp"
	"github.com/pandastack/pandastack/internal/ingress/webhook"
)

// appSources deploys apps when their repositories change.
type appSources struct {
	service  *app.Service
	repos    *repo.Service
	hooks    *hook.Service
	reporter *github.Reporter
}

// appSources creates what deploys apps when their repositories change.
func (n *node) appSources(db *store.DB, service *app.Service, repos *repo.Service) (s appSources, err error) {
	s.service, s.repos = service, repos
	set := n.Config.Apps
	s.reporter, err = github.New(github.Config{API: set.GitHubAPI, Host: set.GitHubHost}, db, service, n.Log)
	if err != nil {
		return s, err
	}
	service.Watch(s.reporter.Observe)
	s.hooks, err = hook.New(n.apiURL, hook.Deps{
		Store: db, Apps: service, Dotenv: appenv.ParseDotenv, Closed: s.reporter.Closed,
	})
	return s, err
}

// serveAppSources serves the repositories of apps and deliveries of webhooks, and hands other requests to next.
func (n *node) serveAppSources(s appSources, guard *access.Guard, next http.Handler) (http.Handler, error) {
	git, err := githttp.New(githttp.Config{PushMiB: n.Config.Apps.PushMiB}, githttp.Deps{
		Guard: guard, Apps: s.service, Repositories: s.repos, Log: n.Log,
	})
	if err != nil {
		return nil, err
	}
	hooks, err := webhook.New(s.hooks, guard, n.Log)
	if err != nil {
		return nil, err
	}
	return git.Middleware(hooks.Middleware(next)), nil
}

// run reports deployments.
func (s appSources) run(ctx context.Context, n *node) {
	n.run(ctx, "reports to GitHub", s.reporter.Run)
}
