package fake

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/guest/server"
	"github.com/pandastack/pandastack/internal/vmm"
)

// monitor is a machine as the host has it; values of type machine refer to it.
type monitor struct {
	driver   *Driver
	spec     vmm.Spec
	manifest vmm.Manifest
	base     string // digest of the image it was prepared on
	image    []byte // that image, until Load
	pid      int
	started  time.Time
	done     chan struct{}
	calls    chan *net.UnixConn // guest ends of channels, one after the other

	mu     sync.Mutex
	world  *guestState   // nil before Load
	lives  chan struct{} // closed when world is set
	paused bool
	waits  bool          // stopped for lack of space
	full   chan struct{} // holds a token after the guest was stopped for lack of space
	ours   *net.UnixConn // host end of the channel
	err    error
	ended  bool
	wg     sync.WaitGroup
}

// serve serves channels once the guest runs.
func (m *monitor) serve(ctx context.Context) {
	m.calls, m.lives, m.full = make(chan *net.UnixConn, 16), make(chan struct{}), make(chan struct{}, 1)
	m.wg.Go(func() {
		select {
		case <-m.lives:
		case <-m.done:
			return
		}
		guest := server.New(m.runningGuest())
		for {
			select {
			case conn := <-m.calls:
				// The end of a channel is no error of the guest: the next one is served all the same.
				_ = guest.Serve(ctx, conn)
				_ = conn.Close()
			case <-m.done:
				return
			}
		}
	})
}

func (m *monitor) runningGuest() *guestState {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.world
}

// start puts a guest into the monitor and lets it run.
func (m *monitor) start(w *guestState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.image = nil
	if m.ended {
		return
	}
	m.world = w
	w.run()
	w.setPaused(false)
	close(m.lives)
}

// closeChannel closes the host's end of the channel.
func (m *monitor) closeChannel() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ours != nil {
		_ = m.ours.Close()
		m.ours = nil
	}
}

// end ends the monitor once, and waits for all its goroutines.
func (m *monitor) end(why error) {
	m.mu.Lock()
	if m.ended {
		m.mu.Unlock()
		<-m.done
		return
	}
	m.ended, m.err = true, why
	w := m.world
	m.mu.Unlock()
	m.driver.mu.Lock()
	delete(m.driver.monitors, filepath.Clean(m.spec.Dir))
	m.driver.mu.Unlock()
	m.closeChannel()
	if w != nil {
		w.end()
	}
	close(m.done)
	m.wg.Wait()
	for len(m.calls) > 0 {
		_ = (<-m.calls).Close()
	}
}

// machine implements vmm.Machine.
type machine struct{ *monitor }

var _ vmm.Machine = (*machine)(nil)

func (m *machine) step(ctx context.Context, op string) error {
	if err := m.driver.step(ctx, op, m.spec.ID); err != nil {
		return err
	}
	select {
	case <-m.done:
		if op == OpKill {
			return nil
		}
		return fmt.Errorf("%s machine %s: %w", op, m.spec.ID, errors.Join(vmm.ErrGone, m.Err()))
	default:
		return nil
	}
}

// PID implements vmm.Machine.
func (m *machine) PID() int { return m.pid }

// Done implements vmm.Machine.
func (m *machine) Done() <-chan struct{} { return m.done }

// Err implements vmm.Machine.
func (m *machine) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// Dial implements vmm.Machine.
func (m *machine) Dial(ctx context.Context) (net.Conn, error) {
	if err := m.step(ctx, OpDial); err != nil {
		return nil, err
	}
	m.closeChannel()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "channel")
		conn, err := net.FileConn(f)
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		ends[i] = conn.(*net.UnixConn)
	}
	select {
	case m.calls <- ends[1]:
	case <-m.done:
		return nil, errors.Join(vmm.ErrGone, ends[0].Close(), ends[1].Close())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ours = ends[0]
	return ends[0], nil
}

// Load implements vmm.Machine.
func (m *machine) Load(ctx context.Context, from vmm.Capture) error {
	if err := m.step(ctx, OpLoad); err != nil {
		return err
	}
	if m.runningGuest() != nil || m.image == nil {
		return fmt.Errorf("load machine %s: it was loaded before", m.spec.ID)
	}
	if from == nil {
		w, err := decodeGuestState(m.image)
		if err != nil {
			return fmt.Errorf("load machine %s: %w", m.spec.ID, err)
		}
		m.start(w)
		return nil
	}
	c, ok := from.(*capture)
	if !ok || c.base == "" || c.base != m.base {
		return fmt.Errorf("load machine %s: the capture was not taken on the image of this machine", m.spec.ID)
	}
	w, err := c.take()
	if err != nil {
		return fmt.Errorf("load machine %s: %w", m.spec.ID, err)
	}
	m.start(w)
	return nil
}

// stop changes whether the guest's processors run.
func (m *machine) stop(op string, v bool) error {
	w := m.runningGuest()
	if w == nil {
		return fmt.Errorf("%s machine %s: it was not loaded", op, m.spec.ID)
	}
	m.mu.Lock()
	m.paused = v
	m.mu.Unlock()
	if v || !m.repeatWrite() {
		w.setPaused(v)
	}
	return nil
}

