package store

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/uptrace/bun"
)

// Sandbox is a row of sandboxes. Times and durations are microseconds.
type Sandbox struct {
	bun.BaseModel `bun:"table:sandboxes"`

	ID         string `bun:"id,pk"`
	Workspace  string `bun:"workspace"`
	State      string `bun:"state"`
	Owner      string `bun:"owner"`    // the control plane process that wrote the row last
	Host       string `bun:"host"`     // that has the machine; "": not known
	OwnedBy    string `bun:"owned_by"` // the service's object that it works for, as kind/id; "": a user's own
	Template   string `bun:"template"`
	Snapshot   string `bun:"snapshot"`
	Parent     string `bun:"parent"`
	Tree       string `bun:"tree"`
	VCPUs      int    `bun:"vcpus"`
	MemoryMiB  int    `bun:"memory_mib"`
	DiskMiB    int    `bun:"disk_mib"`
	DataDisks  string `bun:"data_disks"` // JSON: disks beside the root disk; "": none
	DiskBytes  int64  `bun:"disk_bytes"` // that its disks take, as its host measured last
	Volumes    string `bun:"volumes"`    // JSON: those that it has; "": none
	GuestIP    string `bun:"guest_ip"`
	Tap        string `bun:"tap"`
	MAC        string `bun:"mac"`
	Generation int64  `bun:"generation"`
	BootMode   string `bun:"boot_mode"`
	Boot       int64  `bun:"boot"`
	Pause      int64  `bun:"pause"`
	Phases     string `bun:"phases"` // JSON
	User       string `bun:"user_name"`
	Workdir    string `bun:"workdir"`
	Env        Pairs  `bun:"env"`
	// Injected is JSON: variables and small files for programs inside; "": none.
	Injected    string `bun:"surroundings"`
	Metadata    Pairs  `bun:"metadata"` // as put: changing it does not change what List filters by
	Egress      bool   `bun:"egress"`   // whether anything may be reached
	Network     string `bun:"network"`  // JSON: what may be reached; "": all, or nothing without Egress
	Limits      string `bun:"limits"`   // JSON: limits of its traffic; "": the host's
	Persistent  bool   `bun:"persistent"`
	TTLSeconds  int64  `bun:"ttl_seconds"`
	Ends        int64  `bun:"ends"`
	OnEnd       string `bun:"on_end"`
	Created     int64  `bun:"created"`
	Changed     int64  `bun:"changed"`
	Active      int64  `bun:"active"`
	Due         int64  `bun:"due"`
	Reason      string `bun:"reason"`
	PauseReason string `bun:"pause_reason"` // why its host has paused it; "": the host has not
	EndReason   string `bun:"end_reason"`
	EndBy       string `bun:"end_by"`
	Idempotency string `bun:"idempotency"`
}

// label is a pair of metadata, for finding.
type label struct {
	bun.BaseModel `bun:"table:labels"`
	Sandbox       string `bun:"sandbox,pk"`
	Name          string `bun:"name,pk"`
	Value         string `bun:"value"`
}

// InsertSandbox adds a row and its labels; ErrExists if the id is taken.
func (t *Tx) InsertSandbox(ctx context.Context, s *Sandbox) error {
	row, err := sealed(t, s)
	if err != nil {
		return err
	}
	if _, err := t.db.NewInsert().Model(row).Exec(ctx); err != nil {
		return exists(err, "sandbox", s.ID)
	}
	labels := make([]label, 0, len(s.Metadata))
	for _, name := range slices.Sorted(maps.Keys(s.Metadata)) {
		if strings.HasPrefix(name, SecretPrefix) {
			continue
		}
		labels = append(labels, label{Sandbox: s.ID, Name: name, Value: s.Metadata[name]})
	}
	if len(labels) == 0 {
		return nil
	}
	_, err = t.db.NewInsert().Model(&labels).Exec(ctx)
	return err
}

// Sandbox reads one row.
func (t *Tx) Sandbox(ctx context.Context, id string) (Sandbox, error) {
	s := Sandbox{ID: id}
	if err := t.db.NewSelect().Model(&s).WherePK().Scan(ctx); err != nil {
		return s, notFound(err, "sandbox", id)
	}
	return s, opened(t, &s)
}

// UpdateSandbox writes the named columns of a row, or all if none are named.
//
// The row must still be in state was; ErrNotFound if it is not.
func (t *Tx) UpdateSandbox(ctx context.Context, s *Sandbox, was string, columns ...string) error {
	row, err := sealed(t, s)
	if err != nil {
		return err
	}
	q := t.db.NewUpdate().Model(row).WherePK().Where("state = ?", was)
	if len(columns) > 0 {
		q = q.Column(columns...)
	}
	res, err := q.Exec(ctx)
	return changed(res, err, "sandbox", s.ID)
}

