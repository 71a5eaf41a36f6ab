package api

import (
	"net/url"
	"regexp"
	"strings"
)

// Bounds of requests of apps.
const (
	MaxDotenv       = 1 << 20 // bytes of an imported dotenv file
	maxGitRef       = 255     // characters
	maxAppTimeout   = 6 * 3600
	maxAppIdle      = 30 * 24 * 3600
	maxDomainLength = 253
)

var (
	gitRef     = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_./@+#=-]*$`)
	scpURL     = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*@[A-Za-z0-9][A-Za-z0-9.-]*:[A-Za-z0-9_~/][^\s\x00]*$`)
	domainName = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]([a-z0-9-]{0,61}[a-z0-9])$`)
)

func validateGitRef(field, ref string) error {
	if ref != "" && (len(ref) > maxGitRef || !gitRef.MatchString(ref) || strings.Contains(ref, "..")) {
		return invalid(field, "%s is not a branch, tag or commit", quote(ref))
	}
	return nil
}

// validateGitURL checks the URL of a repository: nothing in it may be taken for an option or a local file, and no
// credentials are in it, since URLs end up in logs.
func validateGitURL(text string) error {
	if text == "" || scpURL.MatchString(text) {
		return nil
	}
	u, err := url.Parse(text)
	switch {
	case err != nil, u.Host == "", strings.ContainsAny(text, " \r\n\t"),
		u.Scheme != "https" && u.Scheme != "http" && u.Scheme != "ssh":
		return invalid("git_url", "is not a repository: use https://host/path, ssh://user@host/path or user@host:path")
	case u.Scheme != "ssh" && u.User != nil:
		return invalid("git_url", "holds credentials: leave them out, and send the token as git_token")
	case u.User != nil && hasPassword(u.User):
		return invalid("git_url", "holds a password: leave it out, and give the repository the deploy_key of the app")
	case strings.HasPrefix(u.Host, "-") || strings.HasPrefix(u.User.Username(), "-"):
		return invalid("git_url", "the host or the user begins with a dash")
	}
	return nil
}

func hasPassword(u *url.Userinfo) bool {
	_, ok := u.Password()
	return ok
}

// Validate checks everything that can be checked without knowing the app.
func (r *UpdateAppRequest) Validate() error {
	c := CreateAppRequest{Name: "app", Scale: r.Scale, Health: r.Health}
	set(&c.Name, r.Name)
	set(&c.GitURL, r.GitURL)
	set(&c.GitBranch, r.GitBranch)
	set(&c.GitHostKeys, r.GitHostKeys)
	set(&c.Image, r.Image)
	set(&c.RootDirectory, r.RootDirectory)
	set(&c.OutputDirectory, r.OutputDirectory)
	set(&c.Port, r.Port)
	set(&c.Env, r.Env)
	set(&c.CPU, r.CPU)
	set(&c.MemoryMB, r.MemoryMB)
	set(&c.IdleTimeoutSeconds, r.IdleTimeoutSeconds)
	return c.Validate()
}

// set sets a field to the value of a request, if there is one.
func set[T any](field, value *T) {
	if value != nil {
		*field = *value
	}
}

// Validate checks the request on its own.
func (r *DeployRequest) Validate() error {
	if r.GitRef != "" && r.Upload != "" {
		return invalid("upload", "git_ref is set too: leave one out")
	}
	if r.Restart && r.GitRef+r.Upload != "" {
		return invalid("restart", "is for what is live: leave git_ref and upload out")
	}
	return validateGitRef("git_ref", r.GitRef)
}

// Validate checks the request on its own.
func (r *RollbackRequest) Validate() error {
	if r.DeploymentID == "" {
		return nil
	}
	if _, err := ParseDeploymentID(string(r.DeploymentID)); err != nil {
		return AsError(err).With("field", "deployment_id")
	}
	return nil
}

// Validate checks the request on its own. The name of the variable is checked by ValidateAppVariable.
func (r *SetVariableRequest) Validate() error { return validateScope(r.Scope) }

// Validate checks the request on its own.
func (r *ImportEnvRequest) Validate() error {
	switch {
	case r.Dotenv == "":
		return invalid("dotenv", "is missing: send lines like NAME=value")
	case len(r.Dotenv) > MaxDotenv:
		return invalid("dotenv", "has %d bytes: use at most %d", len(r.Dotenv), MaxDotenv)
	}
	return validateScope(r.Scope)
}

func validateScope(s EnvScope) error {
	if s != "" && !s.Valid() {
		return invalid("scope", "%s is not a scope: use all, production or preview", quote(string(s)))
	}
	return nil
}

// Validate checks the request on its own.
func (r *AddDomainRequest) Validate() error {
	if !ValidDomain(r.Domain) {
		return invalid("domain", "%s is not a domain like www.example.com, in lower case and without a port",
			quote(r.Domain))
	}
	return nil
}

// ValidDomain reports whether name can be a custom domain: labels in lower case, without a port or a dot at the end.
func ValidDomain(name string) bool {
	return len(name) <= maxDomainLength && domainName.MatchString(name)
}

// Validate checks the request on its own.
func (r *AppRunRequest) Validate() error {
	switch {
	case r.Command == "":
		return invalid("command", "is missing: send the command line to run")
	case len(r.Command) > maxCommand:
		return invalid("command", "has %d bytes: use at most %d", len(r.Command), maxCommand)
	case strings.ContainsRune(r.Command, 0):
		return invalid("command", "holds a zero byte")
	case r.TimeoutSeconds < 0 || r.TimeoutSeconds > maxAppTimeout:
		return invalid("timeout_seconds", "%d is out of range: use 1 to %d", r.TimeoutSeconds, maxAppTimeout)
	}
	return nil
}

// Validate checks the request on its own.
func (r *PreviewRepo) Validate() error {
	if r.GitHubRepoID < 1 {
		return invalid("github_repo_id", "%d is not the number of a repository", r.GitHubRepoID)
	}
	return nil
}
