package machine_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/vmm"
)

// fakeDriver is a driver and all monitors of a host. It outlives managers, as processes do.
type fakeDriver struct {
	mu           sync.Mutex
	monitors     map[string]*monitor // by directory
	pids         int
	fail         map[string]error // of the next call of an operation
	unresponsive bool             // guests do not confirm their identity
	prints       string           // on the console of every guest
	crashes      error            // why monitors end once their guests run; nil: they do not
	breaks       bool             // guest channels break once their guests run
	// adoptErr is the error of Adopt, if not nil.
	adoptErr    error
	loads       int  // guests that were started
	full        bool // writes find no space
	noDiskRates bool // the driver cannot limit the rate of disks
	busy        bool // guests count as soon as they are thawed
	stopped     bool // monitors and guests do not reply until they are killed
	// mayRun is called before the first instruction of every guest; an error stops it.
	mayRun func(id string) error
}

// memory is the memory of a guest, which a capture copies.
type memory struct {
	Counter uint64
	Frozen  bool
	Note    string // a cold boot forgets it
	Who     guestapi.Identity
	Volumes map[int]guestapi.VolumeMount // mounted
}

// monitor is one fake process and the guest in it.
type monitor struct {
	host *fakeDriver
	spec vmm.Spec
	pid  int
	done chan struct{}

	mu       sync.Mutex
	alive    bool
	err      error
	image    *memory // that it was prepared on
	loaded   chan struct{}
	paused   bool
	mem      memory
	metadata string // that was set before the guest ran

	printed int // bytes of the console that were read

	waits   bool          // stopped because a write found no space
	noSpace chan struct{} // holds a token after that
	resumed int           // calls of Resume
}

func newFakeDriver() *fakeDriver {
	return &fakeDriver{monitors: map[string]*monitor{}, fail: map[string]error{}}
}

func (h *fakeDriver) failNext(op string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fail[op] = err
}

func (h *fakeDriver) takeFailure(op string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	err := h.fail[op]
	delete(h.fail, op)
	return err
}

func (h *fakeDriver) alive() map[string]*monitor {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[string]*monitor{}
	for dir, m := range h.monitors {
		out[dir] = m
	}
	return out
}

func (h *fakeDriver) monitorOf(id string) *monitor {
	for _, m := range h.alive() {
		if m.spec.ID == id {
			return m
		}
	}
	return nil
}

func (h *fakeDriver) Capabilities() vmm.Capabilities {
	return vmm.Capabilities{
		Name:        "test",
		Version:     "1",
		Accelerator: vmm.None,
		Snapshot:    true,
		LiveFork:    true,
		Memory:      vmm.MemoryFeatures{HugePages: true},
		Disks:       vmm.DiskFeatures{Rates: !h.noDiskRates},
	}
}

func (h *fakeDriver) spawn(spec vmm.Spec, image *memory) (*monitor, error) {
	for _, d := range spec.Disks {
		if _, err := os.Stat(d.Path); err != nil {
			return nil, err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.monitors[spec.Dir] != nil {
		return nil, fmt.Errorf("a monitor runs in %s already", spec.Dir)
	}
	h.pids++
	m := &monitor{
		host:   h,
		spec:   spec,
		pid:    h.pids,
		done:   make(chan struct{}),
		loaded: make(chan struct{}),
		alive:  true,
		image:  image,

		noSpace: make(chan struct{}, 1),
	}
	h.monitors[spec.Dir] = m
	if spec.Confine.Enter != nil {
		return m, spec.Confine.Enter(m.pid)
	}
	return m, nil
}

func (h *fakeDriver) Boot(_ context.Context, spec vmm.Spec) (vmm.Machine, error) {
	if err := errors.Join(h.takeFailure("boot"), h.mayRun(spec.ID)); err != nil {
		return nil, err
	}
	m, err := h.spawn(spec, nil)
	if err != nil {
		return nil, err
	}
	on, err := m.readCounter()
	if err != nil {
		return nil, err
	}
	m.run(memory{Counter: on})
	return m, nil
}

func (h *fakeDriver) Prepare(_ context.Context, spec vmm.Spec, image vmm.Image) (vmm.Machine, error) {
	if err := h.takeFailure("prepare"); err != nil {
		return nil, err
	}
	mem, err := readMemory(image)
	if err != nil {
		return nil, err
	}
	return h.spawn(spec, mem)
}

func readMemory(image vmm.Image) (*memory, error) {
	data, err := os.ReadFile(filepath.Join(image.Dir, "memory"))
	if err != nil {
		return nil, err
	}
	mem := new(memory)
	return mem, json.Unmarshal(data, mem)
}

func (h *fakeDriver) Adopt(_ context.Context, spec vmm.Spec) (vmm.Machine, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.adoptErr != nil {
		return nil, h.adoptErr
	}
	if m := h.monitors[spec.Dir]; m != nil {
		for i, d := range spec.Disks { // whose rates may differ
			m.spec.Disks[i].Rate = d.Rate
		}
		return m, nil
	}
	return nil, vmm.ErrGone
}

func (h *fakeDriver) Kill(ctx context.Context, spec vmm.Spec) error {
	h.mu.Lock()
	m := h.monitors[spec.Dir]
	h.mu.Unlock()
	if m == nil {
		return nil
	}
	return m.Kill(ctx)
}

func (m *monitor) run(mem memory) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mem = mem
	m.host.mu.Lock()
	m.host.loads++
	m.host.mu.Unlock()
	close(m.loaded)
}

func (m *monitor) PID() int { return m.pid }

// SetMetadata implements vmm.MetadataSetter. A document that comes when the guest runs already is ignored.
func (m *monitor) SetMetadata(_ context.Context, document []byte) error {
	if err := m.host.takeFailure("identify"); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.loaded:
	default:
		m.metadata = string(document)
	}
	return nil
}

