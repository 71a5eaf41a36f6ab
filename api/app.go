package api

import (
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/lib/knownhosts"
)

// Bounds of apps.
const (
	MaxAppName     = 40       // characters; it is a DNS label
	MaxAppReplicas = 32       // running at once
	MaxAppEnv      = 256      // variables of one app
	MaxEnvValue    = 64 << 10 // bytes of the value of one variable
	MaxAppDomains  = 32       // custom domains of one app
	MaxAppKept     = 20       // deployments that are kept for rollbacks
)

// AppID names an app: "app...".
type AppID string

// DeploymentID names a deployment of an app: "dpl...".
type DeploymentID string

// NewAppID returns a new random id.
func NewAppID() AppID { return AppID(newID("app")) }

// NewDeploymentID returns a new random id.
func NewDeploymentID() DeploymentID { return DeploymentID(newID("dpl")) }

// Valid reports whether id has the form of an app's id, not whether the app exists.
func (id AppID) Valid() bool { return validID(string(id), "app") }

// Valid reports whether id has the form of a deployment's id, not whether the deployment exists.
func (id DeploymentID) Valid() bool { return validID(string(id), "dpl") }

// ParseDeploymentID reads an id from a path. The error of a malformed id is not_found.
func ParseDeploymentID(s string) (DeploymentID, error) {
	if id := DeploymentID(s); id.Valid() {
		return id, nil
	}
	return "", Errorf(NotFound, "deployment %s not found: ids look like dpl and 20 letters and digits", quote(s))
}

// AppStatus is the state of an app.
type AppStatus string

// The states of an app.
const (
	AppCreated    AppStatus = "created"    // it has no deployment yet
	AppBuilding   AppStatus = "building"   // its first deployment is under way
	AppRunning    AppStatus = "running"    // it takes requests, and a replica runs
	AppHibernated AppStatus = "hibernated" // it takes requests; the next one wakes it
	AppError      AppStatus = "error"      // its only deployment failed, or its replicas crash
	AppStopped    AppStatus = "stopped"    // it takes no requests: scale.max is 0
)

// AppTransition is what the replicas of an app are about to do.
type AppTransition string

// The transitions of an app.
const (
	AppSleeping AppTransition = "sleeping" // its replicas are being hibernated; a request ends that
	AppWaking   AppTransition = "waking"   // its replicas are being woken
)

// DeploymentStatus is the state of a deployment.
type DeploymentStatus string

// The states of a deployment.
const (
	DeploymentQueued     DeploymentStatus = "queued"
	DeploymentBuilding   DeploymentStatus = "building"
	DeploymentDeploying  DeploymentStatus = "deploying"  // it is started, checked and captured
	DeploymentLive       DeploymentStatus = "live"       // it takes the requests of the app
	DeploymentFailed     DeploymentStatus = "failed"     // or canceled; Code says which
	DeploymentSuperseded DeploymentStatus = "superseded" // a later one took its place
	DeploymentRolledBack DeploymentStatus = "rolled_back"
)

// Ended reports whether a deployment in this state changes only by a rollback or a later deployment.
func (s DeploymentStatus) Ended() bool {
	return s != DeploymentQueued && s != DeploymentBuilding && s != DeploymentDeploying
}

// AppScale bounds the replicas of an app.
type AppScale struct {
	Min         int `json:"min" doc:"Replicas that run always, 0 to 32; with 0 an idle app is hibernated."`
	Max         int `json:"max" doc:"Replicas that run at most, 0 to 32; with 0 the app is stopped."`
	Concurrency int `json:"concurrency" doc:"Requests under way in one replica before another is started."`
}

// AppHealth says how it is checked that an app can take requests.
type AppHealth struct {
	Path           string `json:"path,omitempty" doc:"Answers GET below 400; absent: the port accepts connections."`
	TimeoutSeconds int    `json:"timeout_seconds,omitempty" doc:"Time until the app must answer; 60 if absent."`
}

// AppSource says what an app is deployed from. At most one field is set; none: what is pushed or uploaded.
type AppSource struct {
	GitURL   string `json:"git_url,omitempty" doc:"https, or ssh with a deploy key; without credentials."`
	Image    string `json:"image,omitempty" doc:"An OCI image."`
	Template string `json:"template,omitempty" doc:"A template that has the app."`
}

