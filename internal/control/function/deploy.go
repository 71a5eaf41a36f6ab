package function

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/app/applog"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/function/builder"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/functionstore"
	"github.com/pandastack/pandastack/internal/lib/blob"
)

func codeKey(digest string) string { return "functions/" + digest }

// versionKey names a version among the builds of this process, and the log of its build.
func versionKey(fn string, number int64) string { return fmt.Sprintf("%s/%d", fn, number) }

// spooled is a bundle that was uploaded.
type spooled struct {
	file   *os.File
	size   int64
	digest string
}

func (b *spooled) close() error { return errors.Join(b.file.Close(), os.Remove(b.file.Name())) }

// spool reads a bundle to its end.
func (s *Service) spool(bundle io.Reader) (_ *spooled, err error) {
	f, err := os.CreateTemp(s.cfg.Spool, "bundle-")
	if err != nil {
		return nil, err
	}
	b := &spooled{file: f}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	sum := sha256.New()
	b.size, err = io.Copy(io.MultiWriter(f, sum), io.LimitReader(bundle, api.MaxFunctionCode+1))
	switch {
	case err != nil:
		return nil, err
	case b.size > api.MaxFunctionCode:
		return nil, api.Errorf(api.TooLarge, "code: has more than %d MiB: leave out what is installed from a registry",
			api.MaxFunctionCode>>20).With("field", "code")
	case b.size == 0:
		return nil, api.Errorf(api.Invalid, "code: is empty: send a tar archive or the text of the handler").
			With("field", "code")
	}
	b.digest = hex.EncodeToString(sum.Sum(nil))
	_, err = f.Seek(0, io.SeekStart)
	return b, err
}

// Deploy adds a version with the code of a bundle. With wait, it returns when the version is built, or its error.
func (s *Service) Deploy(
	ctx context.Context,
	p auth.Principal,
	fn string,
	bundle io.Reader,
	entrypoint string,
	wait bool,
) (_ api.Function, err error) {
	if err := api.ValidateEntrypoint(entrypoint); err != nil {
		return api.Function{}, err
	}
	row, err := s.Find(ctx, p, fn)
	if err != nil {
		return api.Function{}, err
	}
	code, err := s.spool(bundle)
	if err != nil {
		return api.Function{}, api.AsError(err)
	}
	defer func() { err = errors.Join(err, code.close()) }()
	v, err := s.addVersion(ctx, row.ID, code, entrypoint)
	if errors.Is(err, store.ErrNotFound) {
		return api.Function{}, notFound(fn)
	}
	if err != nil {
		return api.Function{}, api.AsError(err)
	}
	s.poke()
	if wait {
		if err := s.built(ctx, row.ID, v.Number); err != nil {
			return api.Function{}, api.AsError(err)
		}
	}
	return s.Get(ctx, p, row.ID)
}

// addVersion keeps the code and adds the row of a version.
func (s *Service) addVersion(
	ctx context.Context,
	fn string,
	code *spooled,
	entrypoint string,
) (v functionstore.Version, err error) {
	// Code without a version is removed under this lock.
	ctx, release, err := s.locks.Acquire(ctx, codeKey(code.digest))
	if err != nil {
		return v, err
	}
	defer release()
	err = s.deps.Code.PutIfAbsent(ctx, codeKey(code.digest), code.file, code.size)
	if err != nil && !errors.Is(err, blob.ErrExists) {
		s.stray.Store(true)
		return v, err
	}
	err = s.write(ctx, "function deploy", func(ctx context.Context, tx functionstore.Tx) error {
		row, err := tx.Function(ctx, fn)
		if err != nil {
			return err
		}
		if entrypoint != "" {
			row.Entrypoint = entrypoint
		}
		now := store.Micros(time.Now())
		row.Numbered++
		row.Changed = now
		v = functionstore.Version{Function: fn, Number: row.Numbered, State: functionstore.VersionBuilding,
			Instance: s.instance, Entrypoint: row.Entrypoint, Template: row.Template, Settings: row.Settings,
			Size: code.size, Digest: code.digest, Created: now}
		if err := tx.UpdateFunction(ctx, &row, "entrypoint", "numbered", "changed"); err != nil {
			return err
		}
		return tx.InsertVersion(ctx, &v)
	})
	if err == nil {
		err = s.keepCode(ctx, code)
	}
	if err != nil {
		s.stray.Store(true)
	}
	return v, err
}

