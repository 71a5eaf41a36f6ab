// Package hook deploys apps when the programs that host their repositories say that those have changed: GitHub, GitLab,
// Gitea and Forgejo.
//
// Every app has a secret, with which deliveries are signed. A delivery is taken once. A push to the branch of an app
// deploys it at that commit. A pull request against the branch gets a preview, an app of its own, if previews are
// enabled for the repository; it is deleted when the pull request is closed.
//
// All methods may be called concurrently.
package hook

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/app/appspec"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Actor is the prefix of the key that deployments of deliveries are recorded with.
const Actor = "webhook"

// remember is how long deliveries are known. An older one is signed for an older state, which is not deployed again.
const remember = 90 * 24 * time.Hour

// Apps are the methods of the service for apps that this package needs.
type Apps interface {
	Get(ctx context.Context, p auth.Principal, app string) (api.App, error)
	Delete(ctx context.Context, p auth.Principal, app string) error
	DeployFrom(
		ctx context.Context,
		p auth.Principal,
		app api.AppID,
		src appspec.Source,
		message string,
	) (api.Deployment, error)
	CreatePreview(
		ctx context.Context,
		p auth.Principal,
		of api.AppID,
		pr appspec.PullRequest,
	) (api.App, error)
}

// Deps are the components that a Service works with. All but Closed are required.
type Deps struct {
	Store  *store.DB
	Apps   Apps
	Dotenv func(text string) (map[string]string, error) // reads a dotenv file
	// Closed, if not nil, is called with a preview that was deleted. It must not wait.
	Closed func(preview store.App)
}

// Service takes deliveries. Make it with New.
type Service struct {
	url    string
	db     *store.DB
	apps   Apps
	dotenv func(text string) (map[string]string, error)
	ended  func(store.App)
}

// New returns a service. url is the base of the API.
func New(url string, deps Deps) (*Service, error) {
	if deps.Store == nil || deps.Apps == nil || deps.Dotenv == nil {
		return nil, errors.New("hook: store, apps and a reader of dotenv files are required")
	}
	if deps.Closed == nil {
		deps.Closed = func(store.App) {}
	}
	return &Service{url: strings.TrimSuffix(url, "/"), db: deps.Store, apps: deps.Apps, dotenv: deps.Dotenv,
		ended: deps.Closed}, nil
}

// Path is where deliveries for an app come in.
func Path(app api.AppID) string { return "/v1/webhooks/apps/" + string(app) }

// Webhook makes a new secret for the deliveries to an app, and returns it with their address. Deliveries that are
// signed with an earlier secret are refused from then on.
func (s *Service) Webhook(ctx context.Context, p auth.Principal, app string) (api.AppWebhook, error) {
	a, err := s.apps.Get(ctx, p, app)
	if err != nil {
		return api.AppWebhook{}, err
	}
	if a.PreviewOf != "" {
		return api.AppWebhook{}, api.Errorf(api.WrongState, "app %s is a preview: make the webhook of app %s", a.Name,
			a.PreviewOf)
	}
	secret := strings.ToLower(rand.Text())
	err = s.db.Write(ctx, "app webhook", func(ctx context.Context, tx *store.Tx) error {
		row, err := tx.App(ctx, string(a.ID))
		if err != nil {
			return err
		}
		row.HookSecret = secret
		return tx.UpdateApp(ctx, &row, store.AppActive, "hook_secret")
	})
	if errors.Is(err, store.ErrNotFound) {
		err = api.Errorf(api.NotFound, "app %.60q not found", app)
	}
	if err != nil {
		return api.AppWebhook{}, api.AsError(err)
	}
	return api.AppWebhook{URL: s.url + Path(a.ID), Secret: secret, ContentType: "application/json",
		Events: []string{"push", "pull_request"}}, nil
}

// Result says what a delivery has led to.
type Result struct {
	Result     string           `json:"result"` // a sentence for people
	App        api.AppID        `json:"app_id,omitempty"`
	Deployment api.DeploymentID `json:"deployment_id,omitempty"`
}

// errForged is the error for a delivery that is not signed with the secret, or to an app that does not exist: senders
// do not get to know which.
func errForged() error {
	return api.Errorf(api.Unauthenticated, "the delivery is not signed with the secret of the app's webhook")
}

