package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Options say how a process is dumped.
type Options struct {
	// External is the inode of a mapped file that is not part of the checkpoint. The file is mapped
	// as a whole.
	External uint64
	// Content is the pages file that the process was restored with, or nil if it was not restored.
	Content *os.File
	// Delta is the inode of the file of Plan.DeltaFile, or 0. What the process maps of it is part of the capture, as
	// its private pages are.
	Delta uint64
	// Base is the checkpoint that the process was restored from. What only the process itself can
	// read is taken over from it. It may be nil: then the process runs system calls for the dump,
	// and it is killed if this process dies meanwhile.
	Base *Checkpoint
	// Role returns the role of a descriptor. f is a descriptor of this process for the same open
	// file, and link is the target of its link in /proc/PID/fd. Role is not called for the roles
	// that this package handles itself.
	Role func(f *os.File, link string) (string, error)
	// Buffer receives the content if it is large enough; the capture keeps it. If its pages are
	// already present, the process is stopped for a shorter time.
	Buffer []byte
}

// Capture is a checkpoint together with the pages that differ from Options.Content.
type Capture struct {
	Checkpoint Checkpoint
	spans      []Span
	pages      [][]byte // content of spans

	mapped  []byte        // mapping that holds pages; nil: they are in ordinary memory
	pending []pendingSpan // only used during the dump
}

// Bytes returns the size of the captured pages.
func (c *Capture) Bytes() int64 {
	var n int64
	for _, p := range c.pages {
		n += int64(len(p))
	}
	return n
}

// Dump stops a process, captures its state and lets it continue. The caller makes sure that nothing
// outside the process changes its state meanwhile. Dump returns ErrUnsupported if a checkpoint
// cannot represent the process, and an error if the process exits.
func Dump(pid int, opt Options) (c *Capture, err error) {
	if runtime.GOARCH != "amd64" {
		return nil, ErrUnsupported
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: what is still traced is released when the thread exits
		c, err = dump(pid, opt)
	}()
	<-done
	if err != nil {
		return nil, fmt.Errorf("dump process %d: %w", pid, err)
	}
	return c, nil
}

func dump(pid int, opt Options) (_ *Capture, err error) {
	c := &Capture{}
	if c.Checkpoint.Boot, err = BootID(); err != nil {
		return nil, err
	}
	t, err := attach(pid, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.detach()) }()
	if err := c.dumpThreads(t); err != nil {
		return nil, err
	}
	if opt.Base != nil {
		err = c.takeOver(t, opt.Base)
	} else {
		err = c.askThreads(t)
	}
	if err != nil {
		return nil, err
	}
	maps, err := readMaps(pid)
	if err != nil {
		return nil, err
	}
	if err := c.dumpLayout(pid, maps); err != nil {
		return nil, err
	}
	if c.Checkpoint.FDs, err = dumpFDs(pid, opt.Role); err != nil {
		return nil, err
	}
	return c, c.dumpMemory(t, maps, opt)
}

// dumpThreads reads what can be read of the threads without changing them.
func (c *Capture) dumpThreads(t *tracee) error {
	all := make([]Regs, len(t.tids))
	for i, tid := range t.tids {
		if err := getRegs(tid, &all[i]); err != nil {
			return err
		}
	}
	if err := t.findSyscall(all); err != nil {
		return err
	}
	for i, tid := range t.tids {
		th := Thread{Regs: all[i]}
		var err error
		if th.XSave, err = getState(tid); err != nil {
			return err
		}
		if th.SigMask, err = getMask(tid); err != nil {
			return err
		}
		c.Checkpoint.Threads = append(c.Checkpoint.Threads, th)
	}
	return nil
}

// takeOver takes over from base what only the process itself can read: the signal actions, and the addresses at which
// the kernel clears the threads' IDs. The C library keeps such an address at a fixed distance from the thread's other
// data. So the process runs nothing, keeps its registers all the time, and continues whenever this process dies.
func (c *Capture) takeOver(t *tracee, base *Checkpoint) error {
	c.Checkpoint.SigActions, c.Checkpoint.Filters = base.SigActions, base.Filters
	known := map[uint64]bool{}
	var distance uint64
	for _, th := range base.Threads {
		known[th.Regs[rFSBase]] = true
		if th.ClearTID != 0 {
			distance = th.ClearTID - th.Regs[rFSBase]
		}
	}
	if distance == 0 {
		return fmt.Errorf("%w: the checkpoint that it was restored from has no addresses of thread IDs", ErrUnsupported)
	}
	for i, tid := range t.tids {
		th := &c.Checkpoint.Threads[i]
		th.ClearTID = th.Regs[rFSBase] + distance
		if known[th.Regs[rFSBase]] {
			continue
		}
		want, err := namespacePID(tid)
		if err != nil {
			return err
		}
		if have, err := t.readWord(th.ClearTID); err != nil || uint32(have) != uint32(want) {
			return errors.Join(fmt.Errorf("%w: thread %d does not have its ID where the others have it",
				ErrUnsupported, tid), err)
		}
	}
	return nil
}

