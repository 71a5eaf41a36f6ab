package cmdutil

import (
	"context"
	"slices"
	"strings"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
)

// minPrefix is the length from which text is taken for the begin of an id: that of "sbx" and one more.
const minPrefix = 4

// SandboxLister lists sandboxes; *client.Sandboxes does.
type SandboxLister interface {
	List(ctx context.Context, f api.SandboxFilter) ([]api.Sandbox, error)
}

var _ SandboxLister = (*client.Sandboxes)(nil)

// FindSandbox returns the id of the sandbox that a user means.
//
// It is given by its id, by the name in its metadata (the value of "name"), or by the begin of its id if no other id
// begins so. A whole id is not looked up.
func FindSandbox(ctx context.Context, s SandboxLister, text string) (api.SandboxID, error) {
	id, invalid := api.ParseSandboxID(text)
	if invalid == nil || text == "" {
		return id, invalid
	}
	all, err := s.List(ctx, api.SandboxFilter{})
	if err != nil {
		return "", err
	}
	return find(text, "sandbox", "the name in its metadata", all, func(s api.Sandbox) (api.SandboxID, string) {
		return s.ID, s.Metadata["name"]
	})
}

// SnapshotLister lists snapshots; *client.Snapshots does.
type SnapshotLister interface {
	List(ctx context.Context, f api.SnapshotFilter) ([]api.Snapshot, error)
}

var _ SnapshotLister = (*client.Snapshots)(nil)

// FindSnapshot returns the id of the snapshot with an id, a name or the begin of an id.
func FindSnapshot(ctx context.Context, s SnapshotLister, text string) (api.SnapshotID, error) {
	id, invalid := api.ParseSnapshotID(text)
	if invalid == nil || text == "" {
		return id, invalid
	}
	all, err := s.List(ctx, api.SnapshotFilter{})
	if err != nil {
		return "", err
	}
	return find(text, "snapshot", "its name", all, func(s api.Snapshot) (api.SnapshotID, string) {
		return s.ID, s.Name
	})
}

// DatabaseLister lists databases; *client.Databases does.
type DatabaseLister interface {
	List(ctx context.Context) ([]api.Database, error)
}

var _ DatabaseLister = (*client.Databases)(nil)

// FindDatabase returns the id of the database with an id, a label or the begin of an id.
func FindDatabase(ctx context.Context, d DatabaseLister, text string) (api.DatabaseID, error) {
	id, invalid := api.ParseDatabaseID(text)
	if invalid == nil || text == "" {
		return id, invalid
	}
	all, err := d.List(ctx)
	if err != nil {
		return "", err
	}
	return find(text, "database", "its label", all, func(d api.Database) (api.DatabaseID, string) {
		return d.ID, d.Label
	})
}

// find returns the id of the one among all that text names, or whose id begins with text.
func find[T any, ID ~string](text, kind, naming string, all []T, names func(T) (ID, string)) (ID, error) {
	var named, begin []string
	for _, one := range all {
		id, name := names(one)
		if name == text {
			named = append(named, string(id))
		}
		if len(text) >= minPrefix && strings.HasPrefix(string(id), text) {
			begin = append(begin, string(id))
		}
	}
	found := named
	if len(found) == 0 {
		found = begin
	}
	switch len(found) {
	case 0:
		return "", api.Errorf(api.NotFound, "%s %.60q not found: give its id, %s, or the begin of its id",
			kind, text, naming)
	case 1:
		return ID(found[0]), nil
	}
	slices.Sort(found)
	return "", api.Errorf(api.Conflict, "%.60q is %d %ss: %s", text, len(found), kind, strings.Join(found, ", "))
}