// Dial returns a connection that only openLink understands.
func (m *monitor) Dial(context.Context) (net.Conn, error) {
	if err := m.host.takeFailure("dial"); err != nil {
		return nil, err
	}
	here, _ := net.Pipe()
	return &wire{Conn: here, to: m}, nil
}

type wire struct {
	net.Conn
	to *monitor
}

func (m *monitor) Load(_ context.Context, from vmm.Capture) error {
	if err := errors.Join(m.host.takeFailure("load"), m.host.mayRun(m.spec.ID)); err != nil {
		return err
	}
	mem := m.image
	if from != nil {
		c := from.(*capture)
		if c.isClosed() {
			return errors.New("load of a closed capture")
		}
		mem = &c.mem
	}
	if mem == nil {
		return errors.New("load of a machine that was booted")
	}
	m.run(*mem)
	return nil
}

// answer waits, if monitors do not reply, for the end of ctx or of the monitor.
func (m *monitor) answer(ctx context.Context) error {
	m.host.mu.Lock()
	stopped := m.host.stopped
	m.host.mu.Unlock()
	if !stopped {
		return nil
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-m.done:
		return vmm.ErrGone
	}
}

func (m *monitor) Pause(ctx context.Context) error {
	if err := m.answer(ctx); err != nil {
		return err
	}
	if err := m.host.takeFailure("pause"); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.paused = true
	return nil
}

func (m *monitor) Resume(ctx context.Context) error {
	if err := m.answer(ctx); err != nil {
		return err
	}
	select {
	case <-m.loaded:
	default:
		return errors.New("resume of a monitor without a guest")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.paused = false
	m.resumed++
	if m.waits = m.waits && m.host.isFull(); m.waits {
		m.signalNoSpace()
	}
	return nil
}

// write is a guest's write of a new block: if the host is full, the monitor stops the guest.
func (m *monitor) write() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.waits = m.waits || m.host.isFull(); m.waits {
		m.signalNoSpace()
	}
}

func (m *monitor) signalNoSpace() {
	select {
	case m.noSpace <- struct{}{}:
	default:
	}
}

func (m *monitor) resumes() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.resumed
}

// OutOfSpace implements vmm.SpaceWaiter.
func (m *monitor) OutOfSpace() <-chan struct{} { return m.noSpace }

// WaitsForSpace implements vmm.SpaceWaiter.
func (m *monitor) WaitsForSpace() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.waits
}

func (h *fakeDriver) isFull() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.full
}

func (h *fakeDriver) setFull(full bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.full = full
}

func (m *monitor) Capture(ctx context.Context) (vmm.Capture, error) {
	if err := m.answer(ctx); err != nil {
		return nil, err
	}
	if err := m.host.takeFailure("capture"); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.paused || !m.mem.Frozen {
		return nil, fmt.Errorf("capture of a machine that is paused=%v frozen=%v", m.paused, m.mem.Frozen)
	}
	return &capture{m: m, mem: m.mem}, nil
}