// askThreads makes the threads run the system calls that return what takeOver takes from a base. Only meanwhile the
// process is killed if this one dies: afterwards it has its own registers again, and continues.
func (c *Capture) askThreads(t *tracee) (err error) {
	defer func() { err = errors.Join(err, t.killOnExit(false)) }()
	if err := t.killOnExit(true); err != nil {
		return err
	}
	defer func() {
		for i, tid := range t.tids {
			r := c.Checkpoint.Threads[i].Regs.restartSyscall()
			err = errors.Join(err, setRegs(tid, &r))
		}
	}()
	for i, tid := range t.tids {
		th := &c.Checkpoint.Threads[i]
		at := scratchAddress(th.Regs)
		if _, err := t.syscall(tid, th.Regs, callPrctl, unix.PR_GET_TID_ADDRESS, at); err != nil {
			return err
		}
		if th.ClearTID, err = t.readWord(at); err != nil {
			return err
		}
	}
	return c.askSignals(t)
}

// askSignals reads the signal actions and the seccomp filters.
func (c *Capture) askSignals(t *tracee) error {
	handled, err := handledSignals(t.pid)
	if err != nil {
		return err
	}
	main := c.Checkpoint.Threads[0].Regs
	at := scratchAddress(main)
	for sig := 1; sig <= 64; sig++ {
		if handled&(1<<(sig-1)) == 0 {
			continue
		}
		if _, err := t.syscall(t.pid, main, callSigaction, uint64(sig), 0, at, sigsetBytes); err != nil {
			return err
		}
		a := SigAction{Signal: sig}
		if _, err := t.mem.ReadAt(a.Data[:], int64(at)); err != nil {
			return err
		}
		if a.Data != ([kernelActionBytes]byte{}) {
			c.Checkpoint.SigActions = append(c.Checkpoint.SigActions, a)
		}
	}
	c.Checkpoint.Filters, err = seccompFilters(t.pid)
	return err
}

// handledSignals returns the signals whose action may differ from the default one, signal 1 in the lowest bit: those
// that are caught or ignored (proc_pid_status(5)), and SIGCHLD, whose flags matter without a handler, too. To ask for
// the actions of all signals would take ten times as long, and meanwhile the process must not lose this one.
func handledSignals(pid int) (uint64, error) {
	data, err := os.ReadFile(procPath(pid, "status"))
	if err != nil {
		return 0, err
	}
	all := uint64(1) << (unix.SIGCHLD - 1)
	for _, field := range []string{"SigIgn", "SigCgt"} {
		_, rest, ok := strings.Cut(string(data), "\n"+field+":")
		text, _, _ := strings.Cut(rest, "\n")
		signals, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
		if !ok || err != nil {
			return 0, fmt.Errorf("/proc/%d/status has %s %q, want a mask of signals", pid, field, text)
		}
		all |= signals
	}
	return all, nil
}

// seccompFilters returns the filters of a stopped thread.
func seccompFilters(tid int) ([][]byte, error) {
	var all [][]byte
	for {
		f, err := getFilter(tid, len(all))
		switch {
		case err == unix.ENOENT || err == unix.EINVAL && len(all) == 0: // no more filters, or no filter at all
			return all, nil
		case err != nil:
			return nil, fmt.Errorf("seccomp filters of thread %d: %w", tid, err)
		}
		if all = append(all, f); len(all) > maxFilters {
			return nil, fmt.Errorf("%w: more than %d filters", ErrUnsupported, maxFilters)
		}
	}
}

// dumpLayout reads the layout of the address space (proc_pid_stat(5)).
func (c *Capture) dumpLayout(pid int, maps []mapping) error {
	data, err := os.ReadFile(procPath(pid, "stat"))
	if err != nil {
		return err
	}
	l := &c.Checkpoint.Layout
	f := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	for i, field := range []int{26, 27, 45, 46, 47, 0, 28} {
		if field == 0 {
			continue
		}
		if len(f) <= field-3 {
			return errors.New("/proc/PID/stat has too few fields")
		}
		if l[i], err = strconv.ParseUint(f[field-3], 10, 64); err != nil {
			return err
		}
	}
	l[5] = endOfHeap(maps, l[4])
	return nil
}

// endOfHeap returns the end of the heap that starts at start (brk(2)), rounded up to whole pages as the kernel does
// with what it maps there. The kernel keeps the page behind the heap free.
func endOfHeap(maps []mapping, start uint64) uint64 {
	end := start
	for _, m := range maps {
		if m.start <= end && m.end > end {
			end = m.end
		}
	}
	return end
}

