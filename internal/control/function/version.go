package function

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/functionstore"
)

func noVersion(number int64) error {
	return api.Errorf(api.NotFound, "version %d not found: list them at /v1/functions/{id}/versions", number)
}

func viewVersion(v *functionstore.Version) api.FunctionVersion {
	out := api.FunctionVersion{Number: v.Number, Status: api.FunctionStatus(v.State), Error: v.Error, Style: v.Style,
		Entrypoint: v.Entrypoint, CodeSize: v.Size, CodeSHA256: v.Digest, CreatedAt: store.Time(v.Created)}
	if v.Ready > 0 {
		at := store.Time(v.Ready)
		out.ReadyAt = &at
	}
	return out
}

// Versions returns the versions of a function, newest first.
func (s *Service) Versions(ctx context.Context, p auth.Principal, fn string) ([]api.FunctionVersion, error) {
	row, err := s.Find(ctx, p, fn)
	if err != nil {
		return nil, err
	}
	rows, err := s.read().Versions(ctx, row.ID, "")
	if err != nil {
		return nil, api.AsError(err)
	}
	out := make([]api.FunctionVersion, 0, len(rows))
	for i := range rows {
		if rows[i].State != functionstore.VersionDeleting {
			out = append(out, viewVersion(&rows[i]))
		}
	}
	return out, nil
}

// version reads a version of a function; number 0 is the newest.
func (s *Service) version(
	ctx context.Context,
	p auth.Principal,
	fn string,
	number int64,
) (row functionstore.Function, v functionstore.Version, err error) {
	if row, err = s.Find(ctx, p, fn); err != nil {
		return row, v, err
	}
	if number == 0 {
		number = row.Numbered
	}
	if number == 0 {
		return row, v, empty(&row)
	}
	v, err = s.read().Version(ctx, row.ID, number)
	if errors.Is(err, store.ErrNotFound) || err == nil && v.State == functionstore.VersionDeleting {
		return row, v, noVersion(number)
	}
	return row, v, asError(err)
}

func empty(row *functionstore.Function) error {
	return api.Errorf(api.PreconditionFailed, "function %s has no code: deploy it at /v1/functions/%s/deploy", row.Name,
		row.ID)
}

// Code returns the bundle of a version as it was uploaded, and its size. Number 0 is the newest version.
func (s *Service) Code(ctx context.Context, p auth.Principal, fn string, number int64) (io.ReadCloser, int64, error) {
	_, v, err := s.version(ctx, p, fn, number)
	if err != nil {
		return nil, 0, err
	}
	r, err := s.deps.Code.Get(ctx, codeKey(v.Digest), 0, -1)
	return r, v.Size, asError(err)
}

// BuildLog returns the lines of the log of the build of a version.
func (s *Service) BuildLog(ctx context.Context, p auth.Principal, fn string, number int64) ([]string, error) {
	row, v, err := s.version(ctx, p, fn, number)
	if err != nil {
		return nil, err
	}
	rows, err := s.logs.Tail(ctx, versionKey(row.ID, v.Number), maxLogLines)
	lines := make([]string, 0, len(rows))
	for _, r := range rows {
		lines = append(lines, r.Line)
	}
	return lines, asError(err)
}

const maxLogLines = 10_000 // of a build that are shown

// DeleteVersion removes a version that is not served.
func (s *Service) DeleteVersion(ctx context.Context, p auth.Principal, fn string, number int64) error {
	row, v, err := s.version(ctx, p, fn, number)
	if err != nil {
		return err
	}
	err = s.write(ctx, "function version delete", func(ctx context.Context, tx functionstore.Tx) error {
		now, err := tx.Function(ctx, row.ID)
		if err != nil {
			return err
		}
		served, err := served(ctx, tx, &now)
		if err != nil {
			return err
		}
		if slices.Contains(served, number) {
			return api.Errorf(api.Conflict, "version %d takes invocations: go to another one, or change the aliases",
				number)
		}
		if v, err = tx.Version(ctx, row.ID, number); err != nil {
			return err
		}
		was := v.State
		v.State = functionstore.VersionDeleting
		return tx.UpdateVersion(ctx, &v, was, "state")
	})
	if errors.Is(err, store.ErrNotFound) {
		return noVersion(number)
	}
	if err != nil {
		return api.AsError(err)
	}
	s.mu.Lock()
	if cancel := s.building[versionKey(row.ID, number)]; cancel != nil {
		cancel(errDeleted)
	}
	s.mu.Unlock()
	s.poke()
	return nil
}

