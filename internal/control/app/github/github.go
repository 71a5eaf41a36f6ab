// Package github tells GitHub what becomes of deployments: commit statuses, deployments, and one comment on each pull
// request that has a preview, which is kept current.
//
// It speaks for an app with the app's own git_token, to the one API that the operator names, and only of repositories
// on that host. A report that fails is tried a few times and then dropped: nothing waits for GitHub.
package github

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/google/go-github/v88/github"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/app/appspec"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Config configures a Reporter. Zero fields have defaults.
type Config struct {
	API     string        // base of GitHub's API; https://api.github.com/
	Host    string        // of the URLs of repositories; github.com
	URL     string        // of this server's API, for links
	Timeout time.Duration // of one call; 20 s
	Retry   time.Duration // before the second attempt, and four times as long before the third; 2 s
}

// Apps are the methods of the service for apps that this package needs.
type Apps interface {
	Get(ctx context.Context, p auth.Principal, app string) (api.App, error)
}

// Reporter tells GitHub of deployments. Make it with New.
type Reporter struct {
	cfg  Config
	db   *store.DB
	apps Apps
	log  *slog.Logger
	http *http.Client
	wake chan struct{}

	comments map[commentKey]int64 // as far as they are known; only Run uses it

	mu    sync.Mutex
	queue []report // guarded by mu
}

// report is a state of a deployment, or of a preview.
type report struct {
	app        store.App
	deployment store.Deployment
	closed     bool // the pull request of the preview is closed; there is no deployment then
}

// maxQueue bounds the reports that wait. The oldest are dropped beyond it.
const maxQueue = 1000

// New returns a reporter. It calls nothing.
func New(cfg Config, db *store.DB, apps Apps, log *slog.Logger) (*Reporter, error) {
	if db == nil || apps == nil || log == nil {
		return nil, errors.New("github: store, apps and log are required")
	}
	if cfg.API == "" {
		cfg.API = "https://api.github.com/"
	}
	if !strings.HasSuffix(cfg.API, "/") {
		cfg.API += "/"
	}
	if cfg.Host == "" {
		cfg.Host = "github.com"
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = 20 * time.Second
	}
	if cfg.Retry <= 0 {
		cfg.Retry = 2 * time.Second
	}
	client := &http.Client{Timeout: cfg.Timeout, CheckRedirect: func(*http.Request, []*http.Request) error {
		return errors.New("github: the API redirects, which would take the token elsewhere")
	}}
	return &Reporter{cfg: cfg, db: db, apps: apps, log: log, http: client, wake: make(chan struct{}, 1),
		comments: map[commentKey]int64{}}, nil
}

// Observe takes the state of a deployment. It waits for nothing.
func (r *Reporter) Observe(_ context.Context, a store.App, d store.Deployment) {
	r.add(report{app: a, deployment: d})
}

// Closed takes the preview of a pull request that was closed. It waits for nothing.
func (r *Reporter) Closed(preview store.App) { r.add(report{app: preview, closed: true}) }

func (r *Reporter) add(one report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) >= maxQueue {
		r.queue = r.queue[1:]
	}
	r.queue = append(r.queue, one)
	select {
	case r.wake <- struct{}{}:
	default: // it is awake
	}
}

// next returns the next report, and whether there is one. Of one deployment there is only the last state.
func (r *Reporter) next() (report, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.queue) > 0 {
		one := r.queue[0]
		r.queue = r.queue[1:]
		later := false
		for _, other := range r.queue {
			later = later || !one.closed && !other.closed && other.deployment.ID == one.deployment.ID
		}
		if !later {
			return one, true
		}
	}
	return report{}, false
}

// Run tells until ctx ends.
func (r *Reporter) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		}
		for ctx.Err() == nil {
			one, ok := r.next()
			if !ok {
				break
			}
			r.tellOrDrop(ctx, one)
		}
	}
}

// attempts is how often a report is tried before it is dropped.
const attempts = 3

func (r *Reporter) tellOrDrop(ctx context.Context, one report) {
	wait := r.cfg.Retry
	for attempt := 1; ; attempt++ {
		err := r.tell(ctx, one)
		if err == nil || ctx.Err() != nil {
			return
		}
		if attempt == attempts || !mayPass(err) {
			r.log.Warn("a deployment was not reported to GitHub", "app", one.app.ID, "deployment", one.deployment.ID,
				"err", err)
			return
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		wait *= 4
	}
}

// mayPass reports whether another attempt can succeed.
func mayPass(err error) bool {
	e, ok := errors.AsType[*github.ErrorResponse](err)
	return !ok || e.Response == nil || e.Response.StatusCode >= http.StatusInternalServerError
}

// target is where to tell of an app.
type target struct {
	client      *github.Client
	owner, repo string
	app         store.App // that has the repository; not its preview
}

// errNotTold says that an app has no repository at GitHub, or no token for it.
var errNotTold = errors.New("there is no repository to tell of it")

// target returns where to tell of an app or a preview.
func (r *Reporter) target(ctx context.Context, a store.App) (target, error) {
	if a.PreviewOf != "" { // the preview of a fork has no token
		parent, err := r.db.Read().App(ctx, a.PreviewOf)
		if errors.Is(err, store.ErrNotFound) {
			return target{}, errNotTold
		}
		if err != nil {
			return target{}, err
		}
		a = parent
	}
	set, err := appspec.Decode[appspec.Settings](a.Settings)
	if err != nil {
		return target{}, err
	}
	owner, repo, ok := repositoryOf(set.GitURL, r.cfg.Host)
	if !ok || set.GitToken == "" {
		return target{}, errNotTold
	}
	client, err := github.NewClient(github.WithHTTPClient(r.http), github.WithAuthToken(set.GitToken),
		github.WithURLs(&r.cfg.API, nil), github.WithUserAgent("pandastack"))
	return target{client, owner, repo, a}, err
}

var nameAtGitHub = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,100}$`)

// repositoryOf returns the repository that a URL names on a host.
func repositoryOf(gitURL, host string) (owner, repo string, ok bool) {
	path := ""
	if rest, isSSH := strings.CutPrefix(gitURL, "git@"+host+":"); isSSH {
		path = rest
	} else if u, err := url.Parse(gitURL); err == nil && strings.EqualFold(u.Hostname(), host) {
		path = strings.Trim(u.Path, "/")
	}
	owner, repo, ok = strings.Cut(strings.TrimSuffix(path, ".git"), "/")
	valid := func(s string) bool { return nameAtGitHub.MatchString(s) && s != "." && s != ".." }
	return owner, repo, ok && valid(owner) && valid(repo)
}
