package sandbox

import (
	"encoding/json"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/store"
)

// record is a sandbox as this package works with it. Only newRecord and row know how the store keeps it.
type record struct {
	ID        api.SandboxID
	Workspace api.Workspace
	State     api.Status
	Instance  string         // the control plane process that wrote the record last
	Host      hostapi.HostID // the host that has the machine; "": not known, written by an older version
	Owner     hostapi.Owner  // the service that the sandbox works for; zero: a user's own
	Template  string
	Snapshot  api.SnapshotID // created from it, if any
	Parent    api.SandboxID  // forked from it, if any
	Tree      api.TreeID
	Metadata  map[string]string

	VCPUs     int
	MemoryMiB int
	DiskMiB   int
	DataDisks []api.DataDisk
	Volumes   []api.SandboxVolume
	DiskBytes int64 // that its disks take, as measured last
	Limits    hostapi.Limits
	Network   api.Network
	Env       map[string]string
	Injected  *api.Injected // with the placeholder of the sandbox's id; nil: nothing
	User      string
	Workdir   string

	GuestIP    string
	Tap        string
	MAC        string
	Generation uint64
	BootMode   string
	Boot       time.Duration
	Pause      time.Duration
	Phases     []api.Phase

	Persistent bool
	TTL        time.Duration // idle time until deletion; 0: never
	Ends       time.Time     // fixed end; zero: none
	OnEnd      api.OnTimeout
	Created    time.Time
	Changed    time.Time // last change of State
	Active     time.Time // last use
	Due        time.Time // when the reaper looks at it; zero: never

	Reason         string              // why it failed or ends, for people
	PauseReason    hostapi.PauseReason // with Paused: why the host has paused it; "": a user has
	EndReason      Reason
	EndBy          string
	IdempotencyKey string
}

// now returns the current time with the precision of the store.
func now() time.Time { return store.Time(store.Micros(time.Now())) }

// machineID returns the id of the sandbox's machine on its host.
func (r *record) machineID() hostapi.MachineID { return hostapi.MachineID(r.ID) }

// newRecord reads a row. A hint that cannot be read is left out; a network policy that cannot be read denies
// everything.
func newRecord(row *store.Sandbox) record {
	r := record{
		ID: api.SandboxID(row.ID), Workspace: api.Workspace(row.Workspace), State: api.Status(row.State),
		Instance: row.Owner, Host: hostapi.HostID(row.Host), Owner: hostapi.ParseOwner(row.OwnedBy),
		Template: row.Template, Snapshot: api.SnapshotID(row.Snapshot), Parent: api.SandboxID(row.Parent),
		Tree: api.TreeID(row.Tree), Metadata: row.Metadata,
		VCPUs: row.VCPUs, MemoryMiB: row.MemoryMiB, DiskMiB: row.DiskMiB, DiskBytes: row.DiskBytes,
		Limits:  decodeLimits(row.Limits),
		Network: decodeNetwork(row.Network, row.Egress), Env: row.Env, Injected: decodeInjected(row.Injected),
		User: row.User, Workdir: row.Workdir,
		GuestIP: row.GuestIP, Tap: row.Tap, MAC: row.MAC, Generation: uint64(row.Generation), BootMode: row.BootMode,
		Boot: micros(row.Boot), Pause: micros(row.Pause),
		Persistent: row.Persistent, TTL: time.Duration(row.TTLSeconds) * time.Second, Ends: store.Time(row.Ends),
		OnEnd: api.OnTimeout(row.OnEnd), Created: store.Time(row.Created), Changed: store.Time(row.Changed),
		Active: store.Time(row.Active), Due: store.Time(row.Due),
		Reason: row.Reason, PauseReason: hostapi.PauseReason(row.PauseReason),
		EndReason: Reason(row.EndReason), EndBy: row.EndBy, IdempotencyKey: row.Idempotency,
	}
	decodeHint(row.DataDisks, &r.DataDisks)
	decodeHint(row.Volumes, &r.Volumes)
	decodeHint(row.Phases, &r.Phases)
	return r
}

// row returns the record as the store keeps it.
func (r *record) row() *store.Sandbox {
	row := &store.Sandbox{
		ID: string(r.ID), Workspace: string(r.Workspace), State: string(r.State), Owner: r.Instance,
		Host: string(r.Host), OwnedBy: r.Owner.String(),
		Template: r.Template, Snapshot: string(r.Snapshot), Parent: string(r.Parent), Tree: string(r.Tree),
		Metadata: r.Metadata,
		VCPUs:    r.VCPUs, MemoryMiB: r.MemoryMiB, DiskMiB: r.DiskMiB, DiskBytes: r.DiskBytes,
		Limits: encodeLimits(r.Limits),
		Egress: !r.Network.BlocksAll(), Env: r.Env, Injected: encodeInjected(r.Injected),
		User: r.User, Workdir: r.Workdir,
		GuestIP: r.GuestIP, Tap: r.Tap, MAC: r.MAC, Generation: int64(r.Generation), BootMode: r.BootMode,
		Boot: r.Boot.Microseconds(), Pause: r.Pause.Microseconds(), Phases: "[]",
		Persistent: r.Persistent, TTLSeconds: int64(r.TTL / time.Second), Ends: store.Micros(r.Ends),
		OnEnd: string(r.OnEnd), Created: store.Micros(r.Created), Changed: store.Micros(r.Changed),
		Active: store.Micros(r.Active), Due: store.Micros(r.Due),
		Reason: r.Reason, PauseReason: string(r.PauseReason),
		EndReason: string(r.EndReason), EndBy: r.EndBy, Idempotency: r.IdempotencyKey,
	}
	if !r.Network.IsDefault() {
		row.Network = encodeJSON(r.Network)
	}
	if len(r.DataDisks) > 0 {
		row.DataDisks = encodeJSON(r.DataDisks)
	}
	if len(r.Volumes) > 0 {
		row.Volumes = encodeJSON(r.Volumes)
	}
	if len(r.Phases) > 0 {
		row.Phases = encodeJSON(r.Phases)
	}
	return row
}

