package api

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Bounds of a create request.
const (
	MaxMetadata      = 64        // pairs
	MaxMetadataValue = 4 << 10   // bytes
	MaxEnv           = 256       // variables
	MaxEnvBytes      = 128 << 10 // names and values together
	MaxFork          = 64        // children of one fork tree
	MaxTTLSeconds    = 365 * 24 * 3600
)

// CreateRequest asks for a sandbox: POST /v1/sandboxes.
//
// With FromSnapshot the template is ignored, since the published SDKs always send one.
type CreateRequest struct {
	Template     string     `json:"template,omitempty" doc:"Name of a template; the server's default if absent."`
	FromSnapshot SnapshotID `json:"from_snapshot,omitempty" doc:"Restore this snapshot instead of a template."`

	TTLSeconds *int64 `json:"ttl_seconds,omitempty" doc:"Delete after this time without use; 0: never."`

	TimeoutSeconds int64 `json:"timeout_seconds,omitempty" doc:"End this long after creation, used or not; 0: never."`

	OnTimeout  OnTimeout `json:"on_timeout,omitempty" enum:"delete,hibernate,stop," doc:"Default: delete."`
	Persistent bool      `json:"persistent,omitempty" doc:"Never deleted when idle; hibernated when the node stops."`

	Metadata map[string]string `json:"metadata,omitempty"`
	Env      map[string]string `json:"env,omitempty" doc:"Environment of every process in the sandbox."`
	User     string            `json:"user,omitempty" doc:"Default user of commands and files."`
	Workdir  string            `json:"workdir,omitempty" doc:"Default working directory of commands; absolute."`

	DiskMB   int `json:"disk_mb,omitempty" doc:"Minimum root disk in MiB; a disk can grow, not shrink."`
	DiskGB   int `json:"disk_gb,omitempty" doc:"The same in GiB."`
	CPU      int `json:"cpu,omitempty" doc:"Must be the template's, if sent: templates own their size."`
	MemoryMB int `json:"memory_mb,omitempty" doc:"At least the template's, in MiB; more if the monitor can add memory."`

	Egress  *bool         `json:"egress,omitempty" doc:"false: no outbound connections, like network with deny_others."`
	Network *Network      `json:"network,omitempty" doc:"What the sandbox may reach; everything if absent."`
	Limits  *Limits       `json:"limits,omitempty" doc:"I/O limits, tighter than the server's; default: the source's."`
	Volumes []VolumeMount `json:"volumes,omitempty" doc:"Attached and mounted before programs run."`

	// IdempotencyKey is the Idempotency-Key header: the same key in a workspace returns the same sandbox.
	IdempotencyKey string `json:"-"`
	// Injected is what the protocol of the request promises to programs in the sandbox; nil: nothing.
	Injected *Injected `json:"-"`
}

// Injected is variables and small files that programs find in a sandbox and everything made from it.
//
// Forks and sandboxes from its snapshots have them too, with their own values: SandboxIDPlaceholder in a value becomes
// the id of the sandbox. They take precedence over variables of the user with the same name.
type Injected struct {
	Env   map[string]string `json:"env,omitempty"`
	Files map[string]string `json:"files,omitempty"` // content by absolute path, readable by every user inside
}

// SandboxIDPlaceholder stands for a sandbox's own id in the values of Injected.
const SandboxIDPlaceholder = "${SANDBOX_ID}"

