package twonode

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/bench"
	"github.com/pandastack/pandastack/internal/lib/blob/blobtest"
)

// fill writes 36 MiB to a guest's memory that touch reads after a restore, and five times as much that is not read.
// The content is that of program files. Together with what the guest itself uses, a restore reads 40 MiB.
const fill = `mkdir -p /mem && mount -t tmpfs -o size=400m tmpfs /mem && cd /mem && ` +
	`find /usr/bin /usr/lib -xdev -type f | xargs cat 2>/dev/null | head -c 37748736 > hot && ` +
	`for i in 1 2 3 4 5; do tr "\000-\377" "\00$i-\377\000" < hot > cold$i; done; sync`

// touch reads every page of the 36 MiB.
const touch = "cat /mem/hot > /dev/null"

// recorded is how long a node records which pages a machine uses.
const recorded = 12 * time.Second

// stream measures how soon a snapshot runs on a node that has none of its content.
func (p *Pair) stream(ctx context.Context, s *bench.Sheet) (err error) {
	store := newStore()
	a, err := p.start(ctx, "a", store, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.stop()) }()
	sb, err := a.Sandboxes.Create(ctx, api.CreateRequest{Template: p.Template})
	if err != nil {
		return err
	}
	if err := a.sh(ctx, sb.ID, fill); err != nil {
		return err
	}
	snap, err := a.snapshotAndPush(ctx, sb.ID)
	if err != nil {
		return err
	}
	traced := s.Series(
		"stream_first_exec",
		"remote-backed restore with a trace, on a node without its content: pull to the end of a command that "+
			"reads 40 MiB",
		"ms",
		&bench.Target{P50: 300},
	)
	whole := s.Series("stream_whole", "the same with a complete download first", "ms", nil)
	unknown := s.Series("stream_first_ever", "the same, remote-backed without a trace", "ms", nil)
	share := s.Series(
		"stream_share",
		"stream_first_exec as a share of stream_whole",
		"%",
		&bench.Target{P50: 25},
	)
	second := s.Series("stream_second", "a second restore on that node", "ms", nil)
	reads := s.Series(
		"stream_second_reads",
		"reads from the store by the second restore",
		"reads",
		&bench.Target{Max: 0.5},
	)
	fetched := s.Series("stream_fetched", "data read from the store by stream_first_exec", "MiB", nil)

	visit := func(to *bench.Series, stream bool, after func(*runningNode) error) error {
		return p.restore(ctx, store, snap, func(b *runningNode, id api.SnapshotID) error {
			took, err := b.first(ctx, id, stream, touch)
			if err == nil {
				s.Add(to, took)
			}
			if err == nil && after != nil {
				err = after(b)
			}
			return err
		})
	}
	if err := visit(unknown, true, func(*runningNode) error { return wait(ctx, recorded) }); err != nil {
		return err
	}
	for range s.Times(3) {
		if err := visit(whole, false, nil); err != nil {
			return err
		}
		read := store.Read.Load()
		err := visit(traced, true, func(b *runningNode) error {
			s.Add(fetched, float64(store.Read.Load()-read)/(1<<20))
			return p.again(ctx, s, b, snap, store, second, reads)
		})
		if err != nil {
			return err
		}
		s.Add(share, 100*last(traced)/last(whole))
	}
	return nil
}

// again restores a snapshot a second time on a node, and counts the reads from the store.
func (p *Pair) again(
	ctx context.Context,
	s *bench.Sheet,
	b *runningNode,
	snap api.SnapshotID,
	store *blobtest.Shaped,
	took, reads *bench.Series,
) error {
	// Wait until the snapshot is downloaded and the first machine's trace is stored, which also reads from the store.
	if err := errors.Join(wait(ctx, recorded), idle(ctx, store)); err != nil {
		return err
	}
	before := store.Gets.Load()
	ms, err := b.first(ctx, snap, true, touch)
	if err != nil {
		return err
	}
	s.Add(took, ms)
	s.Add(reads, float64(store.Gets.Load()-before))
	return nil
}

// idle waits until no reads have occurred for three seconds.
func idle(ctx context.Context, store *blobtest.Shaped) error {
	for {
		before := store.Gets.Load()
		if err := wait(ctx, 3*time.Second); err != nil {
			return err
		}
		if store.Gets.Load() == before {
			return nil
		}
	}
}

// last returns the last value of a series.
func last(s *bench.Series) float64 { return s.Values[len(s.Values)-1] }

// wait sleeps for d, or until ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// restore calls do with a node that has none of the snapshot's content. The node has created a sandbox of the template
// before, like a host in use: the template's files are new copies, of which nothing is in the page cache when the node
// starts.
func (p *Pair) restore(
	ctx context.Context,
	store *blobtest.Shaped,
	snap api.SnapshotID,
	do func(*runningNode, api.SnapshotID) error,
) error {
	b, err := p.start(ctx, "b", store, nil)
	if err != nil {
		return err
	}
	err = p.use(ctx, b)
	if err == nil {
		err = idle(ctx, store) // the node also reads when it starts
	}
	if err == nil {
		err = do(b, snap)
	}
	return errors.Join(err, b.stop())
}

