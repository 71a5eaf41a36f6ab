package quota

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/lib/config"
)

// Config configures Quotas.
type Config struct {
	// Defaults are the quotas of workspaces without their own, in units of the kinds; 0 is unlimited. nil: those of a
	// node without settings.
	Defaults map[Kind]int64
	// Refused, if not nil, is called with the kind of every quota that refuses a request. It must not block.
	Refused func(Kind)
}

// Quotas admits what workspaces are about to use.
type Quotas struct {
	cfg Config
	db  *store.DB

	mu        sync.Mutex
	suspended map[api.Workspace]bool // guarded by mu; nil: not read yet
	readAt    time.Time              // when suspended was read; guarded by mu
}

// New returns Quotas over a store, which it does not touch.
func New(cfg Config, db *store.DB) *Quotas {
	if cfg.Defaults == nil {
		cfg.Defaults = Defaults(config.Default().Quota)
	}
	if cfg.Refused == nil {
		cfg.Refused = func(Kind) {}
	}
	return &Quotas{cfg: cfg, db: db}
}

// Amount is how much of a kind is asked for: a number of things, or bytes for kinds with the unit MiB.
type Amount struct {
	Kind Kind
	N    int64
}

// Times returns what n requests for the same amounts ask for together.
func Times(n int, amounts []Amount) []Amount {
	out := make([]Amount, 0, len(amounts))
	for _, a := range amounts {
		out = append(out, Amount{a.Kind, a.N * int64(n)})
	}
	return out
}

// Admit refuses what would exceed a quota of a workspace, and everything of a suspended workspace.
//
// It is called in the transaction that writes what is asked for, before the first write, and locks the workspace
// until that transaction ends. The error is an *api.Error with the code quota_exceeded and the details kind, used,
// allowed and requested, or workspace_suspended.
func (q *Quotas) Admit(ctx context.Context, tx *store.Tx, workspace api.Workspace, asked ...Amount) error {
	row := store.Workspace{ID: string(workspace), Name: string(workspace), Created: store.Micros(time.Now())}
	if err := tx.LockWorkspace(ctx, &row); err != nil {
		return err
	}
	if row.Suspended > 0 {
		return errSuspended(workspace)
	}
	own, err := tx.Quotas(ctx, string(workspace))
	if err != nil {
		return err
	}
	for _, a := range asked {
		if err := q.admitOne(ctx, tx, workspace, own, a); err != nil {
			return err
		}
	}
	return nil
}

func (q *Quotas) admitOne(
	ctx context.Context,
	tx *store.Tx,
	workspace api.Workspace,
	own map[string]int64,
	a Amount,
) error {
	info, known := infoOf(a.Kind)
	if !known || info.count == nil {
		return fmt.Errorf("quota: %q is not a kind that is used up", a.Kind)
	}
	allowed := q.allowed(own, a.Kind)
	if allowed == 0 || a.N <= 0 {
		return nil
	}
	used, err := info.count(ctx, tx, string(workspace))
	if err != nil {
		return err
	}
	if used+a.N <= allowed*info.scale {
		return nil
	}
	q.cfg.Refused(a.Kind)
	return exceeded(info, used, allowed, a.N)
}

// allowed returns what a workspace with quotas of its own may have of a kind; 0 is unlimited.
func (q *Quotas) allowed(own map[string]int64, kind Kind) int64 {
	if n, ok := own[string(kind)]; ok {
		return n
	}
	return q.cfg.Defaults[kind]
}

// units returns n in units of a kind, rounded up.
func (k kindInfo) units(n int64) int64 { return (n + k.scale - 1) / k.scale }

// exceeded returns the error for a request beyond a quota. The detail limit is allowed under its older name.
func exceeded(info kindInfo, used, allowed, more int64) error {
	what := strings.ReplaceAll(string(info.kind), "_", " ")
	if info.unit != "" {
		what = info.unit + " of " + strings.TrimSuffix(string(info.kind), "_mib")
	}
	return api.Errorf(api.QuotaExceeded, "the workspace uses %d of %d %s, and this takes %d more: %s",
		info.units(used), allowed, what, info.units(more), info.remedy).
		With("kind", info.kind).With("unit", info.unit).
		With("used", info.units(used)).With("allowed", allowed).With("requested", info.units(more)).
		With("limit", allowed)
}

// errSuspended is the error for every request of a suspended workspace.
func errSuspended(workspace api.Workspace) error {
	return api.Errorf(api.WorkspaceSuspended, "workspace %s is suspended: ask the operator of this server", workspace)
}

// Usage returns what a workspace uses and may have of every kind.
func (q *Quotas) Usage(ctx context.Context, workspace api.Workspace) ([]api.Quota, error) {
	tx := q.db.Read()
	own, err := tx.Quotas(ctx, string(workspace))
	if err != nil {
		return nil, err
	}
	all := make([]api.Quota, 0, len(kinds))
	for _, info := range kinds {
		_, set := own[string(info.kind)]
		line := api.Quota{Kind: string(info.kind), Unit: info.unit, Summary: info.summary,
			Allowed: q.allowed(own, info.kind), IsDefault: !set}
		if info.count != nil {
			used, err := info.count(ctx, tx, string(workspace))
			if err != nil {
				return nil, err
			}
			used = info.units(used)
			line.Used = &used
		}
		all = append(all, line)
	}
	return all, nil
}

