package volume

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/job"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
	"github.com/pandastack/pandastack/internal/control/sandbox/keyed"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/volume/helper"
	"github.com/pandastack/pandastack/internal/control/volume/lease"
)

// Config configures a Service. Zero fields mean the default.
type Config struct {
	SizeMiB int // of a volume whose creator names none; api.DefaultVolumeMB
	// Oversubscription bounds the sizes of all volumes, in percent of the host's disk; 0: no bound.
	Oversubscription int
	Interval         time.Duration // between comparisons of store and hosts; 30 s
	OrphanGrace      time.Duration // how long a volume on a host without a row is left alone; 1 min
	ForeignGrace     time.Duration // how long an operation of another process on a shared store is left alone; 10 min
}

// Sandboxes are the methods of *sandbox.Service that volumes need.
type Sandboxes interface {
	Get(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error)
	Guest(ctx context.Context, p auth.Principal, id api.SandboxID) (guestapi.Guest, error)
	ChangeVolumes(
		ctx context.Context,
		p auth.Principal,
		id api.SandboxID,
		change lease.Change,
	) (api.Sandbox, error)
}

// Deps are the components that a Service works with. All are required.
type Deps struct {
	Store     *store.DB
	Host      hostapi.Host
	Sandboxes Sandboxes
	Helpers   *helper.Helpers
	Jobs      *job.Queue
	Quotas    *quota.Quotas
	Log       *slog.Logger
}

// Service implements every verb on volumes. Make it with New.
type Service struct {
	cfg      Config
	db       *store.DB
	host     hostapi.Host
	boxes    Sandboxes
	helpers  *helper.Helpers
	jobs     *job.Queue
	quotas   *quota.Quotas
	log      *slog.Logger
	instance string // this process, as the owner of operations
	locks    keyed.Locks
}

// New returns a service, and registers the worker of backups. It touches neither store nor host.
func New(cfg Config, deps Deps) (*Service, error) {
	if deps.Store == nil || deps.Host == nil || deps.Sandboxes == nil || deps.Helpers == nil || deps.Jobs == nil ||
		deps.Quotas == nil || deps.Log == nil {
		return nil, errors.New("volume: all dependencies are required")
	}
	if cfg.SizeMiB == 0 {
		cfg.SizeMiB = api.DefaultVolumeMB
	}
	for _, d := range []struct {
		field    *time.Duration
		fallback time.Duration
	}{{&cfg.Interval, 30 * time.Second}, {&cfg.OrphanGrace, time.Minute}, {&cfg.ForeignGrace, 10 * time.Minute}} {
		if *d.field == 0 {
			*d.field = d.fallback
		}
	}
	s := &Service{cfg: cfg, db: deps.Store, host: deps.Host, boxes: deps.Sandboxes, helpers: deps.Helpers,
		jobs: deps.Jobs, quotas: deps.Quotas, log: deps.Log, instance: strings.ToLower(rand.Text())}
	deps.Jobs.Register(s.backupWorker())
	return s, nil
}

// find reads a volume of the caller's workspace, by name or id.
func (s *Service) find(ctx context.Context, p auth.Principal, name string) (store.Volume, error) {
	if err := s.admit(ctx, p); err != nil {
		return store.Volume{}, err
	}
	return lease.Resolve(ctx, s.db.Read(), p.Workspace, p.Owner, name)
}

// admit refuses callers without a workspace, and those of a suspended one.
func (s *Service) admit(ctx context.Context, p auth.Principal) error {
	if p.Workspace == "" {
		return api.Errorf(api.Unauthenticated, "the caller has no workspace")
	}
	return s.quotas.CheckActive(ctx, p.Workspace)
}

// lock takes the lock of a volume of the caller's workspace and reads it under the lock.
func (s *Service) lock(
	ctx context.Context,
	p auth.Principal,
	name string,
) (v store.Volume, op context.Context, release func(), err error) {
	if v, err = s.find(ctx, p, name); err != nil {
		return v, nil, nil, err
	}
	op, release, err = s.locks.Acquire(ctx, v.ID)
	if err != nil {
		return v, nil, nil, err
	}
	if v, err = s.find(op, p, v.ID); err != nil {
		release()
		return v, nil, nil, err
	}
	return v, op, release, nil
}