// App is an app: what is deployed under one host name.
type App struct {
	ID                 AppID             `json:"id"`
	Workspace          Workspace         `json:"workspace"`
	Name               string            `json:"name" doc:"The first label of its host name."`
	Status             AppStatus         `json:"status" enum:"created,building,running,hibernated,error,stopped"`
	Transition         AppTransition     `json:"transition,omitempty" enum:"sleeping,waking" doc:"Absent: none."`
	Error              string            `json:"error,omitempty" doc:"Why its replicas do not run."`
	GitURL             string            `json:"git_url"`
	GitBranch          string            `json:"git_branch"`
	GitHostKeys        string            `json:"git_host_keys,omitempty" doc:"Keys that ssh servers must have."`
	Image              string            `json:"image,omitempty"`
	Framework          string            `json:"framework" doc:"As found by the last build, or as set."`
	Runtime            string            `json:"runtime,omitempty" doc:"Language, such as node."`
	RuntimeVersion     string            `json:"runtime_version,omitempty"`
	InstallCommand     string            `json:"install_command"`
	BuildCommand       string            `json:"build_command"`
	StartCommand       string            `json:"start_command"`
	ReleaseCommand     string            `json:"release_command,omitempty"`
	RootDirectory      string            `json:"root_directory"`
	OutputDirectory    string            `json:"output_directory,omitempty"`
	Port               int               `json:"port"`
	Env                map[string]string `json:"env" doc:"Variables for every scope; values of secrets are masked."`
	Template           string            `json:"template" doc:"Of its machines."`
	CPU                int               `json:"cpu"`
	MemoryMB           int               `json:"memory_mb"`
	SandboxID          SandboxID         `json:"sandbox_id,omitempty" doc:"A replica."`
	ActiveDeploymentID DeploymentID      `json:"active_deployment_id,omitempty"`
	URL                string            `json:"url"`
	PushURL            string            `json:"push_url,omitempty" doc:"Remote for git push; a key is the password."`
	DeployKey          string            `json:"deploy_key,omitempty" doc:"Public key for git over ssh."`
	Scale              AppScale          `json:"scale"`
	Health             AppHealth         `json:"health"`
	Warm               []string          `json:"warm,omitempty" doc:"Paths that are requested before the capture."`
	RestoreHook        string            `json:"restore_hook,omitempty" doc:"Path or signal that announces a restore."`
	Databases          []DatabaseID      `json:"databases,omitempty" doc:"Linked databases."`
	Volumes            []VolumeMount     `json:"volumes,omitempty"`
	Networks           *Network          `json:"network,omitempty" doc:"Rules of the network of its replicas."`
	AutoDeploy         bool              `json:"auto_deploy" doc:"Deploy when the branch changes."`
	AutoHibernate      bool              `json:"auto_hibernate"`
	IdleTimeoutSeconds int64             `json:"idle_timeout_seconds"`
	LastRequestAt      *time.Time        `json:"last_request_at,omitempty"`
	Replicas           int               `json:"replicas" doc:"That run now."`

	IsPreview    bool   `json:"is_preview"`
	PRNumber     int    `json:"pr_number,omitempty"`
	PRState      string `json:"pr_state,omitempty"`
	HeadSHA      string `json:"head_sha,omitempty"`
	RepoFullName string `json:"repo_full_name,omitempty"`
	PreviewURL   string `json:"preview_url,omitempty"`
	PreviewOf    AppID  `json:"preview_of,omitempty"`

	GitHubInstallationID int64  `json:"github_installation_id,omitempty"`
	GitHubRepoID         int64  `json:"github_repo_id,omitempty"`
	GitHubRepoFullName   string `json:"github_repo_full_name,omitempty"`

	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
}