// served returns the versions of a function that take invocations.
func served(ctx context.Context, tx functionstore.Tx, row *functionstore.Function) ([]int64, error) {
	aliases, err := tx.Aliases(ctx, row.ID)
	if err != nil {
		return nil, err
	}
	out := []int64{row.Version}
	for i := range aliases {
		a, err := viewAlias(&aliases[i])
		if err != nil {
			return nil, err
		}
		for _, w := range a.Versions {
			out = append(out, w.Version)
		}
	}
	return out, nil
}

func viewAlias(a *functionstore.Alias) (api.FunctionAlias, error) {
	weights, err := decode[[]api.FunctionWeight](a.Versions)
	if err != nil {
		return api.FunctionAlias{}, fmt.Errorf("alias %s of function %s: %w", a.Name, a.Function, err)
	}
	return api.FunctionAlias{Name: a.Name, Versions: weights, UpdatedAt: store.Time(a.Changed)}, nil
}

// Aliases returns the aliases of a function by name.
func (s *Service) Aliases(ctx context.Context, p auth.Principal, fn string) ([]api.FunctionAlias, error) {
	row, err := s.Find(ctx, p, fn)
	if err != nil {
		return nil, err
	}
	rows, err := s.read().Aliases(ctx, row.ID)
	out := make([]api.FunctionAlias, 0, len(rows))
	for i := range rows {
		a, err := viewAlias(&rows[i])
		if err != nil {
			return nil, api.AsError(err)
		}
		out = append(out, a)
	}
	return out, asError(err)
}

// SetAlias sets an alias to ready versions.
func (s *Service) SetAlias(
	ctx context.Context,
	p auth.Principal,
	fn, name string,
	req api.SetAliasRequest,
) (api.FunctionAlias, error) {
	if !api.ValidFunctionName(name) {
		return api.FunctionAlias{}, api.Errorf(api.Invalid,
			"name: %.80q is not a name of an alias: use letters, digits, dots, dashes and _", name).
			With("field", "name")
	}
	if err := req.Validate(); err != nil {
		return api.FunctionAlias{}, err
	}
	row, err := s.Find(ctx, p, fn)
	if err != nil {
		return api.FunctionAlias{}, err
	}
	a := functionstore.Alias{Function: row.ID, Name: name, Changed: store.Micros(time.Now())}
	if a.Versions, err = encode(req.Versions); err != nil {
		return api.FunctionAlias{}, api.AsError(err)
	}
	err = s.write(ctx, "function alias", func(ctx context.Context, tx functionstore.Tx) error {
		if row, err = tx.Function(ctx, row.ID); err != nil {
			return err
		}
		for _, w := range req.Versions {
			if err := isReady(ctx, tx, row.ID, w.Version); err != nil {
				return err
			}
		}
		all, err := tx.Aliases(ctx, row.ID)
		if err != nil {
			return err
		}
		known := slices.ContainsFunc(all, func(o functionstore.Alias) bool { return o.Name == name })
		if !known && len(all) >= api.MaxFunctionAliases {
			return api.Errorf(api.QuotaExceeded, "the function has %d aliases: delete one", len(all))
		}
		if err := tx.PutAlias(ctx, &a); err != nil {
			return err
		}
		return s.advance(ctx, tx, &row)
	})
	if errors.Is(err, store.ErrNotFound) {
		return api.FunctionAlias{}, notFound(fn)
	}
	if err != nil {
		return api.FunctionAlias{}, api.AsError(err)
	}
	s.poke()
	out, err := viewAlias(&a)
	return out, asError(err)
}

// isReady returns nil if a version takes invocations.
func isReady(ctx context.Context, tx functionstore.Tx, fn string, number int64) error {
	v, err := tx.Version(ctx, fn, number)
	if errors.Is(err, store.ErrNotFound) {
		return noVersion(number)
	}
	if err == nil && v.State != functionstore.VersionReady {
		return api.Errorf(api.Conflict, "version %d is %s: use one that is ready", number, v.State)
	}
	return err
}