// detached returns a context for work that must be finished although the caller has left.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(
		context.WithoutCancel(ctx), 2*time.Minute, errors.New("finishing an operation took too long"))
}

// wrap says what could not be done on the host with a volume.
func wrap(err error, doing string, v store.Volume) error {
	return hosterror.Wrap(err, doing+" volume", v.Name)
}

// List returns the volumes of a workspace, by name.
func (s *Service) List(ctx context.Context, p auth.Principal) ([]api.Volume, error) {
	if err := s.admit(ctx, p); err != nil {
		return nil, err
	}
	rows, err := s.db.Read().Volumes(ctx, store.VolumeQuery{Workspace: string(p.Workspace)})
	if err != nil {
		return nil, api.AsError(err)
	}
	onHost := map[hostapi.VolumeID]hostapi.Volume{}
	if measured, err := s.host.Volumes(ctx); err == nil { // only hints come from it
		for _, h := range measured {
			onHost[h.ID] = h
		}
	}
	all := []api.Volume{}
	for _, v := range rows {
		if v.State != store.VolumeReady || v.OwnedBy != "" {
			continue
		}
		out, err := s.view(ctx, v, onHost[hostapi.VolumeID(v.Disk)])
		if err != nil {
			return nil, api.AsError(err)
		}
		all = append(all, out)
	}
	return all, nil
}

// Get returns a volume by name or id.
func (s *Service) Get(ctx context.Context, p auth.Principal, name string) (api.Volume, error) {
	v, err := s.find(ctx, p, name)
	if err != nil {
		return api.Volume{}, api.AsError(err)
	}
	return s.show(ctx, v)
}

// show returns a volume as users see it, with what its host says.
func (s *Service) show(ctx context.Context, v store.Volume) (api.Volume, error) {
	h, err := s.host.GetVolume(ctx, hostapi.VolumeID(v.Disk))
	if err != nil {
		h = hostapi.Volume{} // only hints come from it
	}
	out, err := s.view(ctx, v, h)
	if err != nil {
		return out, api.AsError(err)
	}
	return out, nil
}

func (s *Service) view(ctx context.Context, v store.Volume, h hostapi.Volume) (api.Volume, error) {
	out := api.Volume{
		ID: api.VolumeID(v.ID), Name: v.Name, SizeMB: v.SizeMiB, SizeBytes: int64(v.SizeMiB) << 20,
		CreatedAt: store.Time(v.Created), Workspace: api.Workspace(v.Workspace), Fence: v.Fence,
		UsedBytes: h.Bytes, Dirty: h.Dirty, WrittenAt: timeOrNil(v.Written),
	}
	if h.Check != nil {
		out.Check = &api.VolumeCheck{At: h.Check.Time, Result: h.Check.Result, Log: h.Check.Log}
	}
	switch holder := hostapi.ParseOwner(v.Holder); holder.Kind {
	case "":
	case hostapi.OwnerSandbox:
		out.AttachedTo = api.SandboxID(holder.ID)
	default:
		out.InUseBy = holder.Kind
	}
	var err error
	out.Backup, err = s.backupStatus(ctx, v)
	return out, err
}

func timeOrNil(at int64) *time.Time {
	if at == 0 {
		return nil
	}
	t := store.Time(at)
	return &t
}

// Labels of volumes on hosts, for the day on which the control plane's store is lost.
const (
	labelWorkspace = "workspace"
	labelStore     = "store" // id of the store that has the row
	labelName      = "name"
	labelVolume    = "volume" // of a snapshot: the volume
)

// Kinds of owners on hosts.
const (
	ownerVolume   = "volume"
	ownerSnapshot = "volume-snapshot"
)

func (s *Service) labels(kind, id, workspace, name string) map[string]string {
	return map[string]string{
		hostapi.LabelOwner: hostapi.Owner{Kind: kind, ID: id}.String(),
		labelStore:         s.db.ID(), labelWorkspace: workspace, labelName: name,
	}
}
