package sandbox

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/volume/lease"
)

// Create makes a sandbox and returns it once it runs. With an idempotency key, the same request returns the
// same sandbox, even one that has ended since; a different request with the key is a conflict.
func (s *Service) Create(ctx context.Context, p auth.Principal, req api.CreateRequest) (_ api.Sandbox, err error) {
	defer s.finishVerb("create", time.Now(), &err)
	if p.Workspace == "" {
		return api.Sandbox{}, errNoWorkspace()
	}
	if err := req.Validate(); err != nil {
		return api.Sandbox{}, err
	}
	if req.IdempotencyKey == "" {
		return s.createNew(ctx, p, req, "")
	}
	hash, err := requestHash(req)
	if err != nil {
		return api.Sandbox{}, err
	}
	// One call per key runs at a time; those that wait find what it made. Other processes on the same store
	// find its row.
	_, release, err := s.locks.Acquire(ctx, "request/"+string(p.Workspace)+"/"+req.IdempotencyKey)
	if err != nil {
		return api.Sandbox{}, err
	}
	defer release()
	for {
		known, err := s.db.Read().Idempotency(ctx, string(p.Workspace), req.IdempotencyKey)
		if err == nil {
			return s.replayCreate(ctx, known, hash)
		}
		if !errors.Is(err, store.ErrNotFound) {
			return api.Sandbox{}, err
		}
		made, err := s.createNew(ctx, p, req, hash)
		if !errors.Is(err, errKeyTaken) {
			return made, err
		}
	}
}

// errKeyTaken says that another process took the idempotency key first.
var errKeyTaken = errors.New("idempotency key taken")

