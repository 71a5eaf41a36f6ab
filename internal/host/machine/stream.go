package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/lib/durable"
	"github.com/pandastack/pandastack/internal/vmm"
)

// Streams serves partial snapshots to machines that start before all of it is on this host.
type Streams interface {
	// Attach arranges for the machine owner to start on a partial snapshot. disks are its own disks, in the
	// order of the snapshot's: empty files of at least their size.
	Attach(ctx context.Context, snap snapshot.Snapshot, owner string, disks []string) (Stream, error)
	// Rescue makes the disks of a machine whole that an earlier process served, with what the machine wrote.
	// It waits until the snapshot's disks are here.
	Rescue(ctx context.Context, snap snapshot.Snapshot, disks []string) error
}

// Stream is what one machine has of a partial snapshot.
type Stream interface {
	Memory() vmm.Memory
	// DiskPaths are what its monitor uses as its disks: what it writes goes to its own, the rest is the snapshot's.
	DiskPaths() []string
	// Whole is closed when the snapshot is whole and the machine's own disks are all of its disks. What the
	// monitor has mapped and open goes on to be served.
	Whole() <-chan struct{}
	// Local waits for that. It answers why when an attempt to bring all of it here fails.
	Local(ctx context.Context) error
	// Failed is closed when something that the monitor waited for does not come. Err then says why.
	Failed() <-chan struct{}
	Err() error
	Close(ctx context.Context) error // when the monitor has ended
}

// partialFile is in a machine's directory while its disks are not whole.
const partialFile = "disk.partial"

// streamReason is told of machines whose memory was served by a process of ours that ended.
const streamReason = "the host agent ended, which brought the memory of this machine here piece by piece"

// attach gives a new machine empty disks over a partial snapshot's, and its memory.
func (m *Manager) attach(
	ctx context.Context,
	p *plan,
	mc *machine,
	snap snapshot.Snapshot,
	how start,
) (vmm.Image, error) {
	image := snap.Image()
	if m.deps.Streams == nil {
		return image, fmt.Errorf("snapshot %s is not all on this host: %w", snap.Ref, hostapi.ErrUnsupported)
	}
	if err := m.allocate(mc, how); err != nil {
		return image, err
	}
	err := durable.Replace(filepath.Join(mc.dir, partialFile), nil, 0o600)
	for _, path := range mc.disks() {
		err = errors.Join(err, os.Chmod(path, 0o600))
	}
	if err != nil {
		return image, err
	}
	if err := p.did("disk"); err != nil {
		return image, err
	}
	stream, err := m.deps.Streams.Attach(ctx, snap, mc.in.rig(), mc.disks())
	if err != nil {
		return image, fmt.Errorf("begin to stream %s: %w", snap.Ref, err)
	}
	p.back.Push("end stream", func(ctx context.Context) error {
		mc.set(func() { mc.stream = nil })
		return stream.Close(ctx)
	})
	mc.set(func() { mc.stream = stream })
	image.Memory = stream.Memory()
	if err := m.enlarge(p, mc); err != nil {
		return image, err
	}
	return image, p.did("stream")
}

// enlarge has a machine's memory made of huge pages, if those that the host keeps ready suffice for all of it beside
// all of the other machines': a monitor that finds none when it touches its memory is killed.
func (m *Manager) enlarge(p *plan, mc *machine) error {
	if m.cfg.HugeMemory == nil || !m.deps.Driver.Capabilities().HugePages {
		return nil
	}
	left, err := m.cfg.HugeMemory()
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, promised := range m.huge {
		left -= promised
	}
	if all := int64(mc.in.MemoryMiB) * mib; all <= left {
		p.back.Push("give huge pages back", func(context.Context) error { m.shrink(mc); return nil })
		m.huge[mc] = all
	}
	return nil
}

// large says whether a machine's memory is made of huge pages.
func (m *Manager) large(mc *machine) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.huge[mc] > 0
}

// shrink notes that a machine needs no huge pages any more.
func (m *Manager) shrink(mc *machine) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.huge, mc)
}

// whole waits until all that a machine started on is on this host: it can be captured then.
func (m *Manager) whole(ctx context.Context, p *plan, mc *machine) error {
	if mc.stream == nil {
		return nil
	}
	if err := mc.stream.Local(ctx); err != nil {
		return fmt.Errorf("machine %s is not all on this host yet: %w", mc.id, err)
	}
	return p.did("whole")
}

// fed is a context that ends when what a machine starts on does not come.
func (mc *machine) fed(ctx context.Context) (context.Context, context.CancelFunc) {
	if mc.stream == nil {
		return ctx, func() {}
	}
	stream := mc.stream
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-stream.Failed():
			cancel(stream.Err())
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil); <-done }
}

// starved is err, with why the machine's content did not come if it did not.
func (mc *machine) starved(err error) error {
	if err == nil || mc.stream == nil || mc.stream.Err() == nil {
		return err
	}
	return fmt.Errorf("its snapshot does not come: %w (%w)", mc.stream.Err(), err)
}

// detach ends a machine's stream; its monitor has ended.
func (m *Manager) detach(ctx context.Context, mc *machine) error {
	if mc.stream == nil {
		return nil
	}
	if err := mc.stream.Close(ctx); err != nil {
		return fmt.Errorf("end the stream: %w", err)
	}
	mc.set(func() { mc.stream = nil })
	m.shrink(mc)
	return nil
}

// arrived notes that a machine's disks are whole.
func (m *Manager) arrived(mc *machine) {
	if err := os.Remove(filepath.Join(mc.dir, partialFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		m.log.Error("disk that is whole not noted", "machine", mc.id, "err", err)
	}
}

// partial says whether a machine's disks may lack what its snapshot has.
func (m *Manager) partial(mc *machine) bool {
	_, err := os.Stat(filepath.Join(mc.dir, partialFile))
	return err == nil
}

// rescue makes the disks of a failed machine whole, and lets go of the snapshot it began on.
func (m *Manager) rescue(ctx context.Context, p *plan, mc *machine) error {
	if !m.partial(mc) {
		return nil
	}
	base := mc.in.Base
	if m.deps.Streams == nil || base == "" {
		return fmt.Errorf("the disk is not all here, and neither is what it began as: %w", hostapi.ErrUnsupported)
	}
	snap, err := m.deps.Store.Hold(base)
	if err != nil {
		return missing(err)
	}
	err = m.deps.Streams.Rescue(ctx, snap, mc.disks())
	if err := errors.Join(err, m.deps.Store.Release(base)); err != nil {
		return fmt.Errorf("complete the disks: %w", err)
	}
	if err := m.record(mc, ofHost, func(in *intent) { in.Base = "" }); err != nil {
		return err
	}
	m.arrived(mc)
	if err := m.deps.Store.Release(base); err != nil {
		return err
	}
	return p.did("rescue")
}
