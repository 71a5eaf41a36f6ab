package function

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/function/builder"
	"github.com/pandastack/pandastack/internal/control/function/pool"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/functionstore"
	"github.com/pandastack/pandastack/internal/lib/blob"
)

// Run builds versions, keeps machines, and removes what nothing needs, until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.pool.Run(ctx) })
	group.Go(func() error {
		defer s.builds.Wait()
		tick := time.NewTicker(s.cfg.Interval)
		defer tick.Stop()
		for {
			s.attend(ctx)
			select {
			case <-ctx.Done():
				return nil
			case <-s.poked:
			case <-tick.C:
			}
		}
	})
	return group.Wait()
}

// attend looks at all functions once.
func (s *Service) attend(ctx context.Context) {
	err := errors.Join(s.startBuilds(ctx), s.endLost(ctx))
	rows, e := s.read().Functions(ctx, "", "")
	err = errors.Join(err, e)
	for i := range rows {
		if ctx.Err() != nil {
			return
		}
		if e := s.look(ctx, &rows[i]); e != nil {
			s.log.Warn("looking at a function failed; it is tried again", "function", rows[i].ID, "err", e)
		}
	}
	err = errors.Join(err, s.sweepCode(ctx))
	if err != nil && ctx.Err() == nil {
		s.log.Warn("looking at functions failed; it is tried again", "err", err)
	}
}

// look does for a function what is due.
func (s *Service) look(ctx context.Context, row *functionstore.Function) error {
	if row.State == functionstore.Deleting {
		return s.remove(ctx, row)
	}
	if err := s.pool.Sweep(ctx, api.FunctionID(row.ID), api.Workspace(row.Workspace)); err != nil {
		return err
	}
	served, err := served(ctx, s.read(), row)
	if err != nil {
		return err
	}
	s.pool.Retain(ctx, api.FunctionID(row.ID), served)
	rows, err := s.read().Versions(ctx, row.ID, "")
	if err != nil {
		return err
	}
	if err := s.keep(ctx, row, rows, served); err != nil {
		return err
	}
	for _, v := range rows {
		if v.State == functionstore.VersionReady && v.Captured < row.Revision && slices.Contains(served, v.Number) {
			s.start(ctx, v, s.capture)
		}
	}
	return s.sweep(ctx, row)
}

// keep removes versions that users have deleted, and the oldest beyond those that are kept.
func (s *Service) keep(
	ctx context.Context,
	row *functionstore.Function,
	rows []functionstore.Version,
	served []int64,
) error {
	for i := range rows {
		v := &rows[i]
		old := i >= api.MaxFunctionVersions && v.State != functionstore.VersionBuilding &&
			!slices.Contains(served, v.Number)
		if v.State != functionstore.VersionDeleting && !old || s.busy(v.Function, v.Number) {
			continue
		}
		if v.Snapshot != "" {
			err := s.deleteSnapshot(ctx, row, v.Snapshot)
			if api.CodeOf(err) == api.Conflict {
				continue // a machine was made from it
			}
			if err != nil {
				return err
			}
		}
		if err := s.dropVersion(ctx, v); err != nil {
			return err
		}
	}
	return nil
}

// busy reports whether this process builds a version.
func (s *Service) busy(fn string, number int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.building[versionKey(fn, number)] != nil
}

// dropVersion removes the row of a version and its code.
func (s *Service) dropVersion(ctx context.Context, v *functionstore.Version) error {
	err := s.write(ctx, "function version removed", func(ctx context.Context, tx functionstore.Tx) error {
		return tx.DeleteVersion(ctx, v.Function, v.Number)
	})
	if err != nil { // it may be written nevertheless
		s.stray.Store(true)
		return err
	}
	return s.dropCode(ctx, v.Digest)
}

// dropCode removes a bundle that no version has.
func (s *Service) dropCode(ctx context.Context, digest string) error {
	ctx, release, err := s.locks.Acquire(ctx, codeKey(digest))
	if err != nil {
		return err
	}
	defer release()
	used, err := s.read().CodeUsed(ctx, digest)
	if err == nil && !used {
		err = s.deps.Code.Delete(ctx, codeKey(digest))
	}
	if err != nil { // a sweep removes it
		s.stray.Store(true)
	}
	return err
}

// sweepCode removes bundles that no version has, if there may be any.
func (s *Service) sweepCode(ctx context.Context) (err error) {
	if !s.stray.Swap(false) {
		return nil
	}
	defer func() {
		if err != nil {
			s.stray.Store(true)
		}
	}()
	var digests []string
	err = s.deps.Code.List(ctx, codeKey(""), func(i blob.Info) error {
		digests = append(digests, strings.TrimPrefix(i.Key, codeKey("")))
		return nil
	})
	for _, digest := range digests {
		err = errors.Join(err, s.dropCode(ctx, digest))
	}
	return err
}