// requestHash returns a hash that differs for different requests.
func requestHash(req api.CreateRequest) (string, error) {
	data, err := json.Marshal(req)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

// replayCreate returns the sandbox that an idempotency key stands for.
func (s *Service) replayCreate(ctx context.Context, known store.Idempotency, hash string) (api.Sandbox, error) {
	if known.Hash != hash {
		return api.Sandbox{}, api.Errorf(
			api.Conflict,
			"the idempotency key was used for another request: use a new key",
		).With("sandbox_id", known.Sandbox)
	}
	for {
		r, err := s.load(ctx, api.SandboxID(known.Sandbox))
		switch {
		case errors.Is(err, store.ErrNotFound):
			return s.endedSandbox(ctx, known.Sandbox)
		case err != nil:
			return api.Sandbox{}, err
		case r.State != api.Creating:
			return s.view(&r), nil
		}
		select { // another process is creating it
		case <-ctx.Done():
			return api.Sandbox{}, context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// endedSandbox returns what the tombstone of a sandbox says of it.
func (s *Service) endedSandbox(ctx context.Context, id string) (api.Sandbox, error) {
	t, err := s.db.Read().Tombstone(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return api.Sandbox{}, api.Errorf(
			api.Conflict, "the idempotency key was used for sandbox %s, which ended: use a new key", id)
	}
	if err != nil {
		return api.Sandbox{}, err
	}
	at := store.Time(t.Ended)
	return api.Sandbox{
		ID:        api.SandboxID(t.Sandbox),
		Template:  t.Template,
		Status:    api.Deleted,
		Metadata:  visibleMetadata(t.Metadata),
		Workspace: api.Workspace(t.Workspace),
		CreatedAt: store.Time(t.Created),
		EndedAt:   &at,
		EndReason: t.Reason,
	}, nil
}

func (s *Service) createNew(
	ctx context.Context,
	p auth.Principal,
	req api.CreateRequest,
	hash string,
) (api.Sandbox, error) {
	r, ask, err := s.plan(ctx, p, req)
	if err != nil {
		return api.Sandbox{}, err
	}
	ctx, release, err := s.locks.Acquire(ctx, string(r.ID))
	if err != nil {
		return api.Sandbox{}, err
	}
	defer release()
	if s.volumes != nil && len(req.Volumes) > 0 {
		if err := s.volumes.Yield(ctx, p.Workspace, p.Owner, req.Volumes); err != nil {
			return api.Sandbox{}, err
		}
	}
	if ask.Volumes, err = s.insert(ctx, &r, hash, req.Volumes); err != nil {
		return api.Sandbox{}, err
	}
	s.refreshCapacity(ctx)
	m, err := s.host.Create(ctx, ask)
	if err != nil {
		return api.Sandbox{}, s.abortCreate(ctx, &r, createError(ctx, err, &r))
	}
	if err := s.markRunning(ctx, &r, m); err != nil {
		return api.Sandbox{}, s.abortCreate(ctx, &r, err)
	}
	return s.view(&r), nil
}

// insert writes the record of a sandbox that is about to be created, its idempotency key if it has one, and the leases
// of its volumes. It returns the volumes to ask the host for.
func (s *Service) insert(
	ctx context.Context,
	r *record,
	hash string,
	mounts []api.VolumeMount,
) (ask []hostapi.VolumeAttachment, err error) {
	err = s.db.Write(ctx, "create begin", func(ctx context.Context, tx *store.Tx) (err error) {
		if err := s.quotas.Admit(ctx, tx, r.Workspace, usesOf(r)...); err != nil {
			return err
		}
		if ask, r.Volumes, err = lease.Attach(ctx, tx, r.Workspace, r.Owner, r.ID, "", mounts); err != nil {
			return err
		}
		if hash != "" {
			i := &store.Idempotency{Workspace: string(r.Workspace), Name: r.IdempotencyKey, Hash: hash,
				Sandbox: string(r.ID), Created: store.Micros(r.Created)}
			if err := tx.InsertIdempotency(ctx, i); errors.Is(err, store.ErrExists) {
				return errKeyTaken
			} else if err != nil {
				return err
			}
		}
		if err := tx.InsertSandbox(ctx, r.row()); err != nil {
			return err
		}
		return s.appendEvents(ctx, tx, r,
			newEvent{api.EventCreated, map[string]any{"template": r.Template, "from_snapshot": r.Snapshot}})
	})
	return ask, err
}

// createError translates why a machine could not be made.
func createError(ctx context.Context, err error, r *record) error {
	if cause := hosterror.Interruption(ctx); cause != nil {
		return cause
	}
	if errors.Is(err, hostapi.ErrNotFound) && r.Snapshot != "" {
		return api.Wrap(api.NotFound, err, "snapshot "+string(r.Snapshot)+" is not on any host any more")
	}
	return hosterror.Wrap(err, "create", string(r.ID))
}

// markRunning writes that a new machine runs.
func (s *Service) markRunning(ctx context.Context, r *record, m hostapi.Machine) error {
	r.applyMachine(m)
	s.activity.Touch(string(r.ID))
	ctx, cancel := detached(ctx)
	defer cancel()
	if err := s.applyVolumes(ctx, r, m); err != nil {
		return err
	}
	return s.setState(ctx, "create end", r, api.Running, newEvent{api.EventRunning,
		map[string]any{"boot_mode": r.BootMode, "boot_ms": r.Boot.Milliseconds()}})
}

// abortCreate removes a sandbox that could not be made and returns why. The reconciler removes later what cannot be
// removed now.
func (s *Service) abortCreate(ctx context.Context, r *record, why error) error {
	ctx, cancel := detached(ctx)
	defer cancel()
	r.EndReason, r.EndBy = EndedCreateFailed, ""
	if err := s.finishDelete(ctx, r, "it could not be created: "+api.AsError(why).Message, nil); err != nil {
		s.log.Warn(
			"removing a sandbox whose create failed did not work; it is tried again",
			"sandbox",
			r.ID,
			"err",
			err,
		)
	}
	return why
}

// plan decides what is made, without making anything.
func (s *Service) plan(
	ctx context.Context,
	p auth.Principal,
	req api.CreateRequest,
) (record, hostapi.Create, error) {
	at := now()
	r := record{
		ID: api.NewSandboxID(), Workspace: p.Workspace, State: api.Creating, Instance: s.instance,
		Metadata: req.Metadata, Persistent: req.Persistent, TTL: s.cfg.DefaultTTL.Truncate(time.Second),
		Ends: endsAt(req.TimeoutSeconds), OnEnd: cmp.Or(req.OnTimeout, api.TimeoutDelete),
		Created: at, Changed: at, Active: at, IdempotencyKey: req.IdempotencyKey, Env: req.Env,
		Network: req.NetworkPolicy(), Injected: req.Injected, Owner: p.Owner,
	}
	if req.TTLSeconds != nil {
		r.TTL = time.Duration(*req.TTLSeconds) * time.Second
	}
	var template hostapi.TemplateName
	var limits hostapi.Limits
	var err error
	if req.FromSnapshot != "" {
		limits, err = s.planSnapshot(ctx, p, req, &r)
	} else {
		template, limits, err = s.planTemplate(ctx, p, req, &r)
	}
	if err == nil {
		err = s.applyLimits(ctx, &r, req.Limits, limits)
	}
	if err != nil {
		return r, hostapi.Create{}, err
	}
	r.User, r.Workdir = cmp.Or(req.User, r.User), cmp.Or(req.Workdir, r.Workdir)
	r.DiskMiB = max(r.DiskMiB, req.MinDiskMiB())
	memory := 0
	if req.MemoryMB > r.MemoryMiB {
		memory = req.MemoryMB // the host knows whether it can
		r.MemoryMiB = memory
	}
	return r, hostapi.Create{
		ID:         r.machineID(),
		Template:   template,
		Snapshot:   hostapi.SnapshotID(r.Snapshot),
		MemoryMiB:  memory,
		DiskMiB:    req.MinDiskMiB(),
		Hostname:   string(r.ID),
		Env:        r.environment(),
		Files:      r.injectedFiles(),
		Persistent: r.Persistent,
		Egress:     r.egress(),
		Limits:     r.Limits,
		Group:      string(r.Workspace),
		Labels:     s.hostLabels(&r),
	}, nil
}

// planTemplate takes over what the template says. It returns the template's name on the host and its limits.
func (s *Service) planTemplate(
	ctx context.Context,
	p auth.Principal,
	req api.CreateRequest,
	r *record,
) (hostapi.TemplateName, hostapi.Limits, error) {
	t, err := s.templates.Resolve(ctx, p, cmp.Or(req.Template, s.cfg.DefaultTemplate))
	if err != nil {
		if api.CodeOf(err) == api.NotFound { // in a create, the template is a field that is wrong
			err = api.Wrap(api.Invalid, err, "template: "+err.Error()).With("field", "template")
		}
		return "", hostapi.Limits{}, err
	}
	switch {
	case req.CPU != 0 && req.CPU != t.CPU:
		return "", hostapi.Limits{}, sizeError("cpu", req.CPU, t.CPU, t.Name)
	case req.MemoryMB != 0 && req.MemoryMB < t.MemoryMB:
		return "", hostapi.Limits{}, sizeError("memory_mb", req.MemoryMB, t.MemoryMB, t.Name)
	}
	r.Template, r.User, r.Workdir = t.Name, t.User, t.Workdir
	r.VCPUs, r.MemoryMiB, r.DiskMiB, r.DataDisks = t.CPU, t.MemoryMB, t.DiskMB, t.DataDisks
	r.Env = mergeMaps(t.Env, r.Env)
	var limits hostapi.Limits
	if t.Limits != nil {
		limits = hostapi.Limits(*t.Limits)
	}
	return hostapi.TemplateName(t.Host), limits, nil
}

func sizeError(field string, asked, has int, template string) error {
	return api.Errorf(api.Invalid,
		"%s: %d was asked for and template %s has %d: leave it out, the template owns its size",
		field, asked, template, has).With("field", field)
}

// planSnapshot takes over what a snapshot says. It returns the limits of the sandbox that it was taken of.
func (s *Service) planSnapshot(
	ctx context.Context,
	p auth.Principal,
	req api.CreateRequest,
	r *record,
) (hostapi.Limits, error) {
	snap, err := s.findSnapshot(ctx, p, req.FromSnapshot)
	if err != nil {
		return hostapi.Limits{}, err
	}
	r.Snapshot, r.Template, r.User, r.Workdir = snap.ID, snap.Template, snap.User, snap.Workdir
	r.VCPUs, r.MemoryMiB, r.DiskMiB = snap.VCPUs, snap.MemoryMiB, snap.DiskMiB
	r.Env = mergeMaps(snap.Env, req.Env)
	if req.Injected == nil {
		r.Injected = snap.Injected
	}
	return snap.Limits, nil
}
