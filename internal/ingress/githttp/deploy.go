package githttp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/app/appspec"
)

const (
	heads = "refs/heads/"
	tags  = "refs/tags/"
)

// branches returns the branches that an app is deployed from. One whose user has named none is deployed from main or
// master.
func branches(a api.App) []string {
	if a.GitBranch != "" {
		return []string{a.GitBranch}
	}
	return []string{"main", "master"}
}

// deploy deploys what a push has changed, and tells out about it unless it is nil.
func (c *call) deploy(ctx context.Context, out *terminal, req pushRequest, r report) {
	say := func(format string, args ...any) {
		if out != nil {
			out.say(fmt.Sprintf(format, args...))
		}
	}
	for _, cmd := range req.commands {
		if why, known := r.refs[cmd.ref]; !known || why != "" {
			continue
		}
		branch, isBranch := strings.CutPrefix(cmd.ref, heads)
		switch {
		case cmd.deletes():
			say("%s is deleted. What is deployed stays.", cmd.ref)
		case !isBranch:
			say("Tag %s is stored.", strings.TrimPrefix(cmd.ref, tags))
		case !slices.Contains(branches(c.app), branch):
			say("Branch %s is stored. App %s is deployed from %s.", branch, c.app.Name,
				strings.Join(branches(c.app), " or "))
		case !c.app.AutoDeploy:
			say("Branch %s is stored. auto_deploy is off for app %s: deploy it with pandastack app deploy %s", branch,
				c.app.Name, c.app.Name)
		default:
			c.deployBranch(ctx, out, say, branch, cmd.new)
		}
	}
}

// deployBranch deploys a commit. The push has succeeded whatever becomes of the deployment.
func (c *call) deployBranch(
	ctx context.Context,
	out *terminal,
	say func(string, ...any),
	branch, commit string,
) {
	src := appspec.Source{Kind: appspec.SourcePush, Ref: branch, Commit: commit}
	d, err := c.s.deps.Apps.DeployFrom(context.WithoutCancel(ctx), c.p, c.app.ID, src, "")
	if err != nil {
		e := api.AsError(err)
		if e.Code == api.Internal {
			c.s.deps.Log.ErrorContext(ctx, "a push was not deployed", "err", err, "app", c.app.ID)
		}
		say("Branch %s is stored, but not deployed: %s (%s)", branch, e.Message, e.Code)
		return
	}
	say("Deployment %d of app %s (%s) from %s at %.10s", d.Number, c.app.Name, d.ID, branch, commit)
	if out != nil {
		c.follow(ctx, out, say, d)
	}
}

// follow shows the log of a deployment until it has ended.
func (c *call) follow(ctx context.Context, out *terminal, say func(string, ...any), d api.Deployment) {
	ctx, cancel := context.WithTimeout(ctx, c.s.cfg.Follow)
	defer cancel()
	var alive sync.WaitGroup
	alive.Go(func() { out.keepAlive(ctx) })
	step := ""
	err := c.s.deps.Apps.BuildLog(ctx, c.p, string(c.app.ID), d.ID, 0, true, func(l api.AppLogLine) error {
		if l.Step != step && l.Step != "" {
			step = l.Step
			say("=> %s", step)
		}
		if l.Level == "info" || l.Level == "" {
			say("   %s", l.Line)
		} else {
			say("   %s: %s", l.Level, l.Line)
		}
		return out.failed()
	})
	if err == nil {
		d, err = c.s.deps.Apps.Deployment(ctx, c.p, string(c.app.ID), d.ID)
	}
	cancel()
	alive.Wait()
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		say("The deployment continues: pandastack app logs %s", c.app.Name)
	case err != nil:
		say("The deployment continues, but its log cannot be shown: %s", api.AsError(err).Message)
	case d.Status == api.DeploymentLive:
		say("Live at %s", c.app.URL)
	case d.Status == api.DeploymentFailed && d.Step != "":
		say("Deployment %d failed at %s: %s", d.Number, d.Step, d.Error)
	case d.Status == api.DeploymentFailed:
		say("Deployment %d failed: %s", d.Number, d.Error)
	case d.Status == api.DeploymentSuperseded:
		say("A later deployment took the place of %d.", d.Number)
	default:
		say("Deployment %d is %s.", d.Number, d.Status)
	}
}

// failed returns the error of the first write that failed.
func (t *terminal) failed() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// explain says why refs or the pack were refused, and what to do.
func explain(out *terminal, r report, printed string, pushMiB int) {
	for _, ref := range slices.Sorted(maps.Keys(r.refs)) {
		switch why := r.refs[ref]; {
		case strings.Contains(why, "hidden ref"):
			out.say(fmt.Sprintf("%s is refused: only branches (%s...) and tags (%s...) can be pushed.",
				ref, heads, tags))
		case strings.Contains(why, "deletion of the current branch"):
			out.say(fmt.Sprintf("%s is refused: it is the first branch of the repository.", ref))
		}
	}
	switch {
	case r.unpack == "ok" || r.unpack == "":
	case strings.Contains(printed, "exceeds maximum allowed size"):
		out.say(fmt.Sprintf("The push is refused: it has more than %d MiB. Keep large files in a volume or an object "+
			"store, or push the history in parts.", pushMiB))
	case strings.Contains(printed, "fsck error"):
		out.say("The push is refused: an object in it is malformed or could harm who checks it out, as said above.")
	default:
		out.say("The push is refused: what was sent cannot be read.")
	}
}