// keepCode keeps the code of a version once more if another process has removed it, as no version had it, before there
// was the row.
func (s *Service) keepCode(ctx context.Context, code *spooled) error {
	_, err := s.deps.Code.Stat(ctx, codeKey(code.digest))
	if !errors.Is(err, blob.ErrNotFound) {
		return err
	}
	if _, err := code.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	err = s.deps.Code.PutIfAbsent(ctx, codeKey(code.digest), code.file, code.size)
	if errors.Is(err, blob.ErrExists) {
		return nil
	}
	return err
}

// built waits until a version is built, and returns its error.
func (s *Service) built(ctx context.Context, fn string, number int64) error {
	changed, cancel := s.hub.Subscribe(fn)
	defer cancel()
	tick := time.NewTicker(time.Second) // another process may build it
	defer tick.Stop()
	for {
		v, err := s.read().Version(ctx, fn, number)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return errDeleted
		case err != nil:
			return err
		case v.State == functionstore.VersionFailed:
			return api.Errorf(api.Invalid, "version %d could not be built: %s", number, v.Error).With("version", number)
		case v.State != functionstore.VersionBuilding:
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		case <-tick.C:
		}
	}
}

// startBuilds begins the builds that are due.
func (s *Service) startBuilds(ctx context.Context) error {
	rows, err := s.read().Versions(ctx, "", functionstore.VersionBuilding)
	if err != nil {
		return err
	}
	for i := len(rows) - 1; i >= 0; i-- { // oldest first
		v := rows[i]
		if v.Instance != s.instance && s.db.Shared() && time.Since(store.Time(v.Created)) < s.cfg.ForeignGrace {
			continue
		}
		s.start(ctx, v, s.build)
	}
	return nil
}

// start runs f for a version unless that is under way.
func (s *Service) start(ctx context.Context, v functionstore.Version, f func(context.Context, functionstore.Version)) {
	key := versionKey(v.Function, v.Number)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.building[key] != nil {
		return
	}
	ctx, cancel := context.WithCancelCause(ctx)
	s.building[key] = cancel
	s.builds.Go(func() {
		defer func() {
			cancel(nil)
			s.mu.Lock()
			delete(s.building, key)
			s.mu.Unlock()
			s.hub.Notify(v.Function)
			s.poke()
		}()
		if s.slots.Acquire(ctx, 1) != nil {
			return // the server stops
		}
		defer s.slots.Release(1)
		ctx, leave := s.enter(ctx, api.FunctionID(v.Function))
		defer leave()
		f(ctx, v)
	})
}

