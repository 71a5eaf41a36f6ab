package replica

import (
	"context"
	"time"

	"github.com/pandastack/pandastack/internal/control/store"
)

// Followers connects replicas to their primaries. It belongs to one goroutine.
type Followers struct {
	set     *Set
	running map[string]context.CancelFunc // by the id of the replica
}

// Followers returns a value that connects no replica yet.
func (s *Set) Followers() *Followers {
	return &Followers{set: s, running: map[string]context.CancelFunc{}}
}

// Sync makes every replica of a ready database followed, and no other.
func (f *Followers) Sync(ctx context.Context, rows []store.Database, members map[string][]store.DatabaseMember,
	start func(func())) {
	wanted := map[string]bool{}
	for _, row := range rows {
		for _, m := range members[row.ID] {
			if row.State != store.DatabaseReady || m.Role != store.MemberReplica || m.State != store.MemberReady {
				continue
			}
			wanted[m.ID] = true
			if f.running[m.ID] != nil {
				continue
			}
			following, stop := context.WithCancel(ctx)
			f.running[m.ID] = stop
			start(func() { f.set.follow(following, row, m) })
		}
	}
	for id, stop := range f.running {
		if !wanted[id] {
			stop()
			delete(f.running, id)
		}
	}
}

// follow connects a replica to its primary whenever both run, until ctx ends.
func (s *Set) follow(ctx context.Context, row store.Database, m store.DatabaseMember) {
	tick := time.NewTicker(replicaPoll)
	defer tick.Stop()
	for {
		if s.boxRuns(ctx, &row, &m) && s.owner.Runs(ctx, &row) {
			p, err := s.pair(ctx, &row, &m)
			if err == nil {
				err = s.replication.Carry(ctx, p)
			}
			if err != nil && ctx.Err() == nil {
				s.log.Debug("a read replica is not connected", "database", row.ID, "replica", m.ID, "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