// advance writes that what a function serves has changed.
func (s *Service) advance(ctx context.Context, tx functionstore.Tx, row *functionstore.Function) error {
	row.Generation++
	row.Changed = store.Micros(time.Now())
	return tx.UpdateFunction(ctx, row, "version", "generation", "changed")
}

// DeleteAlias removes an alias.
func (s *Service) DeleteAlias(ctx context.Context, p auth.Principal, fn, name string) error {
	row, err := s.Find(ctx, p, fn)
	if err != nil {
		return err
	}
	err = s.write(ctx, "function alias delete", func(ctx context.Context, tx functionstore.Tx) error {
		if err := tx.DeleteAlias(ctx, row.ID, name); err != nil {
			return err
		}
		if row, err = tx.Function(ctx, row.ID); err != nil {
			return err
		}
		return s.advance(ctx, tx, &row)
	})
	if errors.Is(err, store.ErrNotFound) {
		return api.Errorf(api.NotFound, "alias %.80q not found: list them at /v1/functions/{id}/aliases", name)
	}
	s.poke()
	return asError(err)
}

// Rollback makes an earlier ready version the one that is served.
//
// Number 0 is the newest one before the present one.
func (s *Service) Rollback(ctx context.Context, p auth.Principal, fn string, number int64) (api.Function, error) {
	row, err := s.Find(ctx, p, fn)
	if err != nil {
		return api.Function{}, err
	}
	err = s.write(ctx, "function rollback", func(ctx context.Context, tx functionstore.Tx) error {
		if row, err = tx.Function(ctx, row.ID); err != nil {
			return err
		}
		if number == 0 {
			rows, err := tx.Versions(ctx, row.ID, functionstore.VersionReady)
			if err != nil {
				return err
			}
			i := slices.IndexFunc(rows, func(v functionstore.Version) bool { return v.Number < row.Version })
			if i < 0 {
				return api.Errorf(api.Conflict, "there is no ready version before version %d", row.Version)
			}
			number = rows[i].Number
		} else if err := isReady(ctx, tx, row.ID, number); err != nil {
			return err
		}
		row.Version = number
		return s.advance(ctx, tx, &row)
	})
	if errors.Is(err, store.ErrNotFound) {
		return api.Function{}, notFound(fn)
	}
	if err != nil {
		return api.Function{}, api.AsError(err)
	}
	s.poke()
	return s.show(ctx, &row)
}

// Pick implements Invoker.
func (s *Service) Pick(
	ctx context.Context,
	fn *functionstore.Function,
	alias string,
	version int64,
) (int64, error) {
	if version != 0 {
		err := isReady(ctx, s.read(), fn.ID, version)
		return version, asError(err)
	}
	aliases, err := s.read().Aliases(ctx, fn.ID)
	if err != nil {
		return 0, api.AsError(err)
	}
	for i := range aliases {
		if name := aliases[i].Name; name != alias && (alias != "" || name != LiveAlias) {
			continue
		}
		a, err := viewAlias(&aliases[i])
		if err != nil {
			return 0, api.AsError(err)
		}
		return weighted(a.Versions), nil
	}
	if alias != "" && alias != LiveAlias {
		return 0, api.Errorf(api.NotFound, "alias %.80q not found: list them at /v1/functions/{id}/aliases", alias)
	}
	if fn.Version > 0 {
		return fn.Version, nil
	}
	if fn.Numbered == 0 {
		return 0, empty(fn)
	}
	// The first version is being built, or none could be.
	if err := s.built(ctx, fn.ID, fn.Numbered); err != nil {
		return 0, api.AsError(err)
	}
	now, err := s.read().Function(ctx, fn.ID)
	if err == nil && now.Version == 0 {
		return 0, empty(fn)
	}
	return now.Version, asError(err)
}

// weighted chooses a version.
func weighted(all []api.FunctionWeight) int64 {
	n := rand.IntN(100)
	for _, w := range all {
		if n -= w.Weight; n < 0 {
			return w.Version
		}
	}
	return all[len(all)-1].Version
}
