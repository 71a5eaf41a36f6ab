// Package appspec has the types in which the parts of the service for apps describe an app and its deployments to each
// other. Settings, Source and Result are stored as JSON in the rows of apps and deployments.
package appspec

import (
	"encoding/json"
	"fmt"

	"github.com/pandastack/pandastack/api"
)

// Settings is what the user of an app set. Fields are as in api.CreateAppRequest.
type Settings struct {
	GitURL          string            `json:"git_url,omitempty"`
	GitBranch       string            `json:"git_branch,omitempty"`
	GitToken        string            `json:"git_token,omitempty"`
	GitHostKeys     string            `json:"git_host_keys,omitempty"`
	Submodules      bool              `json:"submodules,omitempty"`
	LFS             bool              `json:"lfs,omitempty"`
	Image           string            `json:"image,omitempty"`
	Framework       string            `json:"framework,omitempty"`
	InstallCommand  string            `json:"install_command,omitempty"`
	BuildCommand    string            `json:"build_command,omitempty"`
	StartCommand    string            `json:"start_command,omitempty"`
	ReleaseCommand  string            `json:"release_command,omitempty"`
	RootDirectory   string            `json:"root_directory,omitempty"`
	OutputDirectory string            `json:"output_directory,omitempty"`
	Port            int               `json:"port"`
	Template        string            `json:"template,omitempty"`
	CPU             int               `json:"cpu,omitempty"`
	MemoryMB        int               `json:"memory_mb,omitempty"`
	Scale           api.AppScale      `json:"scale"`
	Health          api.AppHealth     `json:"health"`
	Warm            []string          `json:"warm,omitempty"`
	RestoreHook     string            `json:"restore_hook,omitempty"`
	Databases       []api.DatabaseID  `json:"databases,omitempty"`
	Volumes         []api.VolumeMount `json:"volumes,omitempty"`
	Network         *api.Network      `json:"network,omitempty"`
	AutoDeploy      bool              `json:"auto_deploy"`
	AutoHibernate   bool              `json:"auto_hibernate"`
	IdleSeconds     int64             `json:"idle_seconds"`

	GitHubInstallation int64  `json:"github_installation,omitempty"`
	GitHubRepo         int64  `json:"github_repo,omitempty"`
	GitHubName         string `json:"github_name,omitempty"`
}

// SourceKind says where the files of a deployment come from.
type SourceKind string

// The kinds of sources.
const (
	SourceGit      SourceKind = "git"      // cloned from Settings.GitURL
	SourcePush     SourceKind = "push"     // pushed to the repository of the app on this server
	SourceUpload   SourceKind = "upload"   // a tar archive
	SourceImage    SourceKind = "image"    // an OCI image, which is not built
	SourceTemplate SourceKind = "template" // a template that has the app, which is not built
)

// Source is what a deployment is made of.
type Source struct {
	Kind   SourceKind `json:"kind"`
	Ref    string     `json:"ref,omitempty"`    // branch, tag or commit
	Commit string     `json:"commit,omitempty"` // of a push, or of a deployment that is built again
	Upload string     `json:"upload,omitempty"` // id of the upload
	Image  string     `json:"image,omitempty"`
	// Untrusted says that a stranger wrote the source, such as a pull request of a fork: no variable of the app is
	// given to its build or its machines.
	Untrusted bool `json:"untrusted,omitempty"`
	NoCache   bool `json:"no_cache,omitempty"`
}

// Static is an app that is files alone, or an app with files that need no program.
type Static struct {
	Dir      string `json:"dir"`                 // absolute, in the machine of the build
	SPA      bool   `json:"spa,omitempty"`       // unknown paths get /index.html
	NotFound string `json:"not_found,omitempty"` // page for unknown paths, relative to Dir
	Files    string `json:"files,omitempty"`     // where the server keeps them; "" until they are copied
}

// Result is what a build found out.
type Result struct {
	Framework      string            `json:"framework,omitempty"` // nextjs, vite, cra, node, static, python, go, ...
	Runtime        string            `json:"runtime,omitempty"`   // language
	RuntimeVersion string            `json:"runtime_version,omitempty"`
	Start          string            `json:"start,omitempty"` // shell command; "" for static files alone
	Workdir        string            `json:"workdir,omitempty"`
	User           string            `json:"user,omitempty"`
	Env            map[string]string `json:"env,omitempty"` // of its programs, below the variables of the app
	Port           int               `json:"port,omitempty"`
	Static         *Static           `json:"static,omitempty"`
	Commit         string            `json:"commit,omitempty"`
	Message        string            `json:"message,omitempty"`   // first line
	HostKeys       string            `json:"host_keys,omitempty"` // of the servers that it was cloned from
	Template       string            `json:"template,omitempty"`  // that has the app, in place of a snapshot
	StepsCached    int               `json:"steps_cached,omitempty"`
	Steps          int               `json:"steps,omitempty"`
}

// Variable is an environment variable as a deployment has it.
type Variable struct {
	Name, Value string
	Secret      bool // its value is masked in logs
}

// Encode writes one of the types of this package as it is stored.
func Encode(v any) (string, error) {
	data, err := json.Marshal(v)
	return string(data), err
}

// Decode reads what Encode wrote; "" is the zero value.
func Decode[T Settings | Source | Result | PullRequest](text string) (v T, err error) {
	if text == "" {
		return v, nil
	}
	if err = json.Unmarshal([]byte(text), &v); err != nil {
		err = fmt.Errorf("%T of an app cannot be read: %w", v, err)
	}
	return v, err
}