// repeatWrite reports whether the write of a guest that waits for space finds none again.
func (m *monitor) repeatWrite() bool {
	m.driver.mu.Lock()
	full := m.driver.full
	m.driver.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waits = m.waits && full
	if !m.waits {
		return false
	}
	select {
	case m.full <- struct{}{}:
	default: // the last token was not taken
	}
	return true
}

var (
	_ vmm.DiskSwapper = (*machine)(nil)
	_ vmm.DiskResizer = (*machine)(nil)
)

// SwapDisk implements vmm.DiskSwapper.
func (m *machine) SwapDisk(ctx context.Context, n int, disk vmm.Disk) error {
	if err := m.step(ctx, OpSwap); err != nil {
		return err
	}
	return m.setDisk(n, disk)
}

// ResizeDisk implements vmm.DiskResizer.
func (m *machine) ResizeDisk(ctx context.Context, n int) error {
	if err := m.step(ctx, OpSwap); err != nil {
		return err
	}
	m.mu.Lock()
	disk := m.spec.Disks[n]
	m.mu.Unlock()
	return m.setDisk(n, disk)
}

// setDisk changes a disk, and the size of it that the guest knows.
func (m *monitor) setDisk(n int, disk vmm.Disk) error {
	st, err := os.Stat(disk.Path)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if n < 0 || n >= len(m.spec.Disks) || disk.ReadOnly != m.spec.Disks[n].ReadOnly {
		return fmt.Errorf("machine %s has no disk %d that could be replaced by %+v", m.spec.ID, n, disk)
	}
	m.spec.Disks, m.manifest.DiskBytes = slices.Clone(m.spec.Disks), slices.Clone(m.manifest.DiskBytes)
	m.spec.Disks[n], m.manifest.DiskBytes[n] = disk, st.Size()
	return nil
}

var _ vmm.SpaceWaiter = (*machine)(nil)

// OutOfSpace implements vmm.SpaceWaiter.
func (m *machine) OutOfSpace() <-chan struct{} { return m.full }

// WaitsForSpace implements vmm.SpaceWaiter.
func (m *machine) WaitsForSpace() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.waits
}

// Pause implements vmm.Machine.
func (m *machine) Pause(ctx context.Context) error {
	if err := m.step(ctx, OpPause); err != nil {
		return err
	}
	return m.stop(OpPause, true)
}

// Resume implements vmm.Machine.
func (m *machine) Resume(ctx context.Context) error {
	if err := m.step(ctx, OpResume); err != nil {
		return err
	}
	return m.stop(OpResume, false)
}

// Capture implements vmm.Machine.
func (m *machine) Capture(ctx context.Context) (vmm.Capture, error) {
	if err := m.step(ctx, OpCapture); err != nil {
		return nil, err
	}
	m.mu.Lock()
	stopped := m.paused
	m.mu.Unlock()
	if !stopped {
		return nil, fmt.Errorf("capture machine %s: it is not paused", m.spec.ID)
	}
	return &capture{
		driver:   m.driver,
		id:       m.spec.ID,
		base:     m.base,
		manifest: m.manifest,
		world:    m.runningGuest().copy(),
	}, nil
}

// Usage implements vmm.Machine.
func (m *machine) Usage() (vmm.Usage, error) {
	select {
	case <-m.done:
		return vmm.Usage{}, vmm.ErrGone
	default:
		return vmm.Usage{Started: m.started, RSSBytes: 1 << 20, PSSBytes: 1 << 20, VSZBytes: 1 << 20, Threads: 1}, nil
	}
}

// Kill implements vmm.Machine.
func (m *machine) Kill(ctx context.Context) error {
	if err := m.step(ctx, OpKill); err != nil {
		return err
	}
	m.end(nil)
	return nil
}

// capture implements vmm.Capture.
type capture struct {
	driver   *Driver
	id       string
	base     string
	manifest vmm.Manifest

	mu    sync.Mutex
	world *guestState // nil once closed
}

var _ vmm.Capture = (*capture)(nil)

// take returns a copy of the captured guest.
func (c *capture) take() (*guestState, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.world == nil {
		return nil, errors.New("capture was closed")
	}
	return c.world.copy(), nil
}

// DirtyBytes implements vmm.Capture.
func (c *capture) DirtyBytes() int64 {
	w, err := c.take()
	if err != nil {
		return 0
	}
	var n int64
	for _, f := range w.Files {
		n += int64(len(f.Data))
	}
	return n
}

// Save implements vmm.Capture.
func (c *capture) Save(ctx context.Context, dir string) (vmm.Image, error) {
	if err := c.driver.step(ctx, OpSave, c.id); err != nil {
		return vmm.Image{}, err
	}
	w, err := c.take()
	if err != nil {
		return vmm.Image{}, err
	}
	data, err := w.encode()
	if err != nil {
		return vmm.Image{}, err
	}
	return save(dir, c.manifest, data)
}

// Close implements vmm.Capture.
func (c *capture) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.world = nil
	return nil
}