// build builds a version that was added.
func (s *Service) build(ctx context.Context, v functionstore.Version) {
	v.Attempts++
	v.Instance = s.instance
	err := s.write(ctx, "function build begin", func(ctx context.Context, tx functionstore.Tx) error {
		return tx.UpdateVersion(ctx, &v, functionstore.VersionBuilding, "attempts", "instance")
	})
	if err != nil { // it is tried again
		s.log.Warn("a build of a function did not begin", "function", v.Function, "version", v.Number, "err", err)
		return
	}
	var built builder.Built
	var row functionstore.Function
	if v.Attempts > int64(s.cfg.MaxAttempts) {
		err = api.Errorf(api.Unavailable, "the server ended %d times while it was built", s.cfg.MaxAttempts)
	} else {
		row, built, err = s.make(ctx, &v)
	}
	if ctx.Err() != nil && api.CodeOf(err) != api.Invalid {
		s.drop(ctx, &row, string(built.Snapshot))
		return // the server stops, or the function is deleted
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	if err == nil {
		err = s.activate(ctx, &v, &row, built) // if it is unknown whether that is written, a sweep finds out
	}
	if err != nil {
		s.fail(ctx, &v, err)
	}
}

// make builds a version with the present variables of its function.
func (s *Service) make(
	ctx context.Context,
	v *functionstore.Version,
) (row functionstore.Function, built builder.Built, err error) {
	if row, err = s.read().Function(ctx, v.Function); err != nil {
		return row, built, err
	}
	set, err := decode[api.FunctionSettings](v.Settings)
	if err != nil {
		return row, built, err
	}
	env, err := decode[map[string]string](row.Env)
	if err != nil {
		return row, built, err
	}
	var masked []string
	for _, value := range env {
		masked = append(masked, value)
	}
	log, err := s.logs.Open(ctx, versionKey(v.Function, v.Number), applog.Options{Masked: masked})
	if err != nil {
		return row, built, err
	}
	defer func() {
		if err != nil && ctx.Err() == nil {
			log.Append(applog.Error, "build", api.AsError(err).Message)
		}
		end, cancel := detached(ctx)
		defer cancel()
		err = errors.Join(err, log.Close(end))
	}()
	built, err = s.deps.Builder.Build(ctx, builder.Build{
		Principal: as(&row), Name: row.Name, Version: v.Number, Runtime: api.FunctionRuntime(row.Runtime),
		Entrypoint: v.Entrypoint, Template: v.Template, MemoryMB: set.MemoryMB, Network: set.Network,
		WarmUp: set.WarmUp, Timeout: (&settings{set}).timeout(), Env: env, Instance: s.instance, Log: log,
		Open: func(ctx context.Context) (io.ReadCloser, error) {
			return s.deps.Code.Get(ctx, codeKey(v.Digest), 0, -1)
		},
	})
	return row, built, err
}

// activate makes a version ready, and the one that is served unless that is a newer one.
func (s *Service) activate(
	ctx context.Context,
	v *functionstore.Version,
	row *functionstore.Function,
	built builder.Built,
) error {
	v.State, v.Layer, v.Snapshot, v.Style = functionstore.VersionReady, string(built.Layer), string(built.Snapshot),
		built.Style
	v.Captured, v.Ready, v.Error = row.Revision, store.Micros(time.Now()), ""
	return s.write(ctx, "function build end", func(ctx context.Context, tx functionstore.Tx) error {
		now, err := tx.Function(ctx, v.Function)
		if err != nil {
			return err
		}
		if now.Version < v.Number {
			now.Version, now.Changed = v.Number, store.Micros(time.Now())
			now.Generation++
			if err := tx.UpdateFunction(ctx, &now, "version", "generation", "changed"); err != nil {
				return err
			}
		}
		return tx.UpdateVersion(ctx, v, functionstore.VersionBuilding, "state", "layer", "snapshot", "style",
			"captured", "ready", "error")
	})
}

// fail writes that a version could not be built.
func (s *Service) fail(ctx context.Context, v *functionstore.Version, because error) {
	problem := api.AsError(because)
	if problem.Code == api.Internal {
		s.log.Error("a build of a function failed", "function", v.Function, "version", v.Number, "err", because)
	}
	v.State, v.Error = functionstore.VersionFailed, problem.Message
	err := s.write(ctx, "function build failed", func(ctx context.Context, tx functionstore.Tx) error {
		return tx.UpdateVersion(ctx, v, functionstore.VersionBuilding, "state", "error")
	})
	if err != nil && !errors.Is(err, store.ErrNotFound) { // it is built again
		s.log.Warn("the end of a build of a function is not written", "function", v.Function, "err", err)
	}
}

// drop removes a snapshot that no row names. What cannot be removed, a sweep removes.
func (s *Service) drop(ctx context.Context, row *functionstore.Function, id string) {
	if id == "" {
		return
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	if err := s.deleteSnapshot(ctx, row, id); err != nil {
		s.log.Warn("a snapshot of a function is not removed yet", "function", row.ID, "snapshot", id, "err", err)
	}
}

// deleteSnapshot removes a snapshot. One that is gone is no error.
func (s *Service) deleteSnapshot(ctx context.Context, row *functionstore.Function, id string) error {
	err := s.boxes.DeleteSnapshot(ctx, as(row), api.SnapshotID(id))
	if code := api.CodeOf(err); err != nil && (code == api.NotFound || code == api.Gone) {
		return nil
	}
	return err
}

// capture loads a ready version again with the present variables.
func (s *Service) capture(ctx context.Context, v functionstore.Version) {
	row, built, err := s.make(ctx, &v)
	if err != nil {
		if ctx.Err() == nil { // the variables reach the machines of the old capture, too
			s.log.Warn("a version of a function could not be loaded with its new variables",
				"function", v.Function, "version", v.Number, "err", err)
			noted := s.write(ctx, "function capture", func(ctx context.Context, tx functionstore.Tx) error {
				v.Captured = row.Revision
				return tx.UpdateVersion(ctx, &v, functionstore.VersionReady, "captured")
			})
			if noted != nil {
				s.log.Warn("that failure could not be written down; the version is loaded again later",
					"function", v.Function, "version", v.Number, "err", noted)
			}
		}
		s.drop(ctx, &row, string(built.Snapshot))
		return
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	old := v.Snapshot
	v.Snapshot, v.Layer, v.Captured = string(built.Snapshot), string(built.Layer), row.Revision
	err = s.write(ctx, "function capture", func(ctx context.Context, tx functionstore.Tx) error {
		return tx.UpdateVersion(ctx, &v, functionstore.VersionReady, "snapshot", "layer", "captured")
	})
	if err != nil { // which of the snapshots the row names is unknown: a sweep removes the other one
		s.log.Warn("a capture of a function may not be kept", "function", v.Function, "version", v.Number, "err", err)
		return
	}
	s.drop(ctx, &row, old)
}