// Deliver takes a delivery for an app. Errors are *api.Error; after an error it can be sent again.
func (s *Service) Deliver(ctx context.Context, app api.AppID, h http.Header, body []byte) (Result, error) {
	row, err := s.db.Read().App(ctx, string(app))
	if errors.Is(err, store.ErrNotFound) {
		return Result{}, errForged()
	}
	if err != nil {
		return Result{}, api.AsError(err)
	}
	head := readHeader(h)
	if row.State != store.AppActive || !head.signed(row.HookSecret, body) {
		return Result{}, errForged()
	}
	ids := deliveryIDs(app, head, body)
	switch err := s.take(ctx, ids); {
	case errors.Is(err, store.ErrExists):
		return Result{Result: "It was delivered before.", App: app}, nil
	case err != nil:
		return Result{}, api.AsError(err)
	}
	out, err := s.act(ctx, &row, head, body)
	if err != nil {
		return Result{}, errors.Join(api.AsError(err), s.giveBack(ctx, ids))
	}
	return out, nil
}

// deliveryIDs returns what a delivery is known by: its id, and its content, because the id is not signed.
func deliveryIDs(app api.AppID, h header, body []byte) []string {
	name := func(kind, text string) string {
		sum := sha256.Sum256([]byte(text))
		return string(app) + "/" + kind + "/" + hex.EncodeToString(sum[:])
	}
	ids := []string{name("body", h.event+"\n"+string(body))}
	if h.id != "" {
		ids = append(ids, name("id", h.id))
	}
	return ids
}

// take writes that a delivery is taken; store.ErrExists if it was before.
func (s *Service) take(ctx context.Context, ids []string) error {
	now := time.Now()
	return s.db.Write(ctx, "webhook delivery", func(ctx context.Context, tx *store.Tx) error {
		if err := tx.DeleteWebhookDeliveries(ctx, store.Micros(now.Add(-remember))); err != nil {
			return err
		}
		for _, id := range ids {
			d := store.WebhookDelivery{ID: id, Created: store.Micros(now)}
			if err := tx.InsertWebhookDelivery(ctx, &d); err != nil {
				return err
			}
		}
		return nil
	})
}

// giveBack makes it possible to send a delivery again.
func (s *Service) giveBack(ctx context.Context, ids []string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return s.db.Write(ctx, "webhook delivery failed", func(ctx context.Context, tx *store.Tx) error {
		var all error
		for _, id := range ids {
			all = errors.Join(all, tx.DeleteWebhookDelivery(ctx, id))
		}
		return all
	})
}

// act does what a delivery asks for.
func (s *Service) act(ctx context.Context, row *store.App, h header, body []byte) (Result, error) {
	out := Result{App: api.AppID(row.ID)}
	switch h.kind() {
	case kindPing:
		out.Result = "The webhook works."
		return out, nil
	case kindOther:
		out.Result = fmt.Sprintf("Events of the kind %.40q are not used.", h.event)
		return out, nil
	case kindPush, kindPull:
	}
	set, err := appspec.Decode[appspec.Settings](row.Settings)
	if err != nil {
		return out, err
	}
	p, err := parse(body)
	if err != nil {
		return out, err
	}
	if set.GitURL == "" {
		out.Result = "The app has no git_url: it is deployed from what is pushed to it or uploaded."
		return out, nil
	}
	if h.kind() == kindPush {
		return s.pushed(ctx, row, &set, p)
	}
	return s.pulled(ctx, row, &set, p)
}

// principal returns the caller that a delivery acts for.
func principal(row *store.App) auth.Principal {
	return auth.Principal{Workspace: api.Workspace(row.Workspace), KeyPrefix: Actor}
}

// pushed deploys an app whose branch has changed.
func (s *Service) pushed(
	ctx context.Context,
	row *store.App,
	set *appspec.Settings,
	p payload,
) (Result, error) {
	out := Result{App: api.AppID(row.ID)}
	change, ok := p.push()
	switch {
	case !ok:
		out.Result = "It is not a change of a branch."
	case set.GitBranch != "" && change.branch != set.GitBranch, set.GitBranch == "" && !change.isDefault:
		out.Result = fmt.Sprintf("The app is not deployed from branch %s.", change.branch)
	case !set.AutoDeploy:
		out.Result = "auto_deploy is off for the app."
	default:
		src := appspec.Source{Kind: appspec.SourceGit, Ref: change.branch, Commit: change.commit}
		d, err := s.apps.DeployFrom(ctx, principal(row), out.App, src, change.message)
		if err != nil {
			return out, err
		}
		out.Result, out.Deployment = fmt.Sprintf("Deployment %d is queued.", d.Number), d.ID
	}
	return out, nil
}

// changes are the actions on a pull request after which its preview is deployed.
var changes = []string{"opened", "reopened", "synchronize", "synchronized"}

