package api

import "time"

// Template is a recipe and what was baked from it.
type Template struct {
	Name          string            `json:"name"`
	RootfsPath    string            `json:"rootfs_path" doc:"Always empty: paths of the host are not shown."`
	SizeBytes     int64             `json:"size_bytes" doc:"Its own disk space, without what it shares."`
	ApparentBytes int64             `json:"apparent_bytes,omitempty" doc:"Of memory and disks, as a sandbox sees them."`
	CPU           int               `json:"cpu"`
	MemoryMB      int               `json:"memory_mb"`
	DiskMB        int               `json:"disk_mb"`
	DataDisks     []DataDisk        `json:"data_disks,omitempty" doc:"Disks of its sandboxes beside the root disk."`
	IsGlobal      bool              `json:"is_global" doc:"Every workspace may use it."`
	Workspace     Workspace         `json:"workspace,omitempty"`
	Label         string            `json:"label"`
	Description   string            `json:"description"`
	Category      string            `json:"category"`
	Base          string            `json:"base"`
	Tools         []string          `json:"tools"`
	Meta          map[string]string `json:"meta"`
	User          string            `json:"user,omitempty"`
	Workdir       string            `json:"workdir,omitempty"`
	Baked         bool              `json:"baked" doc:"Its sandboxes are restored, not booted."`
	BakedAt       *time.Time        `json:"baked_at,omitempty"`
	Bake          *Bake             `json:"bake,omitempty" doc:"The bake that runs, or the last one."`

	ID      TemplateID `json:"id,omitempty" doc:"Of a built template; it can be used in place of the name."`
	Version BuildID    `json:"version,omitempty" doc:"Of a built template: the build that the name refers to."`
	Tags    []string   `json:"tags,omitempty" doc:"Of a built template: names of its versions, as in name:tag."`

	Versions  []TemplateVersion `json:"versions,omitempty" doc:"Of a built template, newest first; not in lists."`
	Env       map[string]string `json:"env,omitempty" doc:"Environment of every process in its sandboxes."`
	Start     string            `json:"start,omitempty" doc:"The command that runs in its sandboxes."`
	Ready     string            `json:"ready,omitempty" doc:"The command that reports whether it can be used."`
	CreatedAt *time.Time        `json:"created_at,omitempty"`

	Limits *Limits `json:"limits,omitempty" doc:"I/O limits of its sandboxes; the server's where absent."`

	// Host is the template's name on the hosts.
	Host string `json:"-"`
}

// DataDisk is a disk beside the root disk.
type DataDisk struct {
	Name      string `json:"name"`
	SizeMB    int    `json:"size_mb" doc:"Size in MiB."`
	MountPath string `json:"mount_path" doc:"Where its file system is mounted."`
}

// TemplateVersion is the result of one build of a template.
type TemplateVersion struct {
	ID        BuildID   `json:"id" doc:"The build that made it; name:id refers to it."`
	Tags      []string  `json:"tags"`
	CPU       int       `json:"cpu"`
	MemoryMB  int       `json:"memory_mb"`
	DiskMB    int       `json:"disk_mb"`
	SizeBytes int64     `json:"size_bytes"`
	CreatedAt time.Time `json:"created_at"`
}

// TagRequest sets tags to the version of target: POST /v1/templates/{template}/tags.
type TagRequest struct {
	Target string   `json:"target,omitempty" doc:"A tag or version; default if absent."`
	Tags   []string `json:"tags"`
}

// DefaultTag is the tag that a template's name without a tag refers to.
const DefaultTag = "default"

// Bake is the progress of baking a template: POST /v1/templates/{name}/bake, and in Template.
type Bake struct {
	State     string     `json:"state" enum:"running,done,failed"`
	Step      string     `json:"step,omitempty"`
	Percent   int        `json:"percent"`
	StartedAt time.Time  `json:"started_at"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	Error     string     `json:"error,omitempty"`
	Log       []string   `json:"log,omitempty" doc:"The last lines."`
}

// BakeRequest begins to bake a template, or joins a bake that runs. The body may be empty.
type BakeRequest struct {
	Force bool `json:"force,omitempty" doc:"Bake even if it is baked already."`
}
