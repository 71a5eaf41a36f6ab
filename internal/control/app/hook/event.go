package hook

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"regexp"
	"strings"

	"github.com/pandastack/pandastack/api"
)

// header is what the header of a delivery says, by any of the programs that send them.
type header struct {
	signature string // hexadecimal HMAC-SHA256 of the body
	token     string // the secret itself, as GitLab sends it
	event     string
	id        string
}

// readHeader reads the header of a delivery.
func readHeader(h http.Header) header {
	first := func(names ...string) string {
		for _, name := range names {
			if v := h.Get(name); v != "" {
				return v
			}
		}
		return ""
	}
	return header{
		signature: strings.TrimPrefix(
			first("X-Hub-Signature-256", "X-Forgejo-Signature", "X-Gitea-Signature", "X-Gogs-Signature"), "sha256="),
		token: h.Get("X-Gitlab-Token"),
		event: first("X-Github-Event", "X-Forgejo-Event", "X-Gitea-Event", "X-Gogs-Event", "X-Gitlab-Event"),
		id: first("X-Github-Delivery", "X-Forgejo-Delivery", "X-Gitea-Delivery", "X-Gogs-Delivery",
			"X-Gitlab-Event-Uuid"),
	}
}

// signed reports whether who sent a body knows the secret.
func (h header) signed(secret string, body []byte) bool {
	if secret == "" {
		return false
	}
	if h.signature != "" {
		got, err := hex.DecodeString(h.signature)
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write(body)
		return err == nil && hmac.Equal(got, mac.Sum(nil))
	}
	// The digests have the same length, whatever was sent.
	got, want := sha256.Sum256([]byte(h.token)), sha256.Sum256([]byte(secret))
	return h.token != "" && subtle.ConstantTimeCompare(got[:], want[:]) == 1
}

// kind is what a delivery is about.
type kind string

const (
	kindPing  kind = "ping"
	kindPush  kind = "push"
	kindPull  kind = "pull request"
	kindOther kind = "other"
)

func (h header) kind() kind {
	switch h.event {
	case "ping":
		return kindPing
	case "push", "Push Hook":
		return kindPush
	case "pull_request", "pull_request_sync":
		return kindPull
	}
	return kindOther
}

// payload has the fields of deliveries that are used, of all programs. What a program does not send is zero.
type payload struct {
	Ref         string     `json:"ref"`
	After       string     `json:"after"`
	Head        commit     `json:"head_commit"`
	Commits     []commit   `json:"commits"`
	CheckoutSHA string     `json:"checkout_sha"` // GitLab
	Repository  repository `json:"repository"`
	Project     struct {   // GitLab
		Name          string `json:"path_with_namespace"`
		DefaultBranch string `json:"default_branch"`
	} `json:"project"`

	Action      string      `json:"action"`
	Number      int         `json:"number"`
	PullRequest pullRequest `json:"pull_request"`
}

type commit struct {
	ID      string `json:"id"`
	Message string `json:"message"`
}

type repository struct {
	ID            int64  `json:"id"`
	FullName      string `json:"full_name"`
	DefaultBranch string `json:"default_branch"`
}

type pullRequest struct {
	State string `json:"state"`
	Title string `json:"title"`
	Draft bool   `json:"draft"`
	Head  side   `json:"head"`
	Base  side   `json:"base"`
}

type side struct {
	Ref  string      `json:"ref"`
	SHA  string      `json:"sha"`
	Repo *repository `json:"repo"` // nil: it was deleted
}

// parse reads the body of a delivery.
func parse(body []byte) (p payload, err error) {
	if err := json.Unmarshal(body, &p); err != nil {
		return p, api.Wrap(api.Invalid, err, "the body is not JSON: choose application/json as the content type")
	}
	return p, nil
}

// push is a change of a branch.
type push struct {
	branch, commit, message string
	isDefault               bool // branch of the repository
}

// push returns the change of a branch that a delivery reports; false if it is of another ref, or of one that is gone.
func (p payload) push() (push, bool) {
	branch, ok := strings.CutPrefix(p.Ref, "refs/heads/")
	out := push{branch: branch, commit: p.After, message: p.Head.Message}
	if p.CheckoutSHA != "" {
		out.commit = p.CheckoutSHA
	}
	for _, c := range p.Commits {
		if out.message == "" && c.ID == out.commit {
			out.message = c.Message
		}
	}
	standard := p.Repository.DefaultBranch
	if standard == "" {
		standard = p.Project.DefaultBranch
	}
	out.isDefault = branch == standard
	return out, ok && isCommit(out.commit) && validBranch(branch)
}

var (
	commitID = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)
	branches = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_./+@#-]{0,199}$`)
)

// isCommit reports whether id names a commit that is there: zeros stand for none.
func isCommit(id string) bool { return commitID.MatchString(id) && strings.Trim(id, "0") != "" }

// validBranch reports whether a name can be handed to git. Branches with stranger names are not deployed.
func validBranch(name string) bool {
	return branches.MatchString(name) && !strings.Contains(name, "..")
}
