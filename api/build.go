package api

import "time"

// BuildStatus is the state of a build.
type BuildStatus string

// The states of a build. A build ends as done or failed.
const (
	BuildQueued  BuildStatus = "queued"
	BuildRunning BuildStatus = "running" // its steps run
	BuildBaking  BuildStatus = "baking"  // its steps have run; the template is booted, warmed up and captured
	BuildDone    BuildStatus = "done"
	BuildFailed  BuildStatus = "failed" // or canceled; Error says which
)

// Ended reports whether a build in this state has ended.
func (s BuildStatus) Ended() bool { return s == BuildDone || s == BuildFailed }

// Build is one build of a template.
type Build struct {
	ID             BuildID     `json:"id"`
	Name           string      `json:"name" doc:"Name of the template."`
	TemplateID     TemplateID  `json:"template_id"`
	Status         BuildStatus `json:"status" enum:"queued,running,baking,done,failed"`
	Error          string      `json:"error,omitempty" doc:"Why it failed: the failing step and the end of its output."`
	Code           Code        `json:"code,omitempty" doc:"Why it failed, for programs; canceled if it was."`
	Step           string      `json:"step,omitempty" doc:"The step that runs, or the one that failed."`
	StepsDone      int         `json:"steps_done"`
	Steps          int         `json:"steps"`
	StepsCached    int         `json:"steps_cached" doc:"Of the steps done, those taken from an earlier build."`
	StartedAt      time.Time   `json:"started_at" doc:"When it was requested."`
	RunsSince      *time.Time  `json:"runs_since,omitempty"`
	EndedAt        *time.Time  `json:"ended_at,omitempty"`
	SizeMB         int         `json:"size_mb" doc:"Disk of its sandboxes in MiB."`
	Bytes          int64       `json:"bytes,omitempty" doc:"Disk space of the finished template on the host."`
	CPU            int         `json:"cpu,omitempty"`
	MemoryMB       int         `json:"memory_mb,omitempty"`
	ImageRef       string      `json:"image_ref,omitempty"`
	OwnerWorkspace Workspace   `json:"owner_workspace,omitempty"`
	Tags           []string    `json:"tags,omitempty"`
	Attempt        int         `json:"attempt,omitempty" doc:"Above 1 after a restart of the node."`
	Reused         bool        `json:"reused,omitempty" doc:"Nothing was built: the template exists already."`
}

// BuildLine is one line of a build's log.
type BuildLine struct {
	Seq   int64     `json:"seq" doc:"Counts from 1; the id of the event."`
	Time  time.Time `json:"time"`
	Level string    `json:"level" enum:"info,warn,error" doc:"Output of steps is info."`
	Step  string    `json:"step,omitempty"`
	Line  string    `json:"line"`
}

// BuildRequest asks for a build of a template.
//
// The fields are form fields of POST /v1/templates/build, or its JSON body if the source needs no upload.
type BuildRequest struct {
	Name     string `json:"name"`
	SizeMB   int    `json:"size_mb,omitempty" doc:"Disk in MiB, 64 to 65536; default: the source's, or 4096."`
	CPU      int    `json:"cpu,omitempty" doc:"1 to 16; the source's, or 1, if absent."`
	MemoryMB int    `json:"memory_mb,omitempty" doc:"128 to 65536 MiB; the source's, or 512, if absent."`

	Replace bool `json:"replace,omitempty" doc:"Make a new version if the template exists; else a conflict."`

	Tags        []string          `json:"tags,omitempty" doc:"Tags of the new version; the default tag if absent."`
	Global      bool              `json:"global,omitempty" doc:"Every workspace may use it; operators only."`
	Description string            `json:"description,omitempty"`
	NoCache     bool              `json:"no_cache,omitempty" doc:"Run every step, without the cache."`
	Args        map[string]string `json:"args,omitempty" doc:"Build arguments of a Dockerfile."`
	Target      string            `json:"target,omitempty" doc:"Stage of a Dockerfile; the last if absent."`

	Start string `json:"start,omitempty" doc:"Command in its sandboxes; the Dockerfile's or image's if absent."`
	Ready string `json:"ready,omitempty" doc:"Succeeds once start can be used; the HEALTHCHECK if absent."`

	Warm    []string `json:"warm,omitempty" doc:"Commands that run once before the capture."`
	User    string   `json:"user,omitempty" doc:"Default user of its sandboxes; the source's if absent."`
	Workdir string   `json:"workdir,omitempty"`

	Limits *Limits `json:"limits,omitempty" doc:"Tighter than the server's. Form fields: limits.disk_mib and so on."`

	StepSeconds int `json:"step_seconds,omitempty" doc:"Time limit of one step; the server's if absent."`

	// Exactly one source.
	Dockerfile   string        `json:"dockerfile,omitempty" doc:"Its text; the files it copies are uploaded with it."`
	ImageRef     string        `json:"image_ref,omitempty" doc:"An OCI image."`
	Registry     *RegistryAuth `json:"registry,omitempty" doc:"Credentials for the registry of image_ref and FROM."`
	FromSandbox  SandboxID     `json:"from_sandbox,omitempty" doc:"A running sandbox, as it is now."`
	FromSnapshot SnapshotID    `json:"from_snapshot,omitempty"`
	FromTemplate string        `json:"from_template,omitempty" doc:"A built template, to change its size."`

	Memory bool `json:"memory,omitempty" doc:"With from_sandbox and from_snapshot: keep memory, do not boot."`
}

