package build

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/store"
)

// collectGarbage removes everything that is not needed any more. A removal that fails is repeated the next time.
func (s *Service) collectGarbage(ctx context.Context) {
	s.collecting.Lock()
	defer s.collecting.Unlock()
	for what, do := range map[string]func(context.Context) error{
		"builds": s.gcBuilds, "inputs": s.gcInputs, "layers": s.gcLayers, "host": s.gcHost, "deferred": s.gcDeferred,
		"jobs": s.adopt, "space": s.gcSpace,
	} {
		if err := do(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("garbage collection of builds failed; it is repeated", "what", what, "err", err)
		}
	}
}

// gcBuilds removes rows and logs of builds that ended long ago, and their templates if they have no version.
func (s *Service) gcBuilds(ctx context.Context) error {
	rows, err := s.db.Read().
		Builds(ctx, store.BuildQuery{EndedBefore: store.Micros(time.Now().Add(-s.cfg.KeepBuilds)), Limit: 1000})
	if err != nil {
		return err
	}
	var all error
	for _, r := range rows {
		err := s.db.Write(
			ctx,
			"build forget",
			func(ctx context.Context, tx *store.Tx) error { return tx.DeleteBuild(ctx, r.ID) },
		)
		all = errors.Join(all, err, s.removeInputs(ctx, r.ID), s.templates.Forget(ctx, r.Template))
	}
	return all
}

// gcInputs removes uploads that no retry needs.
func (s *Service) gcInputs(ctx context.Context) error {
	list, err := os.ReadDir(s.dir("inputs"))
	if err != nil {
		return err
	}
	var all error
	for _, e := range list {
		row, err := s.db.Read().Build(ctx, e.Name())
		switch {
		case errors.Is(err, store.ErrNotFound):
			info, ierr := e.Info()
			if ierr != nil || time.Since(info.ModTime()) < s.cfg.OrphanGrace {
				continue // its row may be written in a moment
			}
			err = s.removeInputs(ctx, e.Name())
		case err != nil:
		case row.State == stateDone, row.Ended != 0 && time.Since(store.Time(row.Ended)) > s.cfg.KeepInputs:
			err = s.removeInputs(ctx, e.Name())
		}
		all = errors.Join(all, err)
	}
	return errors.Join(all, s.gcFiles(ctx))
}

// gcFiles removes old files of E2B's steps. Clients send them again if the server does not have them.
func (s *Service) gcFiles(ctx context.Context) error {
	list, err := filepath.Glob(s.dir("files", "*", "*"))
	if err != nil {
		return err
	}
	var all error
	for _, path := range list {
		info, err := os.Stat(path)
		if err == nil && time.Since(info.ModTime()) > s.cfg.KeepLayers {
			err = errors.Join(os.Remove(path), s.forgetSpace(ctx, s.spaceOf(path)))
		}
		if !errors.Is(err, os.ErrNotExist) {
			all = errors.Join(all, err)
		}
	}
	return all
}

// gcLayers removes layers that are unused for long or beyond the limit of their workspace, and rows of layers that the
// host has lost. Layers used within the timeout of a step stay, because a running build may need them.
func (s *Service) gcLayers(ctx context.Context) error {
	have, err := s.host.Snapshots(ctx)
	if err != nil {
		return err
	}
	rows, err := s.db.Read().Layers(ctx, "")
	if err != nil {
		return err
	}
	now := time.Now()
	exists, space := map[string]bool{}, map[string]int64{}
	for _, h := range have {
		exists[string(h.ID)] = true
	}
	for _, l := range rows {
		space[l.Workspace] += l.Bytes
	}
	var all error
	for _, l := range rows { // the least recently used first
		idle := now.Sub(store.Time(l.Used))
		lost := !exists[l.Snapshot] && idle > s.cfg.OrphanGrace
		if !lost && idle < s.cfg.KeepLayers && (space[l.Workspace] <= s.cfg.MaxLayerBytes || idle < s.cfg.StepTimeout) {
			continue
		}
		space[l.Workspace] -= l.Bytes
		err := s.db.Write(
			ctx,
			"layer forget",
			func(ctx context.Context, tx *store.Tx) error { return tx.DeleteLayer(ctx, l.Workspace, l.Name) },
		)
		if err == nil {
			err = s.deleteSnapshot(ctx, hostapi.SnapshotID(l.Snapshot))
		}
		all = errors.Join(all, err)
	}
	return all
}

// gcHost removes the remains of killed processes: resources that have the label of builds and belong to no build.
func (s *Service) gcHost(ctx context.Context) error {
	// The host is listed before the rows: a listed resource has its row by then, or gets it within the grace period.
	machines, err1 := s.host.List(ctx)
	snapshots, err2 := s.host.Snapshots(ctx)
	templates, err3 := s.host.Templates(ctx)
	images, err4 := s.host.Images(ctx)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	active, err := s.db.Read().Builds(ctx, store.BuildQuery{States: store.ActiveBuildStates})
	if err != nil {
		return err
	}
	layers, err := s.db.Read().Layers(ctx, "")
	if err != nil {
		return err
	}
	versions, err := s.db.Read().Versions(ctx, "")
	if err != nil {
		return err
	}
	builds := func(id string) bool {
		return slices.ContainsFunc(active, func(b store.Build) bool { return b.ID == id })
	}
	seen := map[string]bool{}
	var all error
	drop := func(labels map[string]string, id string, owned bool, remove func() error) {
		if hostapi.OwnerOf(labels).Kind != hostapi.OwnerBuild || labels["store"] != s.db.ID() || owned {
			return
		}
		seen[id] = true
		if s.graceExpired(id) {
			s.log.Warn("remains of a build removed", "id", id, "build", labels["build"])
			all = errors.Join(all, remove())
		}
	}
	for _, m := range machines {
		drop(
			m.Labels,
			string(m.ID),
			builds(m.Labels["build"]),
			func() error { return s.host.Destroy(ctx, m.ID, "its build no longer exists") },
		)
	}
	for _, h := range snapshots {
		owned := builds(h.Labels["build"]) ||
			slices.ContainsFunc(layers, func(l store.Layer) bool { return l.Snapshot == string(h.ID) })
		drop(h.Labels, string(h.ID), owned, func() error { return s.deleteSnapshot(ctx, h.ID) })
	}
	for _, t := range templates {
		owned := builds(string(t.Name)) ||
			slices.ContainsFunc(versions, func(v store.Version) bool { return v.ID == string(t.Name) })
		drop(t.Labels, string(t.Name), owned, func() error { return s.host.DeleteTemplate(ctx, t.Name) })
	}
	for _, i := range images { // an image has no labels; its name is a build id, maybe of another store
		if _, err := s.db.Read().Build(ctx, string(i.ID)); err == nil {
			labels := map[string]string{
				hostapi.LabelOwner: ownerOf(string(i.ID)), "store": s.db.ID(), "build": string(i.ID),
			}
			drop(labels, "image "+string(i.ID), builds(string(i.ID)), func() error { return s.deleteImage(ctx, i.ID) })
		}
	}
	s.pruneOrphans(seen)
	return all
}

// graceExpired reports whether an orphan was first seen long enough ago to be removed.
func (s *Service) graceExpired(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, ok := s.orphans[id]
	if !ok {
		first = time.Now()
		s.orphans[id] = first
	}
	return time.Since(first) >= s.cfg.OrphanGrace
}

// pruneOrphans forgets resources that are not in seen: they have an owner by now, or were removed.
func (s *Service) pruneOrphans(seen map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.orphans {
		if !seen[id] {
			delete(s.orphans, id)
		}
	}
}