// applyMachine copies what the host says of the sandbox's machine.
func (r *record) applyMachine(m hostapi.Machine) {
	if m.Host != "" {
		r.Host = m.Host
	}
	r.VCPUs, r.MemoryMiB, r.DiskMiB, r.DataDisks = m.VCPUs, m.MemoryMiB, m.DiskMiB, viewDisks(m.Disks)
	r.GuestIP, r.Tap, r.MAC = m.GuestIP, m.Tap, m.MAC
	r.Generation, r.PauseReason = m.Generation, m.PauseReason
	r.BootMode, r.Boot, r.Pause = string(m.BootMode), m.Boot, m.Pause
	r.Phases = make([]api.Phase, 0, len(m.Phases))
	for _, ph := range m.Phases {
		r.Phases = append(r.Phases, api.Phase{Name: ph.Name, TookMS: float64(ph.Took.Microseconds()) / 1000})
	}
}

// egress returns the egress policy of the sandbox's machine.
func (r *record) egress() hostapi.Egress {
	return hostapi.Egress{Allow: r.Network.AllowOut, Deny: r.Network.DenyOut, DenyOthers: r.Network.DenyOthers}
}

// viewDisks returns a machine's data disks in the words of the API.
func viewDisks(all []hostapi.DataDisk) []api.DataDisk {
	var disks []api.DataDisk
	for _, d := range all {
		disks = append(disks, api.DataDisk{Name: d.Name, SizeMB: d.SizeMiB, MountPath: d.Mount})
	}
	return disks
}

// snapshotRecord is a snapshot of the registry as this package works with it.
type snapshotRecord struct {
	ID        api.SnapshotID
	Workspace api.Workspace
	Sandbox   api.SandboxID // it was taken of
	State     string        // store.SnapshotCreating and so on
	Instance  string        // the control plane process that wrote the record last
	Host      hostapi.HostID
	Owner     hostapi.Owner // the service's object that it belongs to; zero: a user's own
	Name      string
	Template  string
	VCPUs     int
	MemoryMiB int
	DiskMiB   int
	Bytes     int64
	Metadata  map[string]string
	Env       map[string]string
	Injected  *api.Injected
	Limits    hostapi.Limits
	User      string
	Workdir   string
	Created   time.Time
}

// newSnapshotRecord reads a row.
func newSnapshotRecord(row *store.Snapshot) snapshotRecord {
	return snapshotRecord{
		ID: api.SnapshotID(row.ID), Workspace: api.Workspace(row.Workspace), Sandbox: api.SandboxID(row.Sandbox),
		State: row.State, Instance: row.Owner, Host: hostapi.HostID(row.Host), Name: row.Name, Template: row.Template,
		VCPUs: row.VCPUs, MemoryMiB: row.MemoryMiB, DiskMiB: row.DiskMiB, Bytes: row.Bytes, Metadata: row.Metadata,
		Env: row.Env, Injected: decodeInjected(row.Injected), Limits: decodeLimits(row.Limits),
		User: row.User, Workdir: row.Workdir, Created: store.Time(row.Created), Owner: hostapi.ParseOwner(row.OwnedBy),
	}
}

// row returns the record as the store keeps it.
func (s *snapshotRecord) row() *store.Snapshot {
	return &store.Snapshot{
		ID: string(s.ID), Workspace: string(s.Workspace), Sandbox: string(s.Sandbox),
		State: s.State, Owner: s.Instance, Host: string(s.Host), Name: s.Name, Template: s.Template,
		VCPUs: s.VCPUs, MemoryMiB: s.MemoryMiB, DiskMiB: s.DiskMiB, Bytes: s.Bytes, Metadata: s.Metadata,
		Env: s.Env, Injected: encodeInjected(s.Injected), Limits: encodeLimits(s.Limits),
		User: s.User, Workdir: s.Workdir, Created: store.Micros(s.Created), OwnedBy: s.Owner.String(),
	}
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// encodeJSON returns v as JSON, or "" if v holds a number that JSON cannot express.
func encodeJSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return string(data)
}

// decodeHint reads JSON that nothing depends on; a text that cannot be read leaves v as it is.
func decodeHint[T any](text string, v *T) {
	var got T
	if text != "" && json.Unmarshal([]byte(text), &got) == nil {
		*v = got
	}
}

func decodeLimits(text string) (l hostapi.Limits) {
	decodeHint(text, &l)
	return l
}

func encodeLimits(l hostapi.Limits) string {
	if l == (hostapi.Limits{}) {
		return ""
	}
	return encodeJSON(l)
}

// decodeNetwork reads a policy. A text that cannot be read denies everything.
func decodeNetwork(text string, egress bool) api.Network {
	if text == "" {
		return api.Network{DenyOthers: !egress}
	}
	var n api.Network
	if err := json.Unmarshal([]byte(text), &n); err != nil {
		return api.Network{DenyOthers: true}
	}
	return n
}