var (
	templateName = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,64}$`)
	envName      = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]{0,255}$`)
	userName     = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$|^[0-9]{1,10}$`)
)

// reservedMetadata are the metadata keys of the control plane.
var reservedMetadata = []string{"workspace", "kind", "app.id"}

// Validate checks the request on its own. It does not check whether the template or snapshot exists.
func (r *CreateRequest) Validate() error {
	switch {
	case r.Template != "" && !validTemplateRef(r.Template):
		return invalid(
			"template",
			"%s is not a template name: use 1 to 64 of a-z A-Z 0-9 . _ -, a workspace and a slash in front "+
				"if it belongs to another one, and a tag behind a colon if you want one",
			quote(r.Template),
		)
	case r.FromSnapshot != "" && !r.FromSnapshot.Valid():
		return invalid(
			"from_snapshot",
			"%s is not a snapshot id: list them at /v1/snapshots",
			quote(string(r.FromSnapshot)),
		)
	case r.TTLSeconds != nil && (*r.TTLSeconds < 0 || *r.TTLSeconds > MaxTTLSeconds):
		return invalid("ttl_seconds", "%d is out of range: use 0 for never, or up to %d", *r.TTLSeconds, MaxTTLSeconds)
	case r.TimeoutSeconds < 0 || r.TimeoutSeconds > MaxTTLSeconds:
		return invalid(
			"timeout_seconds",
			"%d is out of range: use 0 for never, or up to %d",
			r.TimeoutSeconds,
			MaxTTLSeconds,
		)
	case !r.OnTimeout.Valid():
		return invalid("on_timeout", "%s is not delete or hibernate", quote(string(r.OnTimeout)))
	case r.DiskMB < 0 || r.DiskMB > 1<<20:
		return invalid("disk_mb", "%d is out of range: use up to %d", r.DiskMB, 1<<20)
	case r.DiskGB < 0 || r.DiskGB > 1<<10:
		return invalid("disk_gb", "%d is out of range: use up to %d", r.DiskGB, 1<<10)
	case r.CPU < 0:
		return invalid("cpu", "%d is negative: leave it out, the template owns its size", r.CPU)
	case r.MemoryMB < 0:
		return invalid("memory_mb", "%d is negative: leave it out, the template owns its size", r.MemoryMB)
	case len(r.IdempotencyKey) > 255:
		return invalid("Idempotency-Key", "the header is %d bytes long: use at most 255", len(r.IdempotencyKey))
	case r.User != "" && !userName.MatchString(r.User):
		return invalid("user", "%s is not a user name or number", quote(r.User))
	case r.Workdir != "" && (!strings.HasPrefix(r.Workdir, "/") || strings.ContainsRune(r.Workdir, 0)):
		return invalid("workdir", "%s is not an absolute path", quote(r.Workdir))
	}
	if err := r.validateNetwork(); err != nil {
		return err
	}
	if err := r.Limits.validate(); err != nil {
		return err
	}
	if err := validateMounts(r.Volumes); err != nil {
		return err
	}
	if err := validateEnv("env", r.Env); err != nil {
		return err
	}
	return validateMetadata(r.Metadata)
}

func (r *CreateRequest) validateNetwork() error {
	if r.Network == nil {
		return nil
	}
	if r.Egress != nil && !*r.Egress && len(r.Network.AllowOut) > 0 {
		return invalid(
			"egress",
			"false lets nothing out, but network.allow_out names what may be reached: "+
				"leave egress out and set network.deny_others",
		)
	}
	return r.Network.validate("network.")
}

// NetworkPolicy returns what the sandbox may reach, from Egress and Network together.
func (r *CreateRequest) NetworkPolicy() Network {
	var n Network
	if r.Network != nil {
		n = *r.Network
	}
	n.DenyOthers = n.DenyOthers || r.Egress != nil && !*r.Egress
	return n
}

// ValidTemplateName reports whether s has the form of a template's name.
func ValidTemplateName(s string) bool { return templateName.MatchString(s) }

// validTemplateRef reports whether s has the form [workspace/]name[:tag].
func validTemplateRef(s string) bool {
	name, tag := SplitTemplate(s)
	if workspace, rest, ok := strings.Cut(name, "/"); ok {
		if !ValidTemplateName(workspace) || strings.HasPrefix(workspace, ".") {
			return false
		}
		name = rest
	}
	return ValidTemplateName(name) && (tag == "" || ValidTemplateName(tag))
}

// SplitTemplate splits "name:tag". The tag of a name alone is "".
func SplitTemplate(s string) (name, tag string) {
	name, tag, _ = strings.Cut(s, ":")
	return name, tag
}

// MinDiskMiB returns the minimum root disk in MiB that was requested, 0 for the template's.
func (r *CreateRequest) MinDiskMiB() int { return max(r.DiskMB, r.DiskGB*1024) }

func validateMetadata(m map[string]string) error {
	if len(m) > MaxMetadata {
		return invalid("metadata", "%d pairs are too many: use at most %d", len(m), MaxMetadata)
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		switch {
		case k == "" || len(k) > 128:
			return invalid("metadata", "key %s is empty or longer than 128 bytes", quote(k))
		case len(m[k]) > MaxMetadataValue:
			return invalid("metadata."+k, "the value has %d bytes: use at most %d", len(m[k]), MaxMetadataValue)
		case strings.ContainsRune(k, 0) || strings.ContainsRune(m[k], 0):
			return invalid("metadata", "key %s or its value holds a zero byte", quote(k))
		case slices.Contains(reservedMetadata, k):
			return invalid("metadata."+k, "the key is reserved: use another one")
		}
	}
	return nil
}

func validateEnv(field string, env map[string]string) error {
	if len(env) > MaxEnv {
		return invalid(field, "%d variables are too many: use at most %d", len(env), MaxEnv)
	}
	total := 0
	for _, k := range slices.Sorted(maps.Keys(env)) {
		total += len(k) + len(env[k])
		switch {
		case !envName.MatchString(k):
			return invalid(
				field, "%s is not a variable name: use letters, digits, _, . and -, the first a letter or _", quote(k))
		case strings.ContainsRune(env[k], 0):
			return invalid(field+"."+k, "the value holds a zero byte")
		}
	}
	if total > MaxEnvBytes {
		return invalid(field, "the variables have %d bytes together: use at most %d", total, MaxEnvBytes)
	}
	return nil
}

// invalid returns an error that names the field in its message and details.
func invalid(field, format string, args ...any) *Error {
	e := Errorf(Invalid, format, args...)
	e.Message = field + ": " + e.Message
	return e.With("field", field)
}
