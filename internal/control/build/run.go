package build

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/job"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/lib/cleanup"
)

// publishStep is the last step, which makes a template of the result of the others.
const publishStep = "publish"

// cleanupTimeout bounds the work that is done for a build after its context has ended.
const cleanupTimeout = 2 * time.Minute

// buildRun is one attempt of a build. It belongs to one goroutine.
type buildRun struct {
	s         *Service
	lease     *job.Lease
	row       store.Build
	spec      Spec
	principal auth.Principal
	log       *buildLog
	done      chan struct{} // closed when the run has ended
	stages    []stage
	machines  int // number of machines that were created
	contexts  *contextFiles
	limits    *api.Limits     // limits of the source, which hold unless the request has its own
	pruned    []store.Version // versions of the template that the new one replaces
}

// newRun makes the run of a leased build and lists it as active.
func (s *Service) newRun(ctx context.Context, lease *job.Lease) (*buildRun, error) {
	row, err := s.db.Read().Build(ctx, lease.Job().ID)
	if errors.Is(err, store.ErrNotFound) {
		return nil, job.Permanent(err)
	}
	if err != nil {
		return nil, err
	}
	if row.State != stateRunning {
		return nil, job.Permanent(fmt.Errorf("build %s is %s", row.ID, row.State))
	}
	log, err := openLog(ctx, s.db, row.ID)
	if err != nil {
		return nil, err
	}
	log.written = lease.SetLogPosition
	a := &buildRun{
		s:         s,
		lease:     lease,
		row:       row,
		log:       log,
		done:      make(chan struct{}),
		principal: auth.Principal{Workspace: api.Workspace(row.Workspace)},
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active[row.ID] = a
	close(s.activated)
	s.activated = make(chan struct{})
	return a, nil
}

// close ends the record of the run.
func (a *buildRun) close() {
	a.log.close()
	a.s.mu.Lock()
	delete(a.s.active, a.row.ID)
	if a.row.State != stateQueued {
		delete(a.s.secrets, a.row.ID)
	}
	a.s.mu.Unlock()
	close(a.done)
}

// execute runs one attempt of a build and writes its outcome. It implements job.Worker.Run.
func (s *Service) execute(parent context.Context, lease *job.Lease) error {
	a, err := s.newRun(parent, lease)
	if err != nil {
		return err
	}
	defer a.close()
	limit := s.cfg.BuildTimeout
	ctx, free := context.WithTimeoutCause(
		parent,
		limit,
		api.Errorf(api.Timeout, "the build took longer than %s", limit),
	)
	defer free()
	flushing, stopFlushing := context.WithCancel(context.WithoutCancel(ctx))
	var flushed sync.WaitGroup
	flushed.Go(func() { a.log.flushPeriodically(flushing) })
	s.log.Info("build started", "build", a.row.ID, "template", a.row.Name, "workspace", a.row.Workspace)
	err = a.runAndClean(ctx)
	stopFlushing()
	flushed.Wait()
	final, freeFinal := context.WithTimeoutCause(
		context.WithoutCancel(parent),
		cleanupTimeout,
		errors.New("the end of the build could not be written in time"),
	)
	defer freeFinal()
	switch cause := context.Cause(parent); {
	case err != nil && errors.Is(cause, job.ErrLeaseLost):
		return cause // the build belongs to another process
	case err != nil && errors.Is(cause, job.ErrShutdown):
		return a.requeue(final)
	}
	return a.finish(final, err)
}

// runAndClean runs the build. It leaves nothing on the host but layers and, on success, the template.
func (a *buildRun) runAndClean(ctx context.Context) (err error) {
	var back cleanup.Stack
	defer func() {
		if err != nil && context.Cause(ctx) != nil {
			err = context.Cause(ctx)
		}
		err = back.Settle(ctx, err)
	}()
	if err := a.s.cleanHost(ctx, a.row.ID); err != nil { // remains of an earlier attempt
		return err
	}
	back.Push("clean the host", func(ctx context.Context) error { return a.s.cleanHost(ctx, a.row.ID) })
	if a.spec, err = decodeSpec(a.row.Spec); err != nil {
		return err
	}
	a.s.mu.Lock()
	a.spec.Registry = a.s.secrets[a.row.ID]
	a.s.mu.Unlock()
	if a.row.Attempt > 1 {
		a.log.append(
			levelWarn,
			"",
			fmt.Sprintf("attempt %d of the build continues after the last finished step", a.row.Attempt),
		)
	}
	defer func() { err = errors.Join(err, a.contexts.close()) }()
	return a.build(ctx)
}

// build runs the build from its source to the committed template.
func (a *buildRun) build(ctx context.Context) error {
	from, about, err := a.prepareSource(ctx)
	if err != nil {
		return err
	}
	if err := a.onStep("source"); err != nil {
		return err
	}
	if err := a.setStep(ctx, publishStep, false); err != nil {
		return err
	}
	from.Name = hostapi.TemplateName(a.row.ID)
	from.Labels = a.labels()
	progress, err := a.s.host.Publish(ctx, from)
	if err != nil {
		return a.publishError(err)
	}
	t, err := hostapi.AwaitPublish(ctx, progress, func(step, line string) {
		a.log.append(levelInfo, publishStep+" "+step, line)
	})
	if err != nil {
		return a.publishError(err)
	}
	if err := a.onStep("publish"); err != nil {
		return err
	}
	if err := a.commit(ctx, t, from, about); err != nil {
		return err
	}
	a.cleanUp(ctx)
	return nil
}

// cleanUp removes the machines, inputs and replaced versions of a committed build, even if ctx has ended. Garbage
// collection removes what stays because of an error.
func (a *buildRun) cleanUp(ctx context.Context) {
	ctx, free := context.WithTimeoutCause(
		context.WithoutCancel(ctx),
		cleanupTimeout,
		errors.New("a finished build could not be cleaned up in time"),
	)
	defer free()
	err := errors.Join(
		a.s.templates.Drop(ctx, a.pruned), a.s.cleanMachines(ctx, a.row.ID), a.s.removeInputs(ctx, a.row.ID),
	)
	if err != nil {
		a.s.log.Warn("a finished build was not cleaned up completely", "build", a.row.ID, "err", err)
	}
}

// onStep calls the hook of tests.
func (a *buildRun) onStep(step string) error {
	if a.s.cfg.OnStep == nil {
		return nil
	}
	return a.s.cfg.OnStep(step)
}

// ownerOf returns the owner label of what a build makes on the host.
func ownerOf(build string) string { return hostapi.Owner{Kind: hostapi.OwnerBuild, ID: build}.String() }

// labels returns the labels of everything that the build makes on the host.
func (a *buildRun) labels() map[string]string {
	return map[string]string{
		hostapi.LabelOwner: ownerOf(a.row.ID),
		hostapi.LabelKind:  hostapi.KindBuild,
		"build":            a.row.ID,
		"workspace":        a.row.Workspace,
		"store":            a.s.db.ID(),
	}
}

// commit makes the published host template a version of the build's template, in the transaction that ends the build.
func (a *buildRun) commit(ctx context.Context, t hostapi.Template, from hostapi.Publish, base string) error {
	now := store.Micros(time.Now())
	v := store.Version{
		ID:        a.row.ID,
		Template:  a.row.Template,
		Hash:      a.row.Hash,
		Base:      base,
		VCPUs:     t.VCPUs,
		MemoryMiB: t.MemoryMiB,
		DiskMiB:   t.DiskMiB,
		Bytes:     t.Bytes,
		User:      from.User,
		Workdir:   from.Workdir,
		Env:       from.Env,
		Start:     from.Start,
		Ready:     from.Ready,
		Created:   now,
	}
	if l := cmp.Or(a.spec.Limits, a.limits); l != nil && !l.IsZero() {
		data, err := json.Marshal(l)
		if err != nil {
			return err
		}
		v.Limits = string(data)
	}
	row := a.row
	row.State, row.Step, row.Error, row.Code, row.Bytes, row.Ended = stateDone, "", "", "", t.Bytes, now
	a.log.append(
		levelInfo,
		"",
		fmt.Sprintf("template %s is ready: %d processors, %d MiB of memory, %d MiB of disk, %s on the host",
			a.row.Name, t.VCPUs, t.MemoryMiB, t.DiskMiB, size(t.Bytes)),
	)
	if err := a.log.flush(ctx); err != nil {
		return err
	}
	var old []store.Version
	err := a.s.db.Write(ctx, "build commit", func(ctx context.Context, tx *store.Tx) (err error) {
		uses := quota.Amount{Kind: quota.Disk, N: v.Bytes}
		if err := a.s.quotas.Admit(ctx, tx, a.principal.Workspace, uses); err != nil {
			return err
		}
		if old, err = a.s.templates.Add(ctx, tx, v, a.spec.Tags); err != nil {
			return err
		}
		if a.spec.Description != "" {
			if err := tx.UpdateTemplate(ctx, &store.Template{ID: v.Template, Description: a.spec.Description},
				"description"); err != nil {
				return err
			}
		}
		if err := a.lease.Complete(ctx, tx, nil); err != nil {
			return err
		}
		return tx.UpdateBuild(ctx, &row, []string{stateRunning})
	})
	if errors.Is(err, job.ErrLeaseLost) {
		return err
	}
	if now, rerr := a.s.db.Read().Build(ctx, row.ID); err != nil && (rerr != nil || now.State != stateDone) {
		return err
	} // the transaction may have been committed although its commit returned an error
	a.row, a.pruned = row, old
	return nil
}

func size(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }

// setStep writes the current step and the number of finished ones.
func (a *buildRun) setStep(ctx context.Context, step string, cached bool) error {
	if step == publishStep {
		a.row.Done = a.row.Steps
	} else if a.row.Step != "" {
		a.row.Done++
	}
	if cached {
		a.row.Cached++
	}
	a.row.Step = step
	err := a.s.db.Write(ctx, "build step", func(ctx context.Context, tx *store.Tx) error {
		if err := a.lease.SetProgress(ctx, tx, step); err != nil {
			return err
		}
		return tx.UpdateBuild(ctx, &a.row, []string{stateRunning}, "step", "done", "steps", "cached")
	})
	if err != nil {
		return err
	}
	return a.onStep("note")
}

// finish writes the failure of a build. If err is nil the build has been committed, and only its log is flushed.
func (a *buildRun) finish(ctx context.Context, err error) error {
	if err == nil || a.row.State == stateDone {
		return a.log.flush(ctx)
	}
	if errors.Is(err, job.ErrCancelled) {
		err = errCancelled
	}
	e, known := errors.AsType[*api.Error](err)
	if !known {
		e = hostError(err)
	}
	if e.Code == api.Internal {
		a.s.log.Error("build failed", "build", a.row.ID, "err", err)
	} else {
		a.s.log.Info("build failed", "build", a.row.ID, "code", e.Code, "err", err)
	}
	a.log.append(levelError, a.row.Step, e.Message)
	flush := a.log.flush(ctx)
	row := a.row
	row.State, row.Error, row.Code, row.Ended = stateFailed, e.Message, string(e.Code), store.Micros(time.Now())
	werr := a.s.db.Write(ctx, "build end", func(ctx context.Context, tx *store.Tx) error {
		if err := a.lease.Fail(ctx, tx, e); err != nil {
			return err
		}
		return tx.UpdateBuild(ctx, &row, []string{stateRunning},
			"state", "error", "code", "ended", "step", "done", "steps", "cached")
	})
	if werr == nil {
		a.row = row
	}
	return errors.Join(flush, werr)
}

// requeue returns an interrupted build to the queue. A shutdown of the node does not count as an attempt.
func (a *buildRun) requeue(ctx context.Context) error {
	a.log.append(levelWarn, a.row.Step, "the node is shutting down: the build continues when it starts again")
	flush := a.log.flush(ctx)
	row := a.row
	row.State, row.Owner, row.Attempt, row.Step, row.Done, row.Cached = stateQueued, "", row.Attempt-1, "", 0, 0
	err := a.s.db.Write(ctx, "build requeue", func(ctx context.Context, tx *store.Tx) error {
		if err := a.lease.Release(ctx, tx); err != nil {
			return err
		}
		return tx.UpdateBuild(ctx, &row, []string{stateRunning}, "state", "owner", "attempt", "step", "done", "cached")
	})
	if err == nil {
		a.row = row
	}
	return errors.Join(flush, err)
}

// publishError returns an error of Host.Publish as users see it, and records the step that failed.
func (a *buildRun) publishError(err error) error {
	at, ok := errors.AsType[*hostapi.PublishError](err)
	if !ok || hostCode(err) != api.Internal {
		return hostError(err)
	}
	a.row.Step = publishStep + " " + at.Step
	return api.Wrap(api.Invalid, err, fmt.Sprintf("publish, %s: %s", at.Step, at.Err))
}

var hostCodes = []struct {
	err  error
	code api.Code
}{
	{hostapi.ErrNoSpace, api.NoSpace}, {hostapi.ErrNoCapacity, api.NoCapacity}, {hostapi.ErrInvalid, api.Invalid},
	{hostapi.ErrUnsupported, api.Unsupported}, {hostapi.ErrNotFound, api.NotFound}, {hostapi.ErrExists, api.Conflict},
	{context.DeadlineExceeded, api.Timeout},
}

// hostCode returns the code of a host's error, Internal for an unknown one.
func hostCode(err error) api.Code {
	for _, c := range hostCodes {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	return api.Internal
}

// hostError returns an error of the host, or of this package, as users see it.
func hostError(err error) *api.Error {
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e
	}
	code := hostCode(err)
	if code == api.Internal {
		return api.Wrap(code, err, "the build failed: internal error (the log of the server has the details)")
	}
	text := err.Error()
	if code == api.NoSpace {
		text += ": delete templates, snapshots or sandboxes that are no longer needed, then try again"
	}
	return api.Wrap(code, err, text)
}

// cleanMachines destroys the machines of a build and removes its image and its temporary snapshot.
func (s *Service) cleanMachines(ctx context.Context, build string) error {
	machines, err := s.host.List(ctx)
	if err != nil {
		return err
	}
	var all error
	for _, m := range machines {
		if hostapi.OwnerOf(m.Labels).String() == ownerOf(build) {
			all = errors.Join(all, s.host.Destroy(ctx, m.ID, "its build has ended"))
		}
	}
	images, err := s.host.Images(ctx)
	if err != nil {
		return errors.Join(all, err)
	}
	if slices.ContainsFunc(images, func(i hostapi.Image) bool { return i.ID == imageID(build) }) {
		all = errors.Join(all, s.deleteImage(ctx, imageID(build)))
	}
	return errors.Join(all, s.deleteSnapshot(ctx, tempSnapshotID(build)))
}

// cleanHost removes everything on the host that belongs to an uncommitted build, except layers.
func (s *Service) cleanHost(ctx context.Context, build string) error {
	err := s.host.DeleteTemplate(ctx, hostapi.TemplateName(build))
	if errors.Is(err, hostapi.ErrNotFound) {
		err = nil
	}
	return errors.Join(err, s.cleanMachines(ctx, build))
}

func (s *Service) deleteImage(ctx context.Context, id hostapi.ImageID) error {
	if err := s.host.DeleteImage(ctx, id); !errors.Is(err, hostapi.ErrNotFound) {
		return err
	}
	return nil
}

func (s *Service) deleteSnapshot(ctx context.Context, id hostapi.SnapshotID) error {
	if err := s.host.DeleteSnapshot(ctx, id); !errors.Is(err, hostapi.ErrNotFound) {
		return err
	}
	return nil
}

// imageID and tempSnapshotID return the names of the only image and the only temporary snapshot of a build.
func imageID(build string) hostapi.ImageID           { return hostapi.ImageID(build) }
func tempSnapshotID(build string) hostapi.SnapshotID { return hostapi.SnapshotID("pas" + build) }

// removeInputs removes the uploads of a build.
func (s *Service) removeInputs(ctx context.Context, build string) error {
	return errors.Join(os.RemoveAll(s.dir("inputs", build)), s.forgetSpace(ctx, inputSpace(build)))
}