// pulled makes, deploys or deletes the preview of a pull request.
func (s *Service) pulled(
	ctx context.Context,
	row *store.App,
	set *appspec.Settings,
	p payload,
) (Result, error) {
	out := Result{App: api.AppID(row.ID)}
	pr := p.PullRequest
	number := p.Number
	switch {
	case number <= 0:
		return out, api.Errorf(api.Invalid, "number: %d is not the number of a pull request", number)
	case p.Action == "closed" || pr.State == "closed": // deliveries may come in another order
		return s.closed(ctx, row, number)
	case !slices.Contains(changes, p.Action):
		out.Result = fmt.Sprintf("The action %.40q changes nothing.", p.Action)
		return out, nil
	case set.GitHubRepo != 0 && set.GitHubRepo != p.Repository.ID:
		out.Result = "The pull request is of another repository than the app."
		return out, nil
	case set.GitBranch != "" && pr.Base.Ref != set.GitBranch,
		set.GitBranch == "" && pr.Base.Ref != p.Repository.DefaultBranch:
		out.Result = fmt.Sprintf("The app is not deployed from branch %.200s.", pr.Base.Ref)
		return out, nil
	case !isCommit(pr.Head.SHA):
		return out, api.Errorf(api.Invalid, "pull_request.head.sha: %.80q is not a commit", pr.Head.SHA)
	}
	repo, err := s.db.Read().PreviewRepo(ctx, row.Workspace, p.Repository.ID)
	if errors.Is(err, store.ErrNotFound) || err == nil && !repo.Enabled {
		out.Result = "Previews are not enabled for the repository: POST /v1/preview-repos enables them."
		return out, nil
	}
	if err != nil {
		return out, err
	}
	return s.preview(ctx, row, p, number)
}

// preview makes and deploys the preview of a pull request.
func (s *Service) preview(ctx context.Context, row *store.App, p payload, number int) (Result, error) {
	head := p.PullRequest.Head
	// The ref of the pull request is in the repository of the app also if a fork has the commits.
	ask := appspec.PullRequest{
		Number: number, State: "open", Title: printable(p.PullRequest.Title), Branch: head.Ref, SHA: head.SHA,
		Repo: p.Repository.FullName, Fork: head.Repo == nil || head.Repo.ID != p.Repository.ID,
	}
	known, err := s.previews(ctx, row, number)
	if err != nil {
		return Result{}, err
	}
	for i := range known {
		old, err := appspec.Decode[appspec.PullRequest](known[i].Preview)
		if err != nil {
			return Result{}, err
		}
		ask.Comment = old.Comment
		if old.Fork != ask.Fork { // what a preview may have is decided when it is made
			if err := s.apps.Delete(ctx, principal(row), known[i].ID); err != nil {
				return Result{}, err
			}
		}
	}
	made, err := s.apps.CreatePreview(ctx, principal(row), api.AppID(row.ID), ask)
	if err != nil {
		return Result{}, err
	}
	src := appspec.Source{Kind: appspec.SourceGit, Ref: fmt.Sprintf("refs/pull/%d/head", number), Commit: head.SHA,
		Untrusted: ask.Fork}
	d, err := s.apps.DeployFrom(ctx, principal(row), made.ID, src, ask.Title)
	if err != nil {
		return Result{}, err
	}
	return Result{Result: fmt.Sprintf("Deployment %d of the preview %s is queued.", d.Number, made.Name), App: made.ID,
		Deployment: d.ID}, nil
}

// previews reads the previews of a pull request.
func (s *Service) previews(ctx context.Context, row *store.App, number int) ([]store.App, error) {
	all, err := s.db.Read().Apps(ctx, store.AppQuery{PreviewOf: row.ID, State: store.AppActive})
	return slices.DeleteFunc(all, func(a store.App) bool { return a.PullRequest != int64(number) }), err
}

// closed deletes the preview of a pull request.
func (s *Service) closed(ctx context.Context, row *store.App, number int) (Result, error) {
	out := Result{Result: "The pull request has no preview.", App: api.AppID(row.ID)}
	known, err := s.previews(ctx, row, number)
	if err != nil {
		return out, err
	}
	for i := range known {
		err := s.apps.Delete(ctx, principal(row), known[i].ID)
		if err != nil && api.CodeOf(err) != api.NotFound {
			return out, err
		}
		s.ended(known[i])
		out.Result = fmt.Sprintf("The preview %s is deleted.", known[i].Name)
	}
	return out, nil
}

// printable returns the first line of a text that a stranger may have written.
func printable(text string) string {
	text, _, _ = strings.Cut(text, "\n")
	return strings.ToValidUTF8(text[:min(len(text), 200)], "?")
}
