package github

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/google/go-github/v88/github"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/app/appspec"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// state is how a deployment is shown at GitHub.
type state struct {
	status     string // of the commit
	deployment string
	text       string
}

// stateOf returns how a deployment is shown; false if it is as it was.
func stateOf(d store.Deployment) (state, bool) {
	switch s := api.DeploymentStatus(d.State); {
	case s == api.DeploymentQueued:
		return state{"pending", "queued", "The deployment is queued."}, true
	case s == api.DeploymentBuilding, s == api.DeploymentDeploying:
		return state{"pending", "in_progress", "The deployment is under way."}, true
	case s == api.DeploymentLive:
		return state{"success", "success", "It is live."}, true
	case s == api.DeploymentFailed && d.Code == string(api.Canceled):
		return state{"error", "error", "The deployment was canceled."}, true
	case s == api.DeploymentFailed && d.Step != "":
		return state{"failure", "failure", "It failed at " + d.Step + ": " + d.Error}, true
	case s == api.DeploymentFailed:
		return state{"failure", "failure", "It failed: " + d.Error}, true
	case s == api.DeploymentSuperseded && d.Ready == "" && d.Built == "":
		return state{"error", "inactive", "A later deployment took its place."}, true
	}
	return state{}, false // it was live, and its status says so
}

// tell tells GitHub what there is to tell.
func (r *Reporter) tell(ctx context.Context, one report) error {
	to, err := r.target(ctx, one.app)
	if errors.Is(err, errNotTold) {
		return nil
	}
	if err != nil {
		return err
	}
	if one.closed {
		return r.comment(ctx, to, one.app, "The pull request is closed, and its preview is deleted.")
	}
	s, ok := stateOf(one.deployment)
	sha := commitOf(one.deployment)
	if !ok || sha == "" {
		return nil
	}
	app, err := r.apps.Get(ctx, principal(one.app), one.app.ID)
	if api.CodeOf(err) == api.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	_, _, err = to.client.Repositories.CreateStatus(ctx, to.owner, to.repo, sha, github.RepoStatus{
		State: &s.status, TargetURL: &app.URL, Description: new(short(s.text, 140)),
		Context: new("pandastack/" + to.app.Name),
	})
	if err != nil {
		return err
	}
	if err := r.deployment(ctx, to, one.app, sha, app.URL, s); err != nil {
		return err
	}
	if one.app.PreviewOf == "" {
		return nil
	}
	text := fmt.Sprintf("%s\n\n- Preview: %s\n- Commit: %.10s\n", code(s.text), app.URL, sha)
	return r.comment(ctx, to, one.app, text)
}

// commitOf returns the commit of a deployment; "" if it is not known.
func commitOf(d store.Deployment) string {
	if d.GitCommit != "" {
		return d.GitCommit
	}
	src, err := appspec.Decode[appspec.Source](d.Source)
	if err != nil || src.Kind != appspec.SourceGit {
		return ""
	}
	return src.Commit
}

func principal(a store.App) auth.Principal {
	return auth.Principal{Workspace: api.Workspace(a.Workspace)}
}

// deployment sets the state of the deployment of a commit, which is made if GitHub has none.
func (r *Reporter) deployment(ctx context.Context, to target, a store.App, sha, at string, s state) error {
	environment := to.app.Name
	if a.PreviewOf != "" {
		environment = a.Name
	}
	known, _, err := to.client.Repositories.ListDeployments(ctx, to.owner, to.repo,
		&github.DeploymentsListOptions{SHA: sha, Environment: environment})
	if err != nil {
		return err
	}
	if len(known) == 0 {
		made, _, err := to.client.Repositories.CreateDeployment(ctx, to.owner, to.repo, &github.DeploymentRequest{
			Ref: &sha, AutoMerge: new(false), RequiredContexts: &[]string{}, Environment: &environment,
			TransientEnvironment: new(a.PreviewOf != ""), ProductionEnvironment: new(a.PreviewOf == ""),
		})
		if err != nil {
			return err
		}
		known = []*github.Deployment{made}
	}
	_, _, err = to.client.Repositories.CreateDeploymentStatus(ctx, to.owner, to.repo, known[0].GetID(),
		&github.DeploymentStatusRequest{
			State: &s.deployment, Description: new(short(s.text, 140)), EnvironmentURL: &at,
		})
	return err
}

// marker is what the comment of an app begins with; pages do not show it.
func marker(a store.App) string { return "<!-- pandastack " + a.ID + " -->" }

// comment writes the one comment of an app on a pull request.
func (r *Reporter) comment(ctx context.Context, to target, preview store.App, text string) error {
	number := int(preview.PullRequest)
	body := &github.IssueComment{Body: new(marker(to.app) + "\n**" + to.app.Name + "**: " + text)}
	key := commentKey{to.app.ID, number}
	id, known := r.comments[key]
	if !known {
		var err error
		if id, err = r.findComment(ctx, to, number); err != nil {
			return err
		}
	}
	if id != 0 {
		_, response, err := to.client.Issues.EditComment(ctx, to.owner, to.repo, id, body)
		if err == nil {
			r.remember(key, id)
			return nil
		}
		// It was deleted, or is of another user who imitates it.
		gone := response != nil &&
			(response.StatusCode == http.StatusNotFound || response.StatusCode == http.StatusForbidden)
		if !gone {
			return err
		}
	}
	made, _, err := to.client.Issues.CreateComment(ctx, to.owner, to.repo, number, body)
	if err == nil {
		r.remember(key, made.GetID())
	}
	return err
}

// commentKey names a pull request of the repository of an app.
type commentKey struct {
	app    string
	number int
}

// maxComments bounds the comments that are known without a search.
const maxComments = 10_000

func (r *Reporter) remember(key commentKey, id int64) {
	if len(r.comments) >= maxComments {
		clear(r.comments)
	}
	r.comments[key] = id
}

// pages bounds how many pages of comments are searched.
const pages = 5

// findComment returns the comment that an earlier preview of a pull request has; 0: none.
func (r *Reporter) findComment(ctx context.Context, to target, number int) (int64, error) {
	opt := &github.IssueListCommentsOptions{ListOptions: github.ListOptions{PerPage: 100}}
	for range pages {
		list, response, err := to.client.Issues.ListComments(ctx, to.owner, to.repo, number, opt)
		if err != nil {
			return 0, err
		}
		for _, c := range list {
			if strings.HasPrefix(c.GetBody(), marker(to.app)) {
				return c.GetID(), nil
			}
		}
		if response.NextPage == 0 {
			break
		}
		opt.Page = response.NextPage
	}
	return 0, nil
}

// short cuts a text to what GitHub takes.
func short(text string, most int) string {
	text, _, _ = strings.Cut(text, "\n")
	if len(text) > most {
		text = text[:most-3] + "..."
	}
	return strings.ToValidUTF8(text, "?")
}

// code shows a text that programs have printed as it is, without links and mentions.
func code(text string) string { return "`" + strings.ReplaceAll(short(text, 500), "`", "'") + "`" }