// Deployment is one deployment of an app.
type Deployment struct {
	ID         DeploymentID     `json:"id"`
	AppID      AppID            `json:"app_id"`
	Workspace  Workspace        `json:"workspace"`
	Number     int              `json:"number" doc:"Counts from 1 for each app."`
	Status     DeploymentStatus `json:"status" enum:"queued,building,deploying,live,failed,superseded,rolled_back"`
	GitCommit  string           `json:"git_commit"`
	GitRef     string           `json:"git_ref"`
	Message    string           `json:"message,omitempty" doc:"First line of the message of the commit."`
	SandboxID  SandboxID        `json:"sandbox_id,omitempty"`
	BuildLogs  string           `json:"build_logs,omitempty" doc:"The last 200 lines; not in lists."`
	Error      string           `json:"error,omitempty"`
	Code       Code             `json:"code,omitempty"`
	Step       string           `json:"step,omitempty" doc:"What it is doing, or what failed."`
	Kept       bool             `json:"kept" doc:"It can be rolled back to."`
	CreatedBy  string           `json:"created_by,omitempty"`
	CreatedAt  time.Time        `json:"created_at"`
	UpdatedAt  time.Time        `json:"updated_at"`
	FinishedAt *time.Time       `json:"finished_at,omitempty"`
}

// CreateAppRequest asks for an app: POST /v1/apps.
type CreateAppRequest struct {
	Name               string            `json:"name" doc:"1 to 40 of a-z, 0-9 and dashes; unique on the server."`
	GitURL             string            `json:"git_url,omitempty" doc:"https or ssh, without credentials."`
	GitBranch          string            `json:"git_branch,omitempty" doc:"Branch, tag or commit; or the remote's."`
	GitToken           string            `json:"git_token,omitempty" doc:"For https; write-only."`
	GitHostKeys        string            `json:"git_host_keys,omitempty" doc:"As ssh-keyscan prints them."`
	Submodules         bool              `json:"submodules,omitempty"`
	LFS                bool              `json:"lfs,omitempty"`
	Image              string            `json:"image,omitempty" doc:"An OCI image in place of git_url."`
	Framework          string            `json:"framework,omitempty" doc:"Found by the build if absent."`
	InstallCommand     string            `json:"install_command,omitempty"`
	BuildCommand       string            `json:"build_command,omitempty"`
	StartCommand       string            `json:"start_command,omitempty"`
	ReleaseCommand     string            `json:"release_command,omitempty" doc:"Runs before a deployment goes live."`
	RootDirectory      string            `json:"root_directory,omitempty" doc:"Of the app in its repository."`
	OutputDirectory    string            `json:"output_directory,omitempty" doc:"Of static files."`
	Port               int               `json:"port,omitempty" doc:"That the app listens on: PORT; 3000 if absent."`
	Env                map[string]string `json:"env,omitempty"`
	Template           string            `json:"template,omitempty" doc:"Of its machines."`
	CPU                int               `json:"cpu,omitempty"`
	MemoryMB           int               `json:"memory_mb,omitempty"`
	Scale              *AppScale         `json:"scale,omitempty" doc:"0 to 1 replicas if absent."`
	Health             *AppHealth        `json:"health,omitempty"`
	Warm               []string          `json:"warm,omitempty"`
	RestoreHook        string            `json:"restore_hook,omitempty" doc:"A path for POST, or SIGUSR2."`
	Databases          []DatabaseID      `json:"databases,omitempty"`
	Volumes            []VolumeMount     `json:"volumes,omitempty"`
	Network            *Network          `json:"network,omitempty"`
	AutoDeploy         *bool             `json:"auto_deploy,omitempty" doc:"true if absent."`
	AutoHibernate      *bool             `json:"auto_hibernate,omitempty" doc:"true if absent."`
	IdleTimeoutSeconds int64             `json:"idle_timeout_seconds,omitempty"`

	GitHubInstallationID int64  `json:"github_installation_id,omitempty"`
	GitHubRepoID         int64  `json:"github_repo_id,omitempty"`
	GitHubRepoFullName   string `json:"github_repo_full_name,omitempty"`
}

var appName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

// ValidAppName reports whether name can be the name of an app.
//
// Names with two dashes in a row are for previews: pr-<n>--<app>.
func ValidAppName(name string) bool {
	return len(name) <= MaxAppName && appName.MatchString(name) && !strings.Contains(name, "--")
}

