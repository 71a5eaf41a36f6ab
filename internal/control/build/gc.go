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

// collectGarbage removes what is not needed any more. What cannot be removed now is tried again.
func (s *Service) collectGarbage(ctx context.Context) {
	s.collecting.Lock()
	defer s.collecting.Unlock()
	for what, do := range map[string]func(context.Context) error{
		"builds": s.gcBuilds, "inputs": s.gcInputs, "layers": s.gcLayers, "host": s.gcHost, "waiting": s.gcDeferred,
		"jobs": s.adopt,
	} {
		if err := do(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("what builds left could not be removed now", "what", what, "err", err)
		}
	}
}

// gcBuilds removes rows and logs of builds that ended long ago, and templates that only were to be.
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
		all = errors.Join(all, err, s.removeInputs(r.ID), s.templates.Forget(ctx, r.Template))
	}
	return all
}

// gcInputs removes uploads that no build needs for a retry.
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
				continue // its row may come in a moment
			}
			err = s.removeInputs(e.Name())
		case err != nil:
		case row.State == stateDone, row.Ended != 0 && time.Since(store.Time(row.Ended)) > s.cfg.KeepInputs:
			err = s.removeInputs(e.Name())
		}
		all = errors.Join(all, err)
	}
	return errors.Join(all, s.gcFiles())
}

// gcFiles removes the files of E2B's steps, which clients send again when they are asked to.
func (s *Service) gcFiles() error {
	list, err := filepath.Glob(s.dir("files", "*", "*"))
	if err != nil {
		return err
	}
	var all error
	for _, path := range list {
		info, err := os.Stat(path)
		if err == nil && time.Since(info.ModTime()) > s.cfg.KeepLayers {
			err = os.Remove(path)
		}
		if !errors.Is(err, os.ErrNotExist) {
			all = errors.Join(all, err)
		}
	}
	return all
}

// gcLayers removes layers that were not used for long, that are too many for their workspace, and rows of
// those that the host lost. While builds run, those used lately stay.
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
	there, space := map[string]bool{}, map[string]int64{}
	for _, h := range have {
		there[string(h.ID)] = true
	}
	for _, l := range rows {
		space[l.Workspace] += l.Bytes
	}
	var all error
	for _, l := range rows { // the least used lately first
		idle := now.Sub(store.Time(l.Used))
		lost := !there[l.Snapshot] && idle > s.cfg.OrphanGrace
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

// gcHost removes what carries the label of builds and belongs to none: what a process that was killed left.
func (s *Service) gcHost(ctx context.Context) error {
	// The host first: what is listed had its row by then, or gets it within the grace.
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
			s.log.Warn("what a build left is removed", "id", id, "build", labels["build"])
			all = errors.Join(all, remove())
		}
	}
	for _, m := range machines {
		drop(
			m.Labels,
			string(m.ID),
			builds(m.Labels["build"]),
			func() error { return s.host.Destroy(ctx, m.ID, "its build is gone") },
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
	for _, i := range images { // an image is named after its build, which another store may have
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

// graceExpired tells whether an orphan was seen long enough ago to be removed.
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

// pruneOrphans drops orphans that are none any more.
func (s *Service) pruneOrphans(seen map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.orphans {
		if !seen[id] {
			delete(s.orphans, id)
		}
	}
}