// maxAllowed bounds quotas so that their product with a unit does not overflow.
const maxAllowed = 1 << 40

// Change is a change of a workspace's own quotas, by kind. nil is the default.
type Change map[Kind]*int64

// Parse returns the change that a request asks for: a number is a quota, 0 is unlimited, null is the default.
func Parse(asked map[string]*int64) (Change, error) {
	change := Change{}
	for name, n := range asked {
		if _, known := infoOf(Kind(name)); !known {
			return nil, api.Errorf(api.Invalid, "quotas: %.60q is not a kind: known are %s", name, kindList()).
				With("field", "quotas")
		}
		if n != nil && (*n < 0 || *n > maxAllowed) {
			return nil, api.Errorf(api.Invalid,
				"quotas.%s: %d is not from 0 to %d: 0 is unlimited, null is the default", name, *n, int64(maxAllowed)).
				With("field", "quotas."+name)
		}
		change[Kind(name)] = n
	}
	return change, nil
}

// Apply writes the change.
func (c Change) Apply(ctx context.Context, tx *store.Tx, workspace api.Workspace) error {
	for _, kind := range Kinds() {
		n, named := c[kind]
		var err error
		switch {
		case named && n == nil:
			err = tx.DeleteQuota(ctx, string(workspace), string(kind))
		case named:
			err = tx.PutQuota(ctx, &store.Quota{Workspace: string(workspace), Kind: string(kind), Allowed: *n})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func kindList() string {
	names := make([]string, 0, len(kinds))
	for _, kind := range Kinds() {
		names = append(names, string(kind))
	}
	return strings.Join(names, ", ")
}

// Rates are the limits of each sandbox of a workspace; 0 is none.
type Rates struct {
	EgressMbit     int
	Connections    int // at once
	NewConnections int // per second
}

// Rates returns the limits of each sandbox of a workspace. They hold for sandboxes that are created from then on.
func (q *Quotas) Rates(ctx context.Context, workspace api.Workspace) (Rates, error) {
	own, err := q.db.Read().Quotas(ctx, string(workspace))
	if err != nil {
		return Rates{}, err
	}
	return Rates{
		EgressMbit:     int(q.allowed(own, EgressRate)),
		Connections:    int(q.allowed(own, Connections)),
		NewConnections: int(q.allowed(own, ConnectRate)),
	}, nil
}

// DiskBounds returns what hosts enforce of the quota DiskUsed while machines run: bounds of groups that are workspaces.
func (q *Quotas) DiskBounds(ctx context.Context) (hostapi.GroupBounds, error) {
	own, err := q.db.Read().QuotasOf(ctx, string(DiskUsed))
	if err != nil {
		return hostapi.GroupBounds{}, err
	}
	return hostapi.GroupBounds{DefaultMiB: q.cfg.Defaults[DiskUsed], MiB: own}, nil
}

// sharedFresh is how long the list of suspended workspaces is used on a store that other processes change, too.
const sharedFresh = 2 * time.Second

// CheckActive returns the error workspace_suspended for a suspended workspace.
//
// It reads the store only now and then: a suspension by this process takes effect at once, one by another process on a
// shared store within two seconds.
func (q *Quotas) CheckActive(ctx context.Context, workspace api.Workspace) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.readSuspended(ctx); err != nil {
		return err
	}
	if q.suspended[workspace] {
		return errSuspended(workspace)
	}
	return nil
}

// Suspended returns the suspended workspaces.
func (q *Quotas) Suspended(ctx context.Context) ([]api.Workspace, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.readSuspended(ctx); err != nil {
		return nil, err
	}
	all := make([]api.Workspace, 0, len(q.suspended))
	for w := range q.suspended {
		all = append(all, w)
	}
	return all, nil
}

// readSuspended reads the suspended workspaces if they are not known. q.mu is held.
func (q *Quotas) readSuspended(ctx context.Context) error {
	if q.suspended != nil && (!q.db.Shared() || time.Since(q.readAt) < sharedFresh) {
		return nil
	}
	at := time.Now()
	rows, err := q.db.Read().Workspaces(ctx, store.WorkspaceQuery{Suspended: true})
	if err != nil {
		return err
	}
	q.suspended, q.readAt = make(map[api.Workspace]bool, len(rows)), at
	for _, r := range rows {
		q.suspended[api.Workspace(r.ID)] = true
	}
	return nil
}

// SetSuspended suspends a workspace, or makes it active again. It reports whether that changed anything; the error is
// store.ErrNotFound for a workspace that does not exist.
func (q *Quotas) SetSuspended(ctx context.Context, workspace api.Workspace, suspend bool) (changed bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	err = q.db.Write(ctx, "workspace suspend", func(ctx context.Context, tx *store.Tx) error {
		row, err := tx.Workspace(ctx, string(workspace))
		if err != nil {
			return err
		}
		// The lock orders this change with the transactions that admit something: what they write comes before it.
		if err := tx.LockWorkspace(ctx, &row); err != nil {
			return err
		}
		if changed = suspend != (row.Suspended > 0); !changed {
			return nil
		}
		var since int64
		if suspend {
			since = store.Micros(time.Now())
		}
		return tx.SetSuspended(ctx, string(workspace), since)
	})
	q.suspended = nil // read again, also if it is not known whether the transaction was committed
	if errors.Is(err, store.ErrNotFound) {
		return false, err
	}
	return changed && err == nil, err
}