// dumpMemory describes the address space and reads the pages that are in no file.
func (c *Capture) dumpMemory(t *tracee, maps []mapping, opt Options) error {
	var content uint64
	if opt.Content != nil {
		d, err := statFile(opt.Content)
		if err != nil {
			return err
		}
		content, c.Checkpoint.Bytes = d.Inode, d.Bytes
	}
	if opt.Base != nil {
		c.Checkpoint.Files = slices.Clone(opt.Base.Files)
	}
	private, err := privateSpans(t.pid, maps, opt.External)
	if err != nil {
		return err
	}
	for _, m := range maps {
		if m.ofKernel() {
			if m.name != "[vsyscall]" {
				c.Checkpoint.KernelMappings = append(c.Checkpoint.KernelMappings, KernelMapping{m.name, m.start, m.end})
			}
			continue
		}
		if m.shared && m.prot&unix.PROT_WRITE != 0 || m.start < minAddress && m.start != argsAt || m.end > maxAddress {
			return fmt.Errorf("%w: area %x-%x %s", ErrUnsupported, m.start, m.end, m.name)
		}
		if m.start == argsAt {
			continue // belongs to the stub that the process was restored into; the next stub has its own
		}
		var mine []Span
		mine, private = clip(private, m.start, m.end)
		if err := c.dumpVMA(t, m, mine, opt, content); err != nil {
			return fmt.Errorf("area %x-%x %s: %w", m.start, m.end, m.name, err)
		}
	}
	return c.readPending(t, opt.Buffer)
}

// PrivateBytes estimates how many bytes a capture of the process would hold. It counts the private
// pages outside the external file and what is mapped of a delta (see Options).
func PrivateBytes(pid int, external, delta uint64) (int64, error) {
	maps, err := readMaps(pid)
	if err != nil {
		return 0, err
	}
	private, err := privateSpans(pid, maps, external)
	if err != nil {
		return 0, err
	}
	var bytes uint64
	for _, m := range maps {
		if delta != 0 && m.inode == delta {
			bytes += m.end - m.start
		}
	}
	for _, s := range private {
		bytes += s.End - s.Start
	}
	return int64(bytes), nil
}

// privateSpans returns the private pages, except those of the external file.
func privateSpans(pid int, maps []mapping, external uint64) ([]Span, error) {
	pagemap, err := os.Open(procPath(pid, "pagemap"))
	if err != nil {
		return nil, err
	}
	defer pagemap.Close()
	var all []Span
	at := uint64(minAddress)
	upTo := func(end uint64) error {
		private, err := scanPrivate(pagemap, at, end)
		all = append(all, private...)
		return err
	}
	for _, m := range maps {
		if external == 0 || m.inode != external || m.start < at {
			continue
		}
		if err := upTo(m.start); err != nil {
			return nil, err
		}
		at = m.end
	}
	return all, upTo(maxAddress)
}

// clip splits sorted spans: in is the part between start and end, rest is the part after end.
func clip(spans []Span, start, end uint64) (in, rest []Span) {
	for len(spans) > 0 && spans[0].Start < end {
		s := spans[0]
		if s.End > start {
			in = append(in, Span{max(s.Start, start), min(s.End, end)})
		}
		if s.End > end {
			break
		}
		spans = spans[1:]
	}
	return in, spans
}

// dumpVMA adds one VMA with its private pages.
func (c *Capture) dumpVMA(t *tracee, m mapping, private []Span, opt Options, content uint64) error {
	a := VMA{Start: m.start, End: m.end, Prot: m.prot, Backing: Zero, Stack: m.name == "[stack]"}
	if m.inode != 0 && m.inode == opt.External {
		a.Backing, a.Offset = External, m.offset
		c.Checkpoint.VMAs = append(c.Checkpoint.VMAs, a)
		return nil
	}
	switch {
	case m.inode == 0:
	case content != 0 && m.inode == content:
		a.Backing, a.Offset = Stored, m.offset
	case opt.Delta != 0 && m.inode == opt.Delta:
		private = []Span{{m.start, m.end}}
	case m.prot&unix.PROT_WRITE == 0 && len(private) == 0:
		file, err := c.mappedFile(t, m)
		if err != nil {
			return err
		}
		if file >= 0 {
			a.Backing, a.Offset, a.File = Mapped, m.offset, file
			break
		}
		private = []Span{{m.start, m.end}}
	case m.prot != 0:
		private = []Span{{m.start, m.end}}
	}
	c.Checkpoint.VMAs = append(c.Checkpoint.VMAs, a)
	for _, s := range private {
		c.pending = append(c.pending, pendingSpan{s, a.Backing == Zero, m.prot&unix.PROT_READ != 0})
	}
	return nil
}

// pendingSpan is a range of pages still to be read.
type pendingSpan struct {
	Span
	zeros    bool // anonymous memory: zero pages need not be kept
	readable bool // by the process itself
}