// sweep removes machines of builds, and snapshots, that no row names.
func (s *Service) sweep(ctx context.Context, row *functionstore.Function) error {
	boxes, err := s.boxes.List(ctx, as(row), api.SandboxFilter{})
	if err != nil {
		return err
	}
	snaps, err := s.boxes.Snapshots(ctx, as(row), api.SnapshotFilter{})
	if err != nil {
		return err
	}
	// Read after the lists: what was made for a version since is not in them.
	rows, err := s.read().Versions(ctx, row.ID, "")
	if err != nil {
		return err
	}
	for _, box := range boxes.Sandboxes {
		if box.Metadata[pool.RoleKey] != builder.RoleBuild || s.inBuild(row.ID, box.Metadata, box.CreatedAt, rows) {
			continue
		}
		if err := s.boxes.Delete(ctx, as(row), box.ID); err != nil && !ended(err) {
			return err
		}
	}
	for _, snap := range snaps.Snapshots {
		named := slices.ContainsFunc(rows, func(v functionstore.Version) bool {
			return v.Snapshot == string(snap.ID) || v.Layer == string(snap.ID)
		})
		if named || s.inBuild(row.ID, snap.Metadata, snap.CreatedAt, rows) ||
			snap.Metadata[pool.RoleKey] == builder.RoleLayer && s.buildsAny(row.ID) {
			continue
		}
		err := s.deleteSnapshot(ctx, row, string(snap.ID))
		if err != nil && api.CodeOf(err) != api.Conflict { // a machine was made from it: later
			return err
		}
	}
	return nil
}

// inBuild reports whether what has metadata may belong to a build that is under way.
func (s *Service) inBuild(
	fn string,
	metadata map[string]string,
	made time.Time,
	rows []functionstore.Version,
) bool {
	number, err := strconv.ParseInt(metadata[builder.VersionKey], 10, 64)
	if err != nil {
		return false
	}
	if s.busy(fn, number) {
		return true
	}
	i := slices.IndexFunc(rows, func(v functionstore.Version) bool { return v.Number == number })
	if i >= 0 && rows[i].State == functionstore.VersionBuilding {
		return true
	}
	return metadata[pool.InstanceKey] != s.instance && s.db.Shared() && time.Since(made) < s.cfg.ForeignGrace
}

// buildsAny reports whether any version of a function is being built here.
func (s *Service) buildsAny(fn string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.building {
		if len(key) > len(fn) && key[:len(fn)+1] == fn+"/" {
			return true
		}
	}
	return false
}

// ended reports whether an error says that something does not exist.
func ended(err error) bool {
	code := api.CodeOf(err)
	return code == api.NotFound || code == api.Gone
}

// lostAfter is how long a run of another process on a shared store can be under way.
const lostAfter = 2 * api.MaxFunctionTimeout * time.Second

// endLost ends runs of callers whose process has ended.
func (s *Service) endLost(ctx context.Context) error {
	rows, err := s.read().SynchronousRuns(ctx)
	if err != nil {
		return err
	}
	for i := range rows {
		r := &rows[i]
		if r.Instance == s.instance || s.db.Shared() && time.Since(store.Time(r.Created)) < lostAfter {
			continue
		}
		r.State, r.Ended = store.RunError, store.Micros(time.Now())
		r.Error, _ = encode(&api.FunctionError{Type: "ServerEnded",
			Message: "the server ended before the handler returned; it is unknown whether it did its work"})
		err := s.write(ctx, "function run lost", func(ctx context.Context, tx functionstore.Tx) error {
			return tx.UpdateRun(ctx, r, store.RunRunning, "state", "error", "ended")
		})
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		s.Recorded(api.FunctionID(r.Function))
	}
	return nil
}

// Delete removes a function with all that belongs to it. What cannot be removed at once, Run removes.
func (s *Service) Delete(ctx context.Context, p auth.Principal, fn string) error {
	row, err := s.Find(ctx, p, fn)
	if err != nil {
		return err
	}
	err = s.write(ctx, "function delete begin", func(ctx context.Context, tx functionstore.Tx) error {
		if row, err = tx.Function(ctx, row.ID); err != nil {
			return err
		}
		row.State, row.Changed = functionstore.Deleting, store.Micros(time.Now())
		row.Generation++
		return tx.UpdateFunction(ctx, &row, "state", "generation", "changed")
	})
	if errors.Is(err, store.ErrNotFound) {
		return notFound(fn)
	}
	if err != nil {
		return api.AsError(err)
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	if err := s.remove(ctx, &row); err != nil {
		s.log.Warn("a deleted function is not removed yet; it is tried again", "function", row.ID, "err", err)
		s.poke()
	}
	return nil
}

// remove removes everything that belongs to a function that is being deleted, and at last its row.
func (s *Service) remove(ctx context.Context, row *functionstore.Function) error {
	ctx, release, err := s.locks.Acquire(ctx, row.ID)
	if err != nil {
		return err
	}
	defer release()
	if _, err := s.read().Function(ctx, row.ID); err != nil {
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		return err
	}
	id := api.FunctionID(row.ID)
	if err := s.interrupt(ctx, id); err != nil {
		return err
	}
	if err := s.async().Forget(ctx, id); err != nil {
		return err
	}
	if err := s.pool.Forget(ctx, id); err != nil {
		return err
	}
	boxes, err := s.boxes.List(ctx, as(row), api.SandboxFilter{})
	if err != nil {
		return err
	}
	for _, box := range boxes.Sandboxes {
		if err := s.boxes.Delete(ctx, as(row), box.ID); err != nil && !ended(err) {
			return err
		}
	}
	snaps, err := s.boxes.Snapshots(ctx, as(row), api.SnapshotFilter{})
	if err != nil {
		return err
	}
	for _, snap := range snaps.Snapshots {
		if err := s.deleteSnapshot(ctx, row, string(snap.ID)); err != nil {
			return err
		}
	}
	versions, err := s.read().Versions(ctx, row.ID, "")
	if err != nil {
		return err
	}
	for i := range versions {
		if err := s.dropVersion(ctx, &versions[i]); err != nil {
			return err
		}
	}
	err = s.write(ctx, "function removed", func(ctx context.Context, tx functionstore.Tx) error {
		return tx.DeleteFunction(ctx, row.ID)
	})
	s.hub.Notify(row.ID)
	return err
}