// validRelative reports whether dir is a clean path below a directory; "" is the directory itself.
func validRelative(dir string) bool {
	return dir == "" || !strings.ContainsAny(dir, "\x00\n") && !path.IsAbs(dir) && dir != ".." &&
		!strings.HasPrefix(path.Clean(dir), "../") && path.Clean(dir) != ".."
}

// Validate checks everything that can be checked without knowing the server.
func (r *CreateAppRequest) Validate() error {
	switch {
	case !ValidAppName(r.Name):
		return invalid("name", "%s is not a name of an app: use 1 to %d of a-z, 0-9 and single dashes inside",
			quote(r.Name), MaxAppName)
	case r.GitURL != "" && r.Image != "":
		return invalid("image", "git_url is set too: leave one out")
	case !validRelative(r.RootDirectory):
		return invalid("root_directory", "%s is not a path inside the repository", quote(r.RootDirectory))
	case !validRelative(r.OutputDirectory):
		return invalid("output_directory", "%s is not a path inside the repository", quote(r.OutputDirectory))
	case r.Port < 0 || r.Port > 65535:
		return invalid("port", "%d is not a port", r.Port)
	case r.CPU < 0 || r.CPU > MaxBuildCPU:
		return invalid("cpu", "%d is out of range: use 1 to %d", r.CPU, MaxBuildCPU)
	case r.MemoryMB < 0 || r.MemoryMB > MaxBuildMemoryMB:
		return invalid("memory_mb", "%d is out of range: use 128 to %d", r.MemoryMB, MaxBuildMemoryMB)
	case len(r.Env) > MaxAppEnv:
		return invalid("env", "has %d variables: use at most %d", len(r.Env), MaxAppEnv)
	case r.IdleTimeoutSeconds < 0 || r.IdleTimeoutSeconds > maxAppIdle:
		return invalid("idle_timeout_seconds", "%d is out of range: use 1 to %d", r.IdleTimeoutSeconds, maxAppIdle)
	}
	for name, value := range r.Env {
		if err := ValidateAppVariable(name, value); err != nil {
			return err
		}
	}
	if err := validateGitURL(r.GitURL); err != nil {
		return err
	}
	if err := validateGitRef("git_branch", r.GitBranch); err != nil {
		return err
	}
	if !knownhosts.Valid(r.GitHostKeys) {
		return invalid("git_host_keys", "is no list of host keys: send at most %d lines as ssh-keyscan prints them",
			knownhosts.MaxLines)
	}
	if r.Health != nil {
		if err := r.Health.validate(); err != nil {
			return err
		}
	}
	if r.Scale != nil {
		return r.Scale.validate()
	}
	return nil
}

func (s *AppScale) validate() error {
	switch {
	case s.Max < 0 || s.Max > MaxAppReplicas:
		return invalid("scale.max", "%d is out of range: use 0 to %d", s.Max, MaxAppReplicas)
	case s.Min < 0 || s.Min > s.Max:
		return invalid("scale.min", "%d is out of range: use 0 to scale.max", s.Min)
	case s.Concurrency < 0 || s.Concurrency > 10_000:
		return invalid("scale.concurrency", "%d is out of range: use 1 to 10000", s.Concurrency)
	}
	return nil
}

func (h *AppHealth) validate() error {
	switch {
	case h.Path != "" && (!strings.HasPrefix(h.Path, "/") || strings.ContainsAny(h.Path, " \r\n\x00")):
		return invalid("health.path", "%s is not a path: it begins with / and has no spaces", quote(h.Path))
	case h.TimeoutSeconds < 0 || h.TimeoutSeconds > 900:
		return invalid("health.timeout_seconds", "%d is out of range: use 1 to 900", h.TimeoutSeconds)
	}
	return nil
}

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

// ValidateAppVariable checks the name and the value of an environment variable of an app.
func ValidateAppVariable(name, value string) error {
	switch {
	case !variableName.MatchString(name):
		return invalid("env", "%s is not a name of a variable: use letters, digits and _", quote(name))
	case len(value) > MaxEnvValue:
		return invalid("env", "the value of %s has %d bytes: use at most %d", name, len(value), MaxEnvValue)
	case strings.ContainsRune(value, 0):
		return invalid("env", "the value of %s has a zero byte", name)
	}
	return nil
}