func (m *monitor) Usage() (vmm.Usage, error) {
	return vmm.Usage{Started: time.Now().Add(-time.Second), CPU: time.Second, PSSBytes: 1 << 20}, nil
}

func (m *monitor) Kill(context.Context) error {
	if err := m.host.takeFailure("kill"); err != nil {
		return err
	}
	m.exit(nil)
	return nil
}

// SwapDisk implements vmm.DiskSwapper.
func (m *monitor) SwapDisk(_ context.Context, n int, disk vmm.Disk) error {
	if err := m.host.takeFailure("swap"); err != nil {
		return err
	}
	if _, err := os.Stat(disk.Path); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.alive {
		return vmm.ErrGone
	}
	m.spec.Disks = slices.Clone(m.spec.Disks)
	m.spec.Disks[n] = disk
	return nil
}

// ResizeDisk implements vmm.DiskResizer.
func (m *monitor) ResizeDisk(context.Context, int) error { return m.host.takeFailure("resize") }

// Console returns what the guest printed since the last call.
func (m *monitor) Console(context.Context) ([]byte, error) {
	m.host.mu.Lock()
	all := m.host.prints
	m.host.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.alive {
		return nil, vmm.ErrGone
	}
	out := all[min(m.printed, len(all)):]
	m.printed = len(all)
	return []byte(out), nil
}

// exit ends the fake process.
func (m *monitor) exit(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.alive {
		return
	}
	m.alive, m.err = false, err
	m.host.mu.Lock()
	delete(m.host.monitors, m.spec.Dir)
	m.host.mu.Unlock()
	close(m.done)
}

func (m *monitor) Done() <-chan struct{} { return m.done }

func (m *monitor) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// readCounter reads the counter that the guest keeps on each of its disks.
func (m *monitor) readCounter() (count uint64, err error) {
	for i, d := range m.spec.Disks {
		if isPlace(d) {
			continue
		}
		got, err := counterOn(d.Path)
		if err != nil {
			return 0, fmt.Errorf("read disk: %w", err)
		}
		if i > 0 && got != count {
			return 0, fmt.Errorf(
				"disk %d counts %d and the root disk %d: they are not of the same moment",
				i,
				got,
				count,
			)
		}
		count = got
	}
	return count, nil
}

// isPlace reports whether a disk is a place without a volume: guests keep no counter there.
func isPlace(d vmm.Disk) bool { return strings.HasPrefix(filepath.Base(d.Path), "place-") }

// counterOn reads the counter on one disk, which is all that these guests write there.
func counterOn(path string) (uint64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	var data [8]byte
	_, err = f.ReadAt(data[:], 0)
	return binary.LittleEndian.Uint64(data[:]), errors.Join(err, f.Close())
}

