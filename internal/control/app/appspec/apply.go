package appspec

import (
	"cmp"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/lib/knownhosts"
)

// set copies a field of a request that is present.
func set[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}

// New returns the settings that a request is for; idle is the time of an app whose creator names none.
func New(req *api.CreateAppRequest, idle time.Duration) Settings {
	s := Settings{
		GitURL: req.GitURL, GitBranch: req.GitBranch, GitToken: req.GitToken,
		GitHostKeys: knownhosts.Clean(req.GitHostKeys), Submodules: req.Submodules, LFS: req.LFS,
		Image: req.Image, Framework: req.Framework, InstallCommand: req.InstallCommand, BuildCommand: req.BuildCommand,
		StartCommand: req.StartCommand, ReleaseCommand: req.ReleaseCommand, RootDirectory: req.RootDirectory,
		OutputDirectory: req.OutputDirectory, Port: req.Port, Template: req.Template, CPU: req.CPU,
		MemoryMB: req.MemoryMB, Scale: api.AppScale{Max: 1}, Warm: req.Warm, RestoreHook: req.RestoreHook,
		Databases: req.Databases, Volumes: req.Volumes, Network: req.Network, AutoDeploy: true, AutoHibernate: true,
		IdleSeconds:        cmp.Or(req.IdleTimeoutSeconds, int64(idle/time.Second)),
		GitHubInstallation: req.GitHubInstallationID, GitHubRepo: req.GitHubRepoID, GitHubName: req.GitHubRepoFullName,
	}
	set(&s.Scale, req.Scale)
	set(&s.Health, req.Health)
	set(&s.AutoDeploy, req.AutoDeploy)
	set(&s.AutoHibernate, req.AutoHibernate)
	return s
}

// Apply changes settings as a request says.
func (s *Settings) Apply(req *api.UpdateAppRequest) {
	if req.GitURL != nil && *req.GitURL != s.GitURL {
		s.GitHostKeys = "" // they are of another server
	}
	set(&s.GitURL, req.GitURL)
	if req.GitHostKeys != nil {
		s.GitHostKeys = knownhosts.Clean(*req.GitHostKeys)
	}
	set(&s.GitBranch, req.GitBranch)
	set(&s.GitToken, req.GitToken)
	set(&s.Image, req.Image)
	set(&s.Framework, req.Framework)
	set(&s.InstallCommand, req.InstallCommand)
	set(&s.BuildCommand, req.BuildCommand)
	set(&s.StartCommand, req.StartCommand)
	set(&s.ReleaseCommand, req.ReleaseCommand)
	set(&s.RootDirectory, req.RootDirectory)
	set(&s.OutputDirectory, req.OutputDirectory)
	set(&s.Port, req.Port)
	set(&s.Template, req.Template)
	set(&s.CPU, req.CPU)
	set(&s.MemoryMB, req.MemoryMB)
	set(&s.Scale, req.Scale)
	set(&s.Health, req.Health)
	set(&s.Warm, req.Warm)
	set(&s.RestoreHook, req.RestoreHook)
	set(&s.Databases, req.Databases)
	set(&s.Volumes, req.Volumes)
	set(&s.AutoDeploy, req.AutoDeploy)
	set(&s.AutoHibernate, req.AutoHibernate)
	set(&s.IdleSeconds, req.IdleTimeoutSeconds)
	if req.Network != nil {
		s.Network = req.Network
	}
}
