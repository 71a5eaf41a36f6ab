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
	"github.com/pandastack/pandastack/internal/control/store"
)

func machineID(r *store.Sandbox) hostapi.MachineID { return hostapi.MachineID(r.ID) }

// Create makes a sandbox and answers when it runs. With an idempotency key the same request answers the
// same sandbox, also one that ended since; another request under the key is a conflict.
func (s *Service) Create(ctx context.Context, p auth.Principal, req api.CreateRequest) (_ api.Sandbox, err error) {
	defer s.finishVerb("create", time.Now(), &err)
	if p.Workspace == "" {
		return api.Sandbox{}, api.Errorf(api.Unauthenticated, "the caller has no workspace")
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
	// One call per key at a time, the ones behind it find what it made. Other processes on the same
	// store find its row.
	_, release, err := s.locks.acquire(ctx, "request/"+string(p.Workspace)+"/"+req.IdempotencyKey)
	if err != nil {
		return api.Sandbox{}, err
	}
	defer release()
	for {
		known, err := s.db.Read().Idempotency(ctx, string(p.Workspace), req.IdempotencyKey)
		if err == nil {
			return s.replayCreate(ctx, p, known, hash)
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

// requestHash tells one request from another.
func requestHash(req api.CreateRequest) (string, error) {
	data, err := json.Marshal(req)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

// replayCreate answers what a key stands for.
func (s *Service) replayCreate(
	ctx context.Context,
	p auth.Principal,
	known store.Idempotency,
	hash string,
) (api.Sandbox, error) {
	if known.Hash != hash {
		return api.Sandbox{}, api.Errorf(api.Conflict, "the idempotency key was used for another request: use a new key").
			With("sandbox_id", known.Sandbox)
	}
	for {
		r, err := s.db.Read().Sandbox(ctx, known.Sandbox)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return s.endedSandbox(ctx, known.Sandbox)
		case err != nil:
			return api.Sandbox{}, err
		case api.Status(r.State) != api.Creating:
			return s.view(&r), nil
		}
		select { // another process creates it
		case <-ctx.Done():
			return api.Sandbox{}, context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// endedSandbox gives a sandbox that ended, as far as it is remembered.
func (s *Service) endedSandbox(ctx context.Context, id string) (api.Sandbox, error) {
	t, err := s.db.Read().Tombstone(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return api.Sandbox{}, api.Errorf(
			api.Conflict,
			"the idempotency key was used for sandbox %s, which ended: use a new key",
			id,
		)
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
	ctx, release, err := s.locks.acquire(ctx, r.ID)
	if err != nil {
		return api.Sandbox{}, err
	}
	defer release()
	err = s.db.Write(ctx, "create begin", func(ctx context.Context, tx *store.Tx) error {
		if err := s.checkQuota(ctx, tx, p, 1); err != nil {
			return err
		}
		if hash != "" {
			i := &store.Idempotency{
				Workspace: r.Workspace,
				Name:      req.IdempotencyKey,
				Hash:      hash,
				Sandbox:   r.ID,
				Created:   r.Created,
			}
			if err := tx.InsertIdempotency(ctx, i); errors.Is(err, store.ErrExists) {
				return errKeyTaken
			} else if err != nil {
				return err
			}
		}
		if err := tx.InsertSandbox(ctx, &r); err != nil {
			return err
		}
		return s.appendEvents(
			ctx,
			tx,
			&r,
			newEvent{api.EventCreated, map[string]any{"template": r.Template, "from_snapshot": r.Snapshot}},
		)
	})
	if err != nil {
		return api.Sandbox{}, err
	}
	s.refreshCapacity(ctx)
	m, err := s.host.Create(ctx, ask)
	if err != nil {
		return api.Sandbox{}, s.abortCreate(ctx, &r, s.createError(ctx, err, &r))
	}
	if err := s.markRunning(ctx, &r, m); err != nil {
		return api.Sandbox{}, s.abortCreate(ctx, &r, err)
	}
	return s.view(&r), nil
}

// createError translates why a machine could not be made.
func (s *Service) createError(ctx context.Context, err error, r *store.Sandbox) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, cause) {
		return cause
	}
	if errors.Is(err, hostapi.ErrNotFound) && r.Snapshot != "" {
		return api.Wrap(api.NotFound, err, "snapshot "+r.Snapshot+" is not on any host any more")
	}
	return hostError(err, "create", r.ID)
}

// markRunning writes that a new machine runs.
func (s *Service) markRunning(ctx context.Context, r *store.Sandbox, m hostapi.Machine) error {
	applyMachine(r, m)
	s.activity.Touch(r.ID)
	ctx, cancel := detached(ctx)
	defer cancel()
	return s.setState(ctx, "create end", r, api.Running, newEvent{api.EventRunning,
		map[string]any{"boot_mode": r.BootMode, "boot_ms": r.Boot / 1000}})
}

// abortCreate takes back a sandbox that could not be made and answers why. What cannot be taken back now is
// taken back by the comparison with the host.
func (s *Service) abortCreate(ctx context.Context, r *store.Sandbox, why error) error {
	ctx, cancel := detached(ctx)
	defer cancel()
	r.EndReason, r.EndBy = string(EndedCreateFailed), ""
	if err := s.finishDelete(ctx, r, "it could not be created: "+api.AsError(why).Message, nil); err != nil {
		s.log.Warn("taking back a create failed; it is tried again", "sandbox", r.ID, "err", err)
	}
	return why
}

// checkQuota refuses more sandboxes than a workspace may have.
func (s *Service) checkQuota(ctx context.Context, tx *store.Tx, p auth.Principal, more int) error {
	limit := s.cfg.MaxSandboxes
	w, err := tx.Workspace(ctx, string(p.Workspace))
	if err == nil && w.MaxSandboxes > 0 {
		limit = w.MaxSandboxes
	} else if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if limit == 0 {
		return nil
	}
	n, err := tx.CountSandboxes(ctx, string(p.Workspace))
	if err != nil {
		return err
	}
	if n+more > limit {
		return api.Errorf(api.QuotaExceeded, "the workspace has %d sandboxes and may have %d: delete some first", n, limit).
			With("limit", limit).
			With("used", n)
	}
	return nil
}

// plan decides what is made, without making anything.
func (s *Service) plan(
	ctx context.Context,
	p auth.Principal,
	req api.CreateRequest,
) (store.Sandbox, hostapi.Create, error) {
	now := store.Micros(time.Now())
	r := store.Sandbox{
		ID: string(api.NewSandboxID()), Workspace: string(p.Workspace), State: string(api.Creating), Owner: s.instance,
		Phases: "[]", Metadata: req.Metadata, Persistent: req.Persistent,
		TTLSeconds: int64(
			s.cfg.DefaultTTL / time.Second,
		), Ends: endsAt(req.TimeoutSeconds), OnEnd: string(cmp.Or(req.OnTimeout, api.TimeoutDelete)),
		Created: now, Changed: now, Active: now, Idempotency: req.IdempotencyKey, Env: req.Env,
	}
	if req.TTLSeconds != nil {
		r.TTLSeconds = *req.TTLSeconds
	}
	err := errors.Join(setNetwork(&r, req.NetworkPolicy()), setInjected(&r, req.Injected))
	if err != nil {
		return r, hostapi.Create{}, err
	}
	var host hostapi.TemplateName
	var limits hostapi.Limits
	if req.FromSnapshot != "" {
		limits, err = s.planSnapshot(ctx, p, req, &r)
	} else {
		host, limits, err = s.planTemplate(ctx, p, req, &r)
	}
	if err == nil {
		err = s.applyLimits(ctx, &r, req.Limits, limits)
	}
	if err != nil {
		return r, hostapi.Create{}, err
	}
	if req.User != "" {
		r.User = req.User
	}
	if req.Workdir != "" {
		r.Workdir = req.Workdir
	}
	r.DiskMiB = req.MinDiskMiB()
	more := 0
	if req.MemoryMB > r.MemoryMiB {
		more = req.MemoryMB // the host knows whether it can
	}
	ask := hostapi.Create{
		ID:         machineID(&r),
		MemoryMiB:  more,
		DiskMiB:    req.MinDiskMiB(),
		Hostname:   r.ID,
		Env:        environment(&r),
		Files:      injectedFiles(&r),
		Persistent: r.Persistent,
		Egress:     policyOf(&r),
		Limits:     limitsOf(r.Limits),
		Labels:     s.hostLabels(r.Workspace, r.Injected),
	}
	if r.Snapshot != "" {
		ask.Snapshot = hostapi.SnapshotID(r.Snapshot)
	} else {
		ask.Template = host
	}
	return r, ask, nil
}

// planTemplate fills in what the template says and answers its name on the host and the limits it has.
func (s *Service) planTemplate(
	ctx context.Context,
	p auth.Principal,
	req api.CreateRequest,
	r *store.Sandbox,
) (hostapi.TemplateName, hostapi.Limits, error) {
	name := req.Template
	if name == "" {
		name = s.cfg.DefaultTemplate
	}
	t, err := s.templates.Resolve(ctx, p, name)
	if err != nil {
		if api.CodeOf(err) == api.NotFound { // of a create the template is a field that is wrong
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
	r.VCPUs, r.MemoryMiB = t.CPU, t.MemoryMB
	r.Env = mergeMaps(t.Env, r.Env)
	var limits hostapi.Limits
	if t.Limits != nil {
		limits = hostapi.Limits(*t.Limits)
	}
	return hostapi.TemplateName(t.Host), limits, nil
}

func sizeError(field string, asked, has int, template string) error {
	return api.Errorf(api.Invalid, "%s: %d was asked for and template %s has %d: leave it out, the template owns its size", field, asked, template, has).
		With("field", field)
}

// planSnapshot fills in what a snapshot says and answers the limits of the sandbox that it was taken of.
func (s *Service) planSnapshot(
	ctx context.Context,
	p auth.Principal,
	req api.CreateRequest,
	r *store.Sandbox,
) (hostapi.Limits, error) {
	snap, err := s.snapshot(ctx, p, req.FromSnapshot)
	if err != nil {
		return hostapi.Limits{}, err
	}
	r.Snapshot, r.Template, r.User, r.Workdir = snap.ID, snap.Template, snap.User, snap.Workdir
	r.VCPUs, r.MemoryMiB = snap.VCPUs, snap.MemoryMiB
	r.Env = mergeMaps(snap.Env, req.Env)
	if req.Injected == nil {
		r.Injected = snap.Injected
	}
	return limitsOf(snap.Limits), nil
}