// readPending reads all pending spans into one piece of memory.
func (c *Capture) readPending(t *tracee, buffer []byte) error {
	var bytes uint64
	for _, w := range c.pending {
		bytes += w.End - w.Start
	}
	buf := buffer
	if uint64(len(buf)) < bytes {
		buf = make([]byte, bytes)
	}
	buf = buf[:bytes]
	if err := c.readInto(t, buf); err != nil {
		return err
	}
	for _, w := range c.pending {
		n := w.End - w.Start
		c.addPages(w.Start, buf[:n], w.zeros)
		buf = buf[n:]
	}
	c.pending = nil
	return nil
}

// readInto reads the pending spans into buf. It uses few calls for what the process can read
// itself, and reads the rest through /proc/PID/mem.
func (c *Capture) readInto(t *tracee, buf []byte) error {
	for all := c.pending; len(all) > 0; {
		var run []Span
		var bytes uint64
		for len(all) > len(run) && all[len(run)].readable {
			run = append(run, all[len(run)].Span)
			bytes += run[len(run)-1].End - run[len(run)-1].Start
		}
		all = all[len(run):]
		if err := Read(t.pid, run, buf[:bytes]); err != nil {
			return err
		}
		if buf = buf[bytes:]; len(all) == 0 {
			break
		}
		n := all[0].End - all[0].Start
		if _, err := t.mem.ReadAt(buf[:n], int64(all[0].Start)); err != nil {
			return fmt.Errorf("content at %x: %w", all[0].Start, err)
		}
		buf, all = buf[n:], all[1:]
	}
	return nil
}

var zeroPage [pageSize]byte

func (c *Capture) addPages(at uint64, buf []byte, zeros bool) {
	for begin := 0; begin < len(buf); {
		for zeros && begin < len(buf) && bytes.Equal(buf[begin:begin+pageSize], zeroPage[:]) {
			begin += pageSize
		}
		end := begin
		for end < len(buf) && !(zeros && bytes.Equal(buf[end:end+pageSize], zeroPage[:])) {
			end += pageSize
		}
		if end > begin {
			c.spans = append(c.spans, Span{at + uint64(begin), at + uint64(end)})
			c.pages = append(c.pages, buf[begin:end])
		}
		begin = end
	}
}

// mappedFile returns the index of the host file with the content that a VMA maps, or -1 if there is
// no such file. In a jail the programs are copies, at the paths that they have on the host.
func (c *Capture) mappedFile(t *tracee, m mapping) (int, error) {
	for i, known := range c.Checkpoint.Files {
		if known.Inode == m.inode && known.Path == m.name {
			return i, nil
		}
	}
	root, err := os.Readlink(procPath(t.pid, "root"))
	if err != nil {
		return -1, err
	}
	if root == "/" {
		root = ""
	}
	f, err := os.Open(strings.TrimPrefix(m.name, root))
	if err != nil {
		return -1, nil // its content goes into the pages file
	}
	defer f.Close()
	d, err := statFile(f)
	if err != nil {
		return -1, err
	}
	if m.offset >= d.Bytes {
		return -1, nil
	}
	if d.Inode != m.inode {
		have, err := os.Open(fmt.Sprintf("/proc/%d/map_files/%x-%x", t.pid, m.start, m.end))
		if err != nil {
			return -1, err
		}
		defer have.Close()
		if same, err := equalRange(f, have, m.offset, int64(m.end-m.start)); err != nil || !same {
			return -1, err
		}
	}
	for i, known := range c.Checkpoint.Files {
		if known == d {
			return i, nil
		}
	}
	if len(c.Checkpoint.Files) >= maxFiles {
		return -1, nil
	}
	c.Checkpoint.Files = append(c.Checkpoint.Files, d)
	return len(c.Checkpoint.Files) - 1, nil
}

// equalRange reports whether a range of two files has the same content.
func equalRange(a, b *os.File, offset, n int64) (bool, error) {
	x, y := io.NewSectionReader(a, offset, n), io.NewSectionReader(b, offset, n)
	bx, by := make([]byte, 1<<20), make([]byte, 1<<20)
	for {
		nx, errx := io.ReadFull(x, bx)
		ny, erry := io.ReadFull(y, by)
		if nx != ny || !bytes.Equal(bx[:nx], by[:ny]) {
			return false, nil
		}
		switch {
		case errx == io.EOF || errx == io.ErrUnexpectedEOF:
			return true, nil
		case errx != nil:
			return false, errx
		case erry != nil:
			return false, erry
		}
	}
}

func statFile(f *os.File) (File, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return File{}, err
	}
	return File{Path: f.Name(), Bytes: st.Size, Modified: st.Mtim.Nano(), Inode: st.Ino}, nil
}