// UpdateAppRequest changes an app: PATCH /v1/apps/{id}. Absent fields stay.
//
// All but scale, auto_deploy, auto_hibernate and idle_timeout_seconds apply from the next deployment on.
type UpdateAppRequest struct {
	Name               *string            `json:"name,omitempty"`
	GitURL             *string            `json:"git_url,omitempty"`
	GitBranch          *string            `json:"git_branch,omitempty"`
	GitToken           *string            `json:"git_token,omitempty"`
	GitHostKeys        *string            `json:"git_host_keys,omitempty" doc:"Empty: those of the next build."`
	Image              *string            `json:"image,omitempty"`
	Framework          *string            `json:"framework,omitempty"`
	InstallCommand     *string            `json:"install_command,omitempty"`
	BuildCommand       *string            `json:"build_command,omitempty"`
	StartCommand       *string            `json:"start_command,omitempty"`
	ReleaseCommand     *string            `json:"release_command,omitempty"`
	RootDirectory      *string            `json:"root_directory,omitempty"`
	OutputDirectory    *string            `json:"output_directory,omitempty"`
	Port               *int               `json:"port,omitempty"`
	Env                *map[string]string `json:"env,omitempty" doc:"Replaces the variables of scope all."`
	Template           *string            `json:"template,omitempty"`
	CPU                *int               `json:"cpu,omitempty"`
	MemoryMB           *int               `json:"memory_mb,omitempty"`
	Scale              *AppScale          `json:"scale,omitempty" doc:"Applies at once."`
	Health             *AppHealth         `json:"health,omitempty"`
	Warm               *[]string          `json:"warm,omitempty"`
	RestoreHook        *string            `json:"restore_hook,omitempty"`
	Databases          *[]DatabaseID      `json:"databases,omitempty"`
	Volumes            *[]VolumeMount     `json:"volumes,omitempty"`
	Network            *Network           `json:"network,omitempty"`
	AutoDeploy         *bool              `json:"auto_deploy,omitempty"`
	AutoHibernate      *bool              `json:"auto_hibernate,omitempty"`
	IdleTimeoutSeconds *int64             `json:"idle_timeout_seconds,omitempty"`
}

// DeployRequest asks for a deployment: POST /v1/apps/{id}/deploys. The body may be empty.
type DeployRequest struct {
	GitRef  string `json:"git_ref,omitempty" doc:"Branch, tag or commit; the app's branch if absent."`
	Upload  string `json:"upload,omitempty" doc:"An upload in place of git, as POST /v1/apps/{id}/uploads named it."`
	NoCache bool   `json:"no_cache,omitempty" doc:"Run every step of the build."`
	Restart bool   `json:"restart,omitempty" doc:"Start what is live with the variables of today, unbuilt."`
}

// RollbackRequest goes back to an earlier deployment: POST /v1/apps/{id}/rollback. The body may be empty.
type RollbackRequest struct {
	DeploymentID DeploymentID `json:"deployment_id,omitempty" doc:"The one before the live one if absent."`
}

// EnvScope says which deployments see a variable.
type EnvScope string

// The scopes.
const (
	EnvAll        EnvScope = "all"
	EnvProduction EnvScope = "production"
	EnvPreview    EnvScope = "preview"
)

// Valid reports whether s is a scope; the zero value is not.
func (s EnvScope) Valid() bool { return s == EnvAll || s == EnvProduction || s == EnvPreview }

// MaskedValue is shown in place of the value of a secret.
const MaskedValue = "••••••••"

// AppVariable is an environment variable of an app.
type AppVariable struct {
	Key       string    `json:"key"`
	Value     string    `json:"value" doc:"Masked if it is a secret."`
	Secret    bool      `json:"secret"`
	Scope     EnvScope  `json:"scope" enum:"all,production,preview"`
	UpdatedAt time.Time `json:"updated_at"`
	CreatedBy string    `json:"created_by,omitempty"`
}

// AppEnv is the answer of GET /v1/apps/{id}/env.
type AppEnv struct {
	Env []AppVariable `json:"env"`
}