// writeCounter writes the counter to every disk.
func (m *monitor) writeCounter(count uint64) error {
	for _, d := range m.spec.Disks {
		if isPlace(d) {
			continue
		}
		f, err := os.OpenFile(d.Path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteAt(binary.LittleEndian.AppendUint64(nil, count), 0)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// count is the guest's program: it increments a counter in memory and on disk, and fails if the two differ.
func (m *monitor) count() (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.alive || m.paused || m.mem.Frozen || m.waits {
		return 0, fmt.Errorf("guest is stopped: alive=%v paused=%v frozen=%v waits=%v",
			m.alive, m.paused, m.mem.Frozen, m.waits)
	}
	on, err := m.readCounter()
	if err != nil {
		return 0, err
	}
	if on != m.mem.Counter {
		return 0, fmt.Errorf("memory counts %d and disk %d: they are not of the same moment", m.mem.Counter, on)
	}
	m.mem.Counter++
	return m.mem.Counter, m.writeCounter(m.mem.Counter)
}

type capture struct {
	m      *monitor
	mem    memory
	mu     sync.Mutex
	closed bool
}

func (c *capture) DirtyBytes() int64 { return 1 }

func (c *capture) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

func (c *capture) Save(_ context.Context, dir string) (vmm.Image, error) {
	if err := c.m.host.takeFailure("save"); err != nil {
		_ = os.WriteFile(filepath.Join(dir, "memory"), []byte("half"), 0o600)
		return vmm.Image{}, err
	}
	data, err := json.Marshal(c.mem)
	if err != nil {
		return vmm.Image{}, err
	}
	if err := os.WriteFile(filepath.Join(dir, "memory"), data, 0o600); err != nil {
		return vmm.Image{}, err
	}
	return vmm.Image{Dir: dir, Manifest: vmm.Manifest{
		Version: vmm.ManifestVersion, Driver: "test", Disks: len(c.m.spec.Disks),
		Files: []vmm.File{{Name: "memory", Bytes: int64(len(data))}},
	}}, nil
}

func (c *capture) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	return nil
}

// link is the fake guest's channel. It has only the methods that machines need.
type link struct {
	guestapi.Guest
	m     *monitor
	hello machine.Handshake
	done  chan struct{}
	once  sync.Once
}

func openLink(_ context.Context, conn net.Conn, g machine.Handshake) (machine.Link, error) {
	m := conn.(*wire).to
	if err := m.host.takeFailure("link"); err != nil {
		return nil, err
	}
	return &link{m: m, hello: g, done: make(chan struct{})}, nil
}

func (l *link) Ready(ctx context.Context) error {
	if err := l.m.answer(ctx); err != nil {
		return err
	}
	select {
	case <-l.m.loaded:
	case <-l.m.done:
		return guestapi.ErrLost
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	l.m.host.mu.Lock()
	deaf, crashes, breaks, busy := l.m.host.unresponsive, l.m.host.crashes, l.m.host.breaks, l.m.host.busy
	l.m.host.mu.Unlock()
	if crashes != nil { // the channel breaks a moment before the end of the monitor is known
		time.AfterFunc(20*time.Millisecond, func() { l.m.exit(crashes) })
	}
	if breaks || crashes != nil {
		return fmt.Errorf("greet guest: %w", guestapi.ErrLost)
	}
	if deaf {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	if err := l.confirm(); err != nil || !busy || l.hello.Identity == nil {
		return err
	}
	_, err := l.m.count()
	return err
}

func (l *link) confirm() error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if id := l.hello.Identity; id != nil {
		l.m.mem.Who, l.m.mem.Frozen = *id, false
		l.m.mem.Volumes = maps.Clone(l.m.mem.Volumes)
		for _, v := range id.Volumes {
			l.mountVolume(v)
		}
	} else if l.m.mem.Who.Generation != l.hello.Generation {
		return fmt.Errorf("handshake with generation %d, and the guest has generation %d",
			l.hello.Generation, l.m.mem.Who.Generation)
	}
	return nil
}

func (l *link) mountVolume(v guestapi.VolumeMount) {
	if l.m.mem.Volumes == nil {
		l.m.mem.Volumes = map[int]guestapi.VolumeMount{}
	}
	l.m.mem.Volumes[v.Disk] = v
}

func (l *link) Volume(ctx context.Context, req guestapi.VolumeRequest) (out guestapi.VolumeReport, _ error) {
	if err := l.m.answer(ctx); err != nil {
		return out, err
	}
	if err := l.m.host.takeFailure("volume"); err != nil {
		return out, err
	}
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if req.Action == guestapi.VolumeMountAt {
		l.mountVolume(req.Volume)
	}
	v, ok := l.m.mem.Volumes[req.Volume.Disk]
	if !ok {
		return out, guestapi.ErrNotFound
	}
	if v.Check {
		out.Check, out.Log = guestapi.CheckRepaired, "replayed"
	}
	if req.Action == guestapi.VolumeUnmount {
		delete(l.m.mem.Volumes, req.Volume.Disk)
		out.Clean = true
	}
	return out, nil
}

func (l *link) Stats(ctx context.Context) (guestapi.Stats, error) {
	return guestapi.Stats{}, l.m.answer(ctx)
}

func (l *link) Processes(ctx context.Context) ([]guestapi.ProcessInfo, error) {
	return nil, l.m.answer(ctx)
}

func (l *link) Freeze(ctx context.Context, _ bool) error {
	if err := l.m.answer(ctx); err != nil {
		return err
	}
	if err := l.m.host.takeFailure("freeze"); err != nil {
		return err
	}
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	l.m.mem.Frozen = true
	return nil
}

func (l *link) Thaw(ctx context.Context) error {
	if err := l.m.answer(ctx); err != nil {
		return err
	}
	if err := l.m.host.takeFailure("thaw"); err != nil {
		return err
	}
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if l.m.paused {
		return errors.New("thaw of a paused machine")
	}
	l.m.mem.Frozen = false
	return nil
}

func (l *link) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *link) Done() <-chan struct{} { return l.done }