// DeleteSandbox removes a row, its labels and its ports. A missing row is no error.
func (t *Tx) DeleteSandbox(ctx context.Context, id string) error {
	if _, err := t.db.NewDelete().Model((*Sandbox)(nil)).Where("id = ?", id).Exec(ctx); err != nil {
		return err
	}
	if _, err := t.db.NewDelete().Model((*label)(nil)).Where("sandbox = ?", id).Exec(ctx); err != nil {
		return err
	}
	_, err := t.db.NewDelete().Model((*Port)(nil)).Where("sandbox = ?", id).Exec(ctx)
	return err
}

// SandboxQuery selects rows, newest first unless Oldest. Zero fields select everything.
type SandboxQuery struct {
	Workspace string
	States    []string
	Template  string
	Tree      string
	Metadata  map[string]string
	DueBy     int64 // due set and not after
	Limit     int
	Since     int64 // created then or later
	Oldest    bool  // oldest first
	// OwnedBy is the service's object that they work for, "" for those of users; nil: any.
	OwnedBy *string
	// BeforeCreated and BeforeID are of the last row of the page before.
	BeforeCreated int64
	BeforeID      string
}

// Sandboxes reads the rows that q selects.
func (t *Tx) Sandboxes(ctx context.Context, q SandboxQuery) ([]Sandbox, error) {
	var rows []Sandbox
	order, behind := bun.OrderDesc, "(created < ? OR (created = ? AND id < ?))"
	if q.Oldest {
		order, behind = bun.OrderAsc, "(created > ? OR (created = ? AND id > ?))"
	}
	s := t.db.NewSelect().Model(&rows).OrderBy("created", order).OrderBy("id", order)
	if q.Workspace != "" {
		s = s.Where("workspace = ?", q.Workspace)
	}
	if q.OwnedBy != nil {
		s = s.Where("owned_by = ?", *q.OwnedBy)
	}
	if len(q.States) > 0 {
		s = s.Where("state IN (?)", bun.List(q.States))
	}
	if q.Template != "" {
		s = s.Where("template = ?", q.Template)
	}
	if q.Tree != "" {
		s = s.Where("tree = ?", q.Tree)
	}
	for _, name := range slices.Sorted(maps.Keys(q.Metadata)) {
		s = s.Where(
			"EXISTS (SELECT 1 FROM labels AS l WHERE l.sandbox = ?TableAlias.id AND l.name = ? AND l.value = ?)",
			name,
			q.Metadata[name],
		)
	}
	if q.DueBy > 0 {
		s = s.Where("due > 0").Where("due <= ?", q.DueBy)
	}
	if q.Since > 0 {
		s = s.Where("created >= ?", q.Since)
	}
	if q.BeforeID != "" {
		s = s.Where(behind, q.BeforeCreated, q.BeforeCreated, q.BeforeID)
	}
	if q.Limit > 0 {
		s = s.Limit(int64(q.Limit))
	}
	return openedList(t, rows, s.Scan(ctx))
}

// CountStates counts the rows by state, of all workspaces.
func (t *Tx) CountStates(ctx context.Context) (map[string]int, error) {
	var rows []struct {
		State string
		N     int
	}
	err := t.db.NewSelect().
		Model((*Sandbox)(nil)).
		Column("state").
		ColumnExpr("count(*) AS n").
		Group("state").
		Scan(ctx, &rows)
	counts := map[string]int{}
	for _, r := range rows {
		counts[r.State] = r.N
	}
	return counts, err
}

// LastUse is the last use of a sandbox and when the reaper checks it, in microseconds.
type LastUse struct {
	ID          string
	Active, Due int64
}

// PutLastUses writes last uses.
//
// Missing sandboxes are skipped, an earlier use does not replace a later one, and a Due of 0 changes nothing.
func (t *Tx) PutLastUses(ctx context.Context, all []LastUse) error {
	for _, u := range all {
		q := t.db.NewUpdate().Model((*Sandbox)(nil)).Set("active = ?", u.Active).
			Where("id = ?", u.ID).Where("active <= ?", u.Active)
		if u.Due > 0 {
			q = q.Set("due = ?", u.Due)
		}
		if _, err := q.Exec(ctx); err != nil {
			return err
		}
	}
	return nil
}
