package insight

import (
	"context"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Primaries returns a function that returns the primary servers of all databases that are ready. kind is the kind of
// owner that their sandboxes have.
func Primaries(db *store.DB, kind string) func(context.Context) ([]Target, error) {
	return func(ctx context.Context) ([]Target, error) {
		rows, err := db.Read().Databases(ctx, store.DatabaseQuery{State: store.DatabaseReady})
		if err != nil || len(rows) == 0 {
			return nil, err
		}
		members, err := db.Read().DatabaseMembers(ctx, "")
		if err != nil {
			return nil, err
		}
		sandboxes := make(map[string]api.SandboxID, len(members))
		for _, m := range members {
			if m.Role == store.MemberPrimary {
				sandboxes[m.Database] = api.SandboxID(m.Sandbox)
			}
		}
		out := make([]Target, 0, len(rows))
		for _, row := range rows {
			if id := sandboxes[row.ID]; id != "" {
				out = append(out, Target{Database: api.DatabaseID(row.ID), Sandbox: id, Principal: auth.Principal{
					Workspace: api.Workspace(row.Workspace), Owner: hostapi.Owner{Kind: kind, ID: row.ID},
				}})
			}
		}
		return out, nil
	}
}
