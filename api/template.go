package api

import "time"

// Template is a recipe plus what was baked from it.
type Template struct {
	Name          string            `json:"name"`
	RootfsPath    string            `json:"rootfs_path" doc:"Always empty: paths of the host are not shown."`
	SizeBytes     int64             `json:"size_bytes" doc:"That it takes on its own: without holes and what it shares with other templates."`
	ApparentBytes int64             `json:"apparent_bytes,omitempty" doc:"Of memory and disks, as a sandbox sees them."`
	CPU           int               `json:"cpu"`
	MemoryMB      int               `json:"memory_mb"`
	DiskMB        int               `json:"disk_mb"`
	DataDisks     []DataDisk        `json:"data_disks,omitempty" doc:"Disks of its sandboxes beside the root disk."`
	IsGlobal      bool              `json:"is_global" doc:"Everyone may use it."`
	Workspace     Workspace         `json:"workspace,omitempty"`
	Label         string            `json:"label"`
	Description   string            `json:"description"`
	Category      string            `json:"category"`
	Base          string            `json:"base"`
	Tools         []string          `json:"tools"`
	Meta          map[string]string `json:"meta"`
	User          string            `json:"user,omitempty"`
	Workdir       string            `json:"workdir,omitempty"`
	Baked         bool              `json:"baked" doc:"A sandbox of it is restored, not booted."`
	BakedAt       *time.Time        `json:"baked_at,omitempty"`
	Bake          *Bake             `json:"bake,omitempty" doc:"Under way, or the last one."`
	ID            TemplateID        `json:"id,omitempty" doc:"Of a built template; it means the template as its name does."`
	Version       BuildID           `json:"version,omitempty" doc:"Of a built template: the build that made what the name means."`
	Tags          []string          `json:"tags,omitempty" doc:"Of a built template: words that mean a version of it, as in name:tag."`
	Versions      []TemplateVersion `json:"versions,omitempty" doc:"Of a built template, newest first; not in lists."`
	Env           map[string]string `json:"env,omitempty" doc:"Environment of every process in its sandboxes."`
	Start         string            `json:"start,omitempty" doc:"The command that runs in its sandboxes."`
	Ready         string            `json:"ready,omitempty" doc:"The command that tells whether it can be used."`
	CreatedAt     *time.Time        `json:"created_at,omitempty"`
	Limits        *Limits           `json:"limits,omitempty" doc:"What its sandboxes may move each second; what is absent is the server's."`

	// Host is its name on the hosts.
	Host string `json:"-"`
}

// DataDisk is a disk beside the root disk.
type DataDisk struct {
	Name      string `json:"name"`
	SizeMB    int    `json:"size_mb" doc:"Size in MiB."`
	MountPath string `json:"mount_path" doc:"Where a sandbox has its file system."`
}

// TemplateVersion is one result of a build of a template.
type TemplateVersion struct {
	ID        BuildID   `json:"id" doc:"The build that made it; name:id means it."`
	Tags      []string  `json:"tags"`
	CPU       int       `json:"cpu"`
	MemoryMB  int       `json:"memory_mb"`
	DiskMB    int       `json:"disk_mb"`
	SizeBytes int64     `json:"size_bytes"`
	CreatedAt time.Time `json:"created_at"`
}

// TagRequest lets tags mean what target means: POST /v1/templates/{template}/tags.
type TagRequest struct {
	Target string   `json:"target,omitempty" doc:"A tag or version; default if absent."`
	Tags   []string `json:"tags"`
}

// DefaultTag is the tag that a template's name without one means.
const DefaultTag = "default"

// Bake is progress of baking a template: POST /v1/templates/{name}/bake, and in Template.
type Bake struct {
	State     string     `json:"state" enum:"running,done,failed"`
	Step      string     `json:"step,omitempty"`
	Percent   int        `json:"percent"`
	StartedAt time.Time  `json:"started_at"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	Error     string     `json:"error,omitempty"`
	Log       []string   `json:"log,omitempty" doc:"The last lines."`
}

// BakeRequest begins to bake a template or joins a bake under way. The body may be empty.
type BakeRequest struct {
	Force bool `json:"force,omitempty" doc:"Bake although it is baked."`
}