// RegistryAuth is the credentials for a registry. The server keeps them in memory only.
type RegistryAuth struct {
	Server   string `json:"server,omitempty" doc:"Host name; if absent, the one registry that the images come from."`
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`
	Token    string `json:"token,omitempty" doc:"Instead of user name and password."`
}

// RetryRequest retries a build that failed: POST /v1/templates/builds/{id}/retry. The body may be empty.
type RetryRequest struct {
	Registry *RegistryAuth `json:"registry,omitempty" doc:"Credentials for a registry, if the first try needed some."`
}

// BakeImageRequest makes a template of a sandbox's disk: POST /v1/sandboxes/{id}/bake-image.
type BakeImageRequest struct {
	ImageName string    `json:"image_name" doc:"Name of the template, which must not exist yet."`
	StartUnit string    `json:"start_unit,omitempty" doc:"Not supported: build from_sandbox with start instead."`
	Workspace Workspace `json:"workspace,omitempty" doc:"Must be the key's workspace, if sent."`
}

// Validate checks the request on its own.
func (r *BakeImageRequest) Validate() error {
	switch {
	case !ValidTemplateName(r.ImageName):
		return invalid("image_name", "%s is not a template name: use 1 to 64 of a-z A-Z 0-9 . _ -", quote(r.ImageName))
	case r.StartUnit != "":
		return Errorf(
			Unsupported,
			"start_unit: sandboxes have no units: send POST /v1/templates/build with from_sandbox and start",
		).With("field", "start_unit")
	}
	return nil
}

// BakedImage is the result of a BakeImageRequest.
//
// The status is 201 if the template is ready and 202 if it is still being made.
type BakedImage struct {
	Image   string  `json:"image" doc:"Name of the template."`
	Status  string  `json:"status" enum:"baked,baking"`
	BuildID BuildID `json:"build_id" doc:"Follow one that is baking at /v1/templates/builds/{id}."`
}

// Bounds of a build.
const (
	MaxBuildSizeMB   = 64 << 10
	MaxBuildMemoryMB = 64 << 10
	MaxBuildCPU      = 16
)

// Validate checks the request on its own.
func (r *BuildRequest) Validate() error {
	sources := 0
	for _, set := range []bool{
		r.Dockerfile != "", r.ImageRef != "", r.FromSandbox != "", r.FromSnapshot != "", r.FromTemplate != "",
	} {
		if set {
			sources++
		}
	}
	switch {
	case !ValidTemplateName(r.Name):
		return invalid("name", "%s is not a template name: use 1 to 64 of a-z A-Z 0-9 . _ -", quote(r.Name))
	case sources > 1:
		return invalid(
			"dockerfile",
			"name one source: a Dockerfile, image_ref, rootfs, from_sandbox, from_snapshot or from_template",
		)
	case r.SizeMB != 0 && (r.SizeMB < 64 || r.SizeMB > MaxBuildSizeMB):
		return invalid("size_mb", "%d is out of range: use 64 to %d", r.SizeMB, MaxBuildSizeMB)
	case r.CPU < 0 || r.CPU > MaxBuildCPU:
		return invalid("cpu", "%d is out of range: use 1 to %d", r.CPU, MaxBuildCPU)
	case r.MemoryMB != 0 && (r.MemoryMB < 128 || r.MemoryMB > MaxBuildMemoryMB):
		return invalid("memory_mb", "%d is out of range: use 128 to %d", r.MemoryMB, MaxBuildMemoryMB)
	case r.StepSeconds < 0 || r.StepSeconds > 24*3600:
		return invalid("step_seconds", "%d is out of range: use up to %d", r.StepSeconds, 24*3600)
	case r.User != "" && !userName.MatchString(r.User):
		return invalid("user", "%s is not a user's name or number", quote(r.User))
	case r.Workdir != "" && r.Workdir[0] != '/':
		return invalid("workdir", "%s is not absolute", quote(r.Workdir))
	case r.Memory && r.FromSandbox == "" && r.FromSnapshot == "":
		return invalid("memory", "only a sandbox or a snapshot has a memory to keep")
	case r.Memory && (r.CPU != 0 || r.MemoryMB != 0 || r.SizeMB != 0 ||
		r.Start != "" || r.Ready != "" || len(r.Warm) > 0):
		return invalid("memory", "a memory is kept as it is: leave cpu, memory_mb, size_mb, start, ready and warm out")
	case len(r.Dockerfile) > 1<<20:
		return invalid("dockerfile", "%d bytes are too many: use at most %d", len(r.Dockerfile), 1<<20)
	case len(r.Warm) > 32 || len(r.Tags) > 64 || len(r.Args) > 256:
		return invalid("warm", "too many warm commands, tags or args: use at most 32, 64 and 256")
	case len(r.Description) > 1000 || len(r.Start) > 32<<10 || len(r.Ready) > 32<<10:
		return invalid("description", "too long: description has at most 1000 bytes, start and ready 32768")
	}
	if err := r.Limits.validate(); err != nil {
		return err
	}
	for _, tag := range r.Tags {
		if !ValidTemplateName(tag) || BuildID(tag).Valid() {
			return invalid("tags", "%s cannot be a tag: use 1 to 64 of a-z A-Z 0-9 . _ -", quote(tag))
		}
	}
	return nil
}