// use creates a sandbox of the template and deletes it.
func (p *Pair) use(ctx context.Context, n *runningNode) error {
	sb, err := n.Sandboxes.Create(ctx, api.CreateRequest{Template: p.Template})
	if err != nil {
		return err
	}
	return errors.Join(n.sh(ctx, sb.ID, "true"), n.Sandboxes.Delete(ctx, sb.ID))
}

// first pulls a snapshot, creates a sandbox of it and runs a shell command in it. It returns how many milliseconds all
// of that took.
func (n *runningNode) first(ctx context.Context, snap api.SnapshotID, stream bool, shell string) (float64, error) {
	unix.Sync() // so that writes of earlier measurements do not slow this one down
	began := time.Now()
	if _, err := n.Snapshots.Pull(ctx, snap, api.PullRequest{Stream: stream}); err != nil {
		return 0, err
	}
	sb, err := n.Sandboxes.Create(ctx, api.CreateRequest{FromSnapshot: snap})
	if err != nil {
		return 0, err
	}
	if err := n.sh(ctx, sb.ID, shell); err != nil {
		return 0, err
	}
	return ms(began), nil
}

// snapshotAndPush takes a snapshot of a running sandbox and pushes it to the object store.
func (n *runningNode) snapshotAndPush(ctx context.Context, id api.SandboxID) (api.SnapshotID, error) {
	snap, err := n.Sandboxes.Snapshot(ctx, id, api.SnapshotRequest{})
	if err != nil {
		return "", err
	}
	_, err = n.Snapshots.Push(ctx, snap.ID)
	return snap.ID, err
}

// change writes 16 MiB of random bytes, half to the guest's memory and half to its disk.
const change = "head -c 8388608 /dev/urandom > /dev/shm/new && head -c 8388608 /dev/urandom > /root/new && sync"

// push measures the upload of a fork that differs from its template.
func (p *Pair) push(ctx context.Context, s *bench.Sheet) (err error) {
	a, err := p.start(ctx, "a", newStore(), nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.stop()) }()
	share := s.Series(
		"push_share",
		"bytes that the push of a fork uploads, as a share of the bytes that changed",
		"%",
		&bench.Target{Max: 120},
	)
	took := s.Series("push_took", "the same push, request to response", "ms", nil)
	parent, err := a.Sandboxes.Create(ctx, api.CreateRequest{Template: p.Template})
	if err != nil {
		return err
	}
	if _, err := a.snapshotAndPush(ctx, parent.ID); err != nil { // uploads the template, too
		return err
	}
	for range s.Times(5) {
		forked, err := a.Sandboxes.Fork(ctx, parent.ID, api.ForkRequest{Count: 1})
		if err != nil || len(forked.Children) != 1 {
			return errors.Join(err, fmt.Errorf("fork: %+v", forked.Errors))
		}
		child := forked.Children[0].ID
		if err := a.sh(ctx, child, change); err != nil {
			return err
		}
		snap, err := a.Sandboxes.Snapshot(ctx, child, api.SnapshotRequest{})
		if err != nil {
			return err
		}
		began := time.Now()
		pushed, err := a.Snapshots.Push(ctx, snap.ID)
		if err != nil {
			return err
		}
		s.Add(took, ms(began))
		s.Add(share, 100*float64(pushed.UploadedBytes)/float64(max(1, pushed.NewBytes)))
		if err := a.Sandboxes.Delete(ctx, child); err != nil {
			return err
		}
	}
	return nil
}

// crossHost measures a fork of a running sandbox to another node: capture, push, and the first exec there. Both nodes
// have the template and an earlier state of the sandbox, as is usual on a host that runs its forks.
func (p *Pair) crossHost(ctx context.Context, s *bench.Sheet) (err error) {
	store := newStore()
	a, err := p.start(ctx, "a", store, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.stop()) }()
	b, err := p.start(ctx, "b", store, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	sb, err := a.Sandboxes.Create(ctx, api.CreateRequest{Template: p.Template})
	if err != nil {
		return err
	}
	earlier, err := a.snapshotAndPush(ctx, sb.ID)
	if err != nil {
		return err
	}
	if _, err := b.first(ctx, earlier, true, "true"); err != nil {
		return err
	}
	if err := wait(ctx, recorded); err != nil {
		return err
	}
	fork := s.Series(
		"cross_host_fork",
		"fork of a running sandbox to another node: request to the end of its first exec",
		"ms",
		&bench.Target{P50: 1200},
	)
	sent := s.Series("cross_host_push", "of that, until the push is complete", "ms", nil)
	for range s.Times(5) {
		if err := a.sh(ctx, sb.ID, change); err != nil {
			return err
		}
		began := time.Now()
		snap, err := a.snapshotAndPush(ctx, sb.ID)
		if err != nil {
			return err
		}
		s.Add(sent, ms(began))
		if _, err := b.first(ctx, snap, true, "true"); err != nil {
			return err
		}
		s.Add(fork, ms(began))
	}
	return nil
}
