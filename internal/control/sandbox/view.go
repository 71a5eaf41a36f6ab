package sandbox

import (
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/store"
)

// redacted replaces the value of a metadata key that may be written but not read.
const redacted = "[redacted]"

// visibleMetadata returns metadata as users may read it.
func visibleMetadata(m map[string]string) map[string]string {
	out := make(map[string]string, len(m))
	for k, v := range m {
		if strings.HasPrefix(k, store.SecretPrefix) {
			v = redacted
		}
		out[k] = v
	}
	return out
}

// milliseconds rounds up.
func milliseconds(d time.Duration) int64 { return (d.Microseconds() + 999) / 1000 }

// view returns a sandbox as users see it.
func (s *Service) view(r *record) api.Sandbox {
	host := s.hostCapacity()
	out := api.Sandbox{
		ID: r.ID, Template: r.Template, CPU: r.VCPUs, MemoryMB: r.MemoryMiB, DiskMB: r.DiskMiB, DataDisks: r.DataDisks,
		Volumes: r.Volumes,
		Status:  r.State, GuestIP: r.GuestIP, HostTap: r.Tap, MAC: r.MAC, Metadata: visibleMetadata(r.Metadata),
		FromSnapshot: r.Snapshot, BootMS: milliseconds(r.Boot), BootMode: r.BootMode, CreatedAt: r.Created,
		Workspace: r.Workspace, Persistent: r.Persistent, TTLSeconds: int64(r.TTL / time.Second),
		IdleSeconds: int64(s.idle(r).Seconds()), ParentID: r.Parent, TreeID: r.Tree, User: r.User, Workdir: r.Workdir,
		Egress: !r.Network.BlocksAll(), Network: viewNetwork(r.Network), Limits: viewLimits(r.Limits),
		Isolation: host.Isolation, Accelerator: host.Accelerator, Generation: r.Generation, StatusSince: r.Changed,
		PauseMS: milliseconds(r.Pause), FailureReason: r.Reason, PauseReason: string(r.PauseReason), Phases: r.Phases,
	}
	if out.MemoryDropped = r.State == api.Hibernated && r.Reason == withoutMemory; out.MemoryDropped {
		out.FailureReason = ""
	}
	if since := s.silent.Since(r.ID); r.State == api.Running && !since.IsZero() {
		out.UnresponsiveSince = &since
	}
	if !r.Ends.IsZero() {
		at := r.Ends
		out.ExpiresAt = &at
	}
	if !r.Ends.IsZero() || r.OnEnd.KeepsSandbox() {
		out.OnTimeout = r.OnEnd
	}
	return out
}

// viewNetwork returns nil for a policy that allows everything.
func viewNetwork(n api.Network) *api.Network {
	if n.IsDefault() {
		return nil
	}
	return &n
}

// viewLimits returns nil if there are no limits.
func viewLimits(l hostapi.Limits) *api.Limits {
	if l == (hostapi.Limits{}) {
		return nil
	}
	out := api.Limits(l)
	return &out
}