// SetVariableRequest sets a variable: PUT /v1/apps/{id}/env/{key}.
type SetVariableRequest struct {
	Value  string   `json:"value"`
	Secret bool     `json:"secret,omitempty" doc:"Its value is never shown."`
	Scope  EnvScope `json:"scope,omitempty" enum:"all,production,preview" doc:"all if absent."`
}

// SetVariableResponse says what was set.
type SetVariableResponse struct {
	Key    string   `json:"key"`
	Secret bool     `json:"secret"`
	Scope  EnvScope `json:"scope" enum:"all,production,preview"`
}

// ImportEnvRequest sets the variables of a dotenv file: POST /v1/apps/{id}/env/import.
type ImportEnvRequest struct {
	Dotenv string   `json:"dotenv"`
	Secret bool     `json:"secret,omitempty"`
	Scope  EnvScope `json:"scope,omitempty" enum:"all,production,preview"`
}

// ImportEnvResponse says how many variables were set.
type ImportEnvResponse struct {
	Imported int `json:"imported"`
	Total    int `json:"total" doc:"Variables of the app."`
}

// DomainStatus is the state of a custom domain.
type DomainStatus string

// The states of a custom domain.
const (
	DomainPending  DomainStatus = "pending"  // its records are not there yet
	DomainVerified DomainStatus = "verified" // it belongs to the workspace; its certificate is not there yet
	DomainActive   DomainStatus = "active"
	DomainError    DomainStatus = "error"
)

// AppDomain is a custom domain of an app.
type AppDomain struct {
	Domain     string         `json:"domain"`
	AppID      AppID          `json:"app_id"`
	Status     DomainStatus   `json:"status" enum:"pending,verified,active,error"`
	CertStatus string         `json:"cert_status,omitempty" enum:"none,pending,issued,error"`
	DNSNote    string         `json:"dns_note,omitempty"`
	Error      string         `json:"error,omitempty"`
	Records    []DomainRecord `json:"records"`
	CreatedAt  time.Time      `json:"created_at"`
	UpdatedAt  time.Time      `json:"updated_at"`
}

// DomainRecord is a record that the owner of a domain sets.
type DomainRecord struct {
	Type    string `json:"type" enum:"CNAME,ALIAS,TXT"`
	Name    string `json:"name"`
	Value   string `json:"value"`
	Purpose string `json:"purpose" enum:"routing,verification"`
	Note    string `json:"note,omitempty"`
}

// AddDomainRequest adds a custom domain: POST /v1/apps/{id}/domains.
type AddDomainRequest struct {
	Domain string `json:"domain"`
}

// AppDomains is the answer of GET /v1/apps/{id}/domains.
type AppDomains struct {
	Domains []AppDomain `json:"domains"`
}

// AppRunRequest runs a command once in a machine of the live deployment: POST /v1/apps/{id}/run.
type AppRunRequest struct {
	Command        string `json:"command"`
	TimeoutSeconds int    `json:"timeout_seconds,omitempty" doc:"600 if absent."`
}

// AppStats is what an app did lately: GET /v1/apps/{id}/stats.
type AppStats struct {
	Requests   int64            `json:"requests"`
	Statuses   map[string]int64 `json:"statuses" doc:"Requests by class of status, such as 2xx."`
	P50Ms      float64          `json:"p50_ms"`
	P95Ms      float64          `json:"p95_ms"`
	P99Ms      float64          `json:"p99_ms"`
	InFlight   int              `json:"in_flight"`
	Replicas   int              `json:"replicas"`
	Wakes      int64            `json:"wakes"`
	Hibernates int64            `json:"hibernates"`
	Restarts   int64            `json:"restarts"`
	Since      time.Time        `json:"since"`
}

// PreviewRepo is a repository whose pull requests get previews.
type PreviewRepo struct {
	GitHubRepoID int64  `json:"github_repo_id"`
	RepoFullName string `json:"repo_full_name"`
	Enabled      bool   `json:"enabled"`
}

// PreviewRepos is the answer of GET /v1/preview-repos.
type PreviewRepos struct {
	Repos []PreviewRepo `json:"repos"`
}
