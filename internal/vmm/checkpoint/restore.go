package checkpoint

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Plan says what to restore into a stub. Descriptors are given by their numbers in the stub.
type Plan struct {
	Checkpoint  *Checkpoint
	Delta       *Capture // pages that replace those of the pages file, made for Checkpoint; may be nil
	DeltaFile   int      // descriptor of the file that Delta was mapped from by MapDelta; 0: all of Delta is copied
	Content     int      // descriptor of the pages file
	External    int      // descriptor of the external file
	NoReadahead bool     // reads the external file one page at a time (MADV_RANDOM)
	Files       []int    // descriptors of Checkpoint.Files, in the same order
	Roles       map[string]int
	// NewFDs are new eventfds (with counter 0) for EventRole and epoll instances for PollRole. Each
	// is used once. There must be at least as many as the checkpoint has.
	NewFDs       map[string][]int
	InheritedFDs int // number of descriptors that the stub was started with, including 0 to 2
	// Handover is the descriptor of a Unix socket. Received are the roles of the descriptors that Send sent over it
	// after the stub was started, message by message. They are used in place of those in Roles.
	Handover int
	Received [][]string
	// BeforeRun, if not nil, is called after all memory is in place and before anything runs.
	BeforeRun func() error
	Name      string
	Args      []string
	Env       []string
}

// Stub is a process that waits for a checkpoint to be restored into it.
type Stub struct {
	pid  int
	work chan func()
}

// Attach takes control of a running process of StubProgram. The process must not have been attached to
// before. If the stub is closed before a restore, the process is killed without running anything.
func Attach(pid int) *Stub {
	v := &Stub{pid: pid, work: make(chan func())}
	go func() {
		runtime.LockOSThread() // never unlocked: a traced process ends with its tracer
		for f := range v.work {
			f()
		}
	}()
	return v
}

// Close releases the resources of the stub in this process. It must be called once, and not during
// Restore.
func (s *Stub) Close() { close(s.work) }

// IsStub reports whether a process is a stub that nothing was restored into yet.
func IsStub(pid int) (bool, error) {
	maps, err := readMaps(pid)
	if err != nil {
		return false, err
	}
	return len(maps) > 0 && maps[0].start == stubAt, nil
}

// Restore restores a checkpoint into the stub, whose process then continues from the dump. It may
// be called once. If it fails, the process is of no use and the caller must kill it. If ctx ends
// first, the work continues until the process has exited.
func (s *Stub) Restore(ctx context.Context, p Plan) error {
	if err := p.Checkpoint.Validate(); err != nil {
		return err
	}
	done := make(chan error, 1)
	s.work <- func() { done <- restoreProcess(s.pid, p) }
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("restore process: %w", err)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func restoreProcess(pid int, p Plan) (err error) {
	t, err := attach(pid, optionClone|optionExitKill)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			// Otherwise the process would run half restored once it is detached.
			err = errors.Join(err, unix.Kill(pid, unix.SIGKILL))
		}
		err = errors.Join(err, t.detach())
	}()
	b := restorer{t: t, plan: p, table: syscallTable{at: tableAt}}
	if err := b.prepareStub(); err != nil {
		return err
	}
	if err := b.receiveFDs(); err != nil {
		return err
	}
	if err := b.buildTable(); err != nil {
		return err
	}
	if err := b.execute(); err != nil {
		return err
	}
	return b.finish()
}

// restorer restores one process.
type restorer struct {
	t        *tracee
	plan     Plan
	stubRegs Regs // registers of the waiting stub
	table    syscallTable
	spans    []Span // of the delta, to be copied
	pages    [][]byte
}

// prepareStub checks that the process is a stub and allocates memory in it for the table.
func (r *restorer) prepareStub() error {
	if err := getRegs(r.t.pid, &r.stubRegs); err != nil {
		return err
	}
	if len(r.t.tids) != 1 || r.stubRegs[rRIP]&^(pageSize-1) != stubAt {
		return errors.New("the process is not a restore stub")
	}
	state, err := getState(r.t.pid)
	if err != nil {
		return err
	}
	for _, th := range r.plan.Checkpoint.Threads {
		if len(th.XSave) != len(state) {
			return fmt.Errorf(
				"the checkpoint has %d bytes of vector registers, this processor has %d",
				len(th.XSave),
				len(state),
			)
		}
	}
	r.t.syscallAt = stubAt + pauseLoop + 5
	for _, m := range [][2]uint64{{tableAt, tableBytes}, {argsAt, argsBytes}} {
		const flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_FIXED
		if _, err := r.t.syscall(r.t.pid, r.stubRegs, callMmap, m[0], m[1], unix.PROT_READ|unix.PROT_WRITE, flags,
			^uint64(0), 0); err != nil {
			return err
		}
	}
	return nil
}

// buildTable fills the system call table.
func (r *restorer) buildTable() error {
	for _, step := range []func() error{r.stageFDs, r.moveKernelMappings, r.mapVMAs, r.mapDelta, r.placeKernelMappings,
		r.setMM, r.restoreFDs, r.restoreSignals, r.createThreads} {
		if err := step(); err != nil {
			return err
		}
	}
	r.table.call(callCloseFrom, fdStage, 1<<32-1, 0)
	return nil
}

// stageFDs moves the inherited descriptors to high numbers.
func (r *restorer) stageFDs() error {
	for n := range r.plan.InheritedFDs {
		r.table.call(callDup3, uint64(n), uint64(fdStage+n), unix.O_CLOEXEC)
	}
	r.table.call(callCloseFrom, 3, fdStage-1, 0)
	return nil
}

func stagedFD(n int) uint64 { return uint64(fdStage + n) }

// kernelMappings returns the kernel's mappings in the stub and in the checkpoint, in the same
// order.
func (r *restorer) kernelMappings() (here, there []KernelMapping, err error) {
	maps, err := readMaps(r.t.pid)
	if err != nil {
		return nil, nil, err
	}
	for _, m := range maps {
		if m.ofKernel() && m.name != "[vsyscall]" {
			here = append(here, KernelMapping{m.name, m.start, m.end})
		}
	}
	there = r.plan.Checkpoint.KernelMappings
	same := len(here) == len(there)
	for i := 0; same && i < len(here); i++ {
		same = here[i].Name == there[i].Name && here[i].End-here[i].Start == there[i].End-there[i].Start
	}
	if !same {
		return nil, nil, errors.New("the kernel's mappings differ from those in the checkpoint")
	}
	return here, there, nil
}

const moveFlags = unix.MREMAP_MAYMOVE | unix.MREMAP_FIXED

// moveKernelMappings moves the kernel's mappings out of the way and unmaps everything else,
// including the stub's stack.
func (r *restorer) moveKernelMappings() error {
	here, _, err := r.kernelMappings()
	if err != nil {
		return err
	}
	at := uint64(kernelMappingsAt)
	for _, k := range here {
		n := k.End - k.Start
		if at+n > minAddress {
			return errors.New("the kernel's mappings are too large")
		}
		r.table.call(callMremap, k.Start, n, n, moveFlags, at)
		at += n
	}
	r.table.call(callMunmap, minAddress, maxAddress-minAddress)
	return nil
}

// placeKernelMappings moves the kernel's mappings to their addresses in the checkpoint.
func (r *restorer) placeKernelMappings() error {
	at := uint64(kernelMappingsAt)
	for _, k := range r.plan.Checkpoint.KernelMappings {
		n := k.End - k.Start
		r.table.call(callMremap, at, n, n, moveFlags, k.Start)
		at += n
	}
	return nil
}

// stackBytes is the minimum size of the main thread's stack: the kernel's default.
const stackBytes = 8 << 20

func (r *restorer) mapVMAs() error {
	cp := r.plan.Checkpoint
	const fixed = unix.MAP_PRIVATE | unix.MAP_FIXED | unix.MAP_NORESERVE
	const nothing = ^uint64(0)
	grown := false
	for i, a := range cp.VMAs {
		n, prot := a.End-a.Start, uint64(a.Prot)
		if a.Stack && !grown {
			grown = true
			low := max(minAddress, a.Start-min(a.Start, stackBytes))
			if i > 0 {
				low = max(low, cp.VMAs[i-1].End+pageSize)
			}
			if low < a.Start {
				r.table.call(callMmap, low, a.Start-low, prot, fixed|unix.MAP_ANONYMOUS, nothing, 0)
			}
		}
		switch a.Backing {
		case Zero:
			r.table.call(callMmap, a.Start, n, prot, fixed|unix.MAP_ANONYMOUS, nothing, 0)
		case Stored:
			r.table.call(callMmap, a.Start, n, prot, fixed, stagedFD(r.plan.Content), uint64(a.Offset))
		case External:
			r.table.call(callMmap, a.Start, n, prot, fixed, stagedFD(r.plan.External), uint64(a.Offset))
			if r.plan.NoReadahead {
				r.table.call(callMadvise, a.Start, n, unix.MADV_RANDOM)
			}
		case Mapped:
			if a.File >= len(r.plan.Files) {
				return fmt.Errorf("file %d of the checkpoint is missing", a.File)
			}
			r.table.call(callMmap, a.Start, n, prot, fixed, stagedFD(r.plan.Files[a.File]), uint64(a.Offset))
		default:
			return fmt.Errorf("area with unknown backing %q", a.Backing)
		}
	}
	return nil
}

// Limits on the parts of a delta that are mapped: a shorter part is copied, because a VMA costs more than its pages.
const (
	minMapped = gap
	maxMapped = 256 // parts
)

// mapDelta maps the long parts of the delta from its file, instead of the pages below, and leaves the others to
// writeDelta.
func (r *restorer) mapDelta() error {
	if r.plan.Delta == nil {
		return nil
	}
	r.spans, r.pages = r.plan.Delta.spans, r.plan.Delta.pages
	if r.plan.DeltaFile == 0 {
		return nil
	}
	var spans []Span
	var pages [][]byte
	offset, mapped, areas := uint64(0), 0, r.plan.Checkpoint.VMAs
	for i, s := range r.spans {
		n := s.End - s.Start
		for len(areas) > 0 && areas[0].End <= s.Start {
			areas = areas[1:]
		}
		if n >= minMapped && mapped < maxMapped && len(areas) > 0 && areas[0].mapsDelta(s) {
			const fixed = unix.MAP_PRIVATE | unix.MAP_FIXED | unix.MAP_NORESERVE
			r.table.call(callMmap, s.Start, n, uint64(areas[0].Prot), fixed, stagedFD(r.plan.DeltaFile), offset)
			mapped++
		} else {
			spans, pages = append(spans, s), append(pages, r.pages[i])
		}
		offset += n
	}
	r.spans, r.pages = spans, pages
	return nil
}

// mapsDelta reports whether a part of a delta can be mapped in place of the VMA's own content. A dump takes a file that
// the process cannot write for one of the host's programs, and the stack has to grow.
func (a *VMA) mapsDelta(s Span) bool {
	return a.Start <= s.Start && s.End <= a.End && a.Prot&unix.PROT_WRITE != 0 && !a.Stack && a.Backing != External
}

// setMM sets the layout of the address space in the kernel (prctl(2), PR_SET_MM), and the name and
// arguments that others see.
func (r *restorer) setMM() error {
	var text []byte
	for _, s := range append(slices.Clone(r.plan.Args), r.plan.Env...) {
		text = append(append(text, s...), 0)
	}
	args := 0
	for _, s := range r.plan.Args {
		args += len(s) + 1
	}
	if len(text) > argsBytes {
		return fmt.Errorf("%d bytes of arguments and environment, at most %d fit", len(text), argsBytes)
	}
	if _, err := r.t.mem.WriteAt(text, argsAt); err != nil {
		return err
	}
	l := r.plan.Checkpoint.Layout
	const setMM, mapMM, noFile = 35, 14, 1<<32 - 1
	mm := []uint64{
		l[0], l[1], l[2], l[3], l[4], l[5], l[6],
		argsAt, argsAt + uint64(args), argsAt + uint64(args), argsAt + uint64(len(text)),
		0, noFile << 32, // no auxiliary vector; the executable file of the stub remains
	}
	at := r.table.addWords(mm...)
	r.table.call(callPrctl, setMM, mapMM, at, uint64(8*len(mm)), 0)
	const setName = 15
	name := r.table.addBytes(append([]byte(r.plan.Name[:min(len(r.plan.Name), 15)]), 0))
	r.table.call(callPrctl, setName, name, 0, 0, 0)
	return nil
}

// restoreFDs gives each descriptor number of the checkpoint the file for its role.
func (r *restorer) restoreFDs() error {
	fresh := maps.Clone(r.plan.NewFDs)
	for _, fd := range r.plan.Checkpoint.FDs {
		if fd.Number < 3 {
			continue // kept as the stub has them
		}
		n, ok := r.plan.Roles[fd.Role]
		if list := fresh[fd.Role]; len(list) > 0 {
			n, fresh[fd.Role], ok = list[0], list[1:], true
		}
		if !ok {
			return fmt.Errorf("no file for descriptor %d with role %q", fd.Number, fd.Role)
		}
		r.table.call(callDup3, stagedFD(n), uint64(fd.Number), unix.O_CLOEXEC)
		if fd.NonBlocking {
			r.table.call(callFcntl, uint64(fd.Number), unix.F_SETFL, unix.O_NONBLOCK)
		}
		if fd.Role == EventRole && fd.Value != 0 {
			r.table.call(callWrite, uint64(fd.Number), r.table.addWords(fd.Value), 8)
		}
	}
	return nil
}

// notifies reports whether a seccomp filter refers calls to the process that installed it
// (seccomp_unotify(2)). That process belongs to the surroundings of the dumped process, as its jail
// does, and the stub has its own.
func notifies(filter []byte) bool {
	for ; len(filter) >= filterInstruction; filter = filter[filterInstruction:] {
		code, k := binary.LittleEndian.Uint16(filter), binary.LittleEndian.Uint32(filter[4:])
		if code == unix.BPF_RET|unix.BPF_K && k&unix.SECCOMP_RET_ACTION_FULL == unix.SECCOMP_RET_USER_NOTIF {
			return true
		}
	}
	return false
}

// restoreSignals sets the signal actions and adds the seccomp filters that the stub does not have
// yet.
func (r *restorer) restoreSignals() error {
	for _, a := range r.plan.Checkpoint.SigActions {
		if a.Signal == int(unix.SIGKILL) || a.Signal == int(unix.SIGSTOP) {
			continue
		}
		r.table.call(callSigaction, uint64(a.Signal), r.table.addBytes(a.Data[:]), 0, sigsetBytes)
	}
	have, err := seccompFilters(r.t.pid)
	if err != nil {
		return err
	}
	r.table.call(callPrctl, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	for _, f := range r.plan.Checkpoint.Filters {
		if len(f) == 0 || len(f)%filterInstruction != 0 {
			return errors.New("a seccomp filter is damaged")
		}
		if notifies(f) || slices.ContainsFunc(have, func(h []byte) bool { return bytes.Equal(f, h) }) {
			continue
		}
		code := r.table.addBytes(f)
		prog := r.table.addWords(uint64(len(f)/filterInstruction), code)
		r.table.call(callSeccomp, unix.SECCOMP_SET_MODE_FILTER, 0, prog)
	}
	return nil
}

func (r *restorer) createThreads() error {
	// These are exactly the flags and arguments of the C library, because seccomp filters compare
	// them.
	const flags = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_THREAD |
		unix.CLONE_SYSVSEM | unix.CLONE_SETTLS | unix.CLONE_PARENT_SETTID | unix.CLONE_CHILD_CLEARTID
	for _, th := range r.plan.Checkpoint.Threads[1:] {
		r.table.call(callClone, flags, tableAt+tableBytes-64, th.ClearTID, th.ClearTID, th.Regs[rFSBase])
	}
	return nil
}

// execute makes the stub run the table.
func (r *restorer) execute() error {
	raw, err := r.table.encode()
	if err != nil {
		return err
	}
	if _, err := r.t.mem.WriteAt(raw, tableAt); err != nil {
		return err
	}
	regs := r.stubRegs
	regs[rRIP], regs[rRBX], regs[rR12] = stubAt+syscallLoop, tableAt, uint64(len(r.table.calls))
	regs[rOrigRAX] = notInSyscall
	if err := setRegs(r.t.pid, &regs); err != nil {
		return err
	}
	for {
		if _, err := ptrace(ptraceCont, r.t.pid, 0, 0); err != nil {
			return err
		}
		ws, err := waitStopped(r.t.pid)
		if err != nil {
			return err
		}
		if int(ws)>>16 == eventClone {
			tid, err := eventMessage(r.t.pid)
			if err != nil {
				return err
			}
			if _, err := waitStopped(int(tid)); err != nil {
				return err
			}
			r.t.tids = append(r.t.tids, int(tid))
			continue
		}
		if ws.StopSignal() != unix.SIGTRAP || int(ws)>>16 != 0 {
			return fmt.Errorf("the restore stub was stopped by %v", ws.StopSignal())
		}
		break
	}
	if _, err := r.t.mem.ReadAt(raw, tableAt); err != nil {
		return err
	}
	return r.table.check(raw)
}

// finish writes the delta pages, unmaps the stub's own memory and sets the registers of the
// threads, which run after the detach.
func (r *restorer) finish() error {
	cp := r.plan.Checkpoint
	if err := r.writeDelta(r.spans, r.pages); err != nil {
		return err
	}
	if r.plan.BeforeRun != nil {
		if err := r.plan.BeforeRun(); err != nil {
			return err
		}
	}
	if len(r.t.tids) != len(cp.Threads) {
		return fmt.Errorf("only %d of %d threads were created", len(r.t.tids), len(cp.Threads))
	}
	all := make([]Regs, len(cp.Threads))
	for i, th := range cp.Threads {
		all[i] = th.Regs
	}
	if at := cp.Threads[0].ClearTID; at != 0 { // for the other threads the kernel has written it
		var id [4]byte
		inside, err := namespacePID(r.t.pid)
		if err != nil {
			return err
		}
		binary.LittleEndian.PutUint32(id[:], uint32(inside))
		if _, err := r.t.mem.WriteAt(id[:], int64(at)); err != nil {
			return err
		}
	}
	if err := r.t.findSyscall(all); err != nil {
		return err
	}
	for _, m := range [][2]uint64{{stubAt, pageSize}, {tableAt, tableBytes}} {
		if _, err := r.t.syscall(r.t.pid, all[0], callMunmap, m[0], m[1]); err != nil {
			return err
		}
	}
	for i, th := range cp.Threads {
		tid, regs := r.t.tids[i], th.Regs.restartSyscall()
		if err := errors.Join(setState(tid, th.XSave), setMask(tid, th.SigMask), setRegs(tid, &regs)); err != nil {
			return fmt.Errorf("registers of thread %d: %w", i, err)
		}
	}
	return nil
}

// writeDelta writes pages to their spans. It uses few calls where the process itself can write, and
// /proc/PID/mem elsewhere.
func (r *restorer) writeDelta(spans []Span, pages [][]byte) error {
	areas := r.plan.Checkpoint.VMAs
	for len(spans) > 0 {
		n := 0
		for ; n < len(spans); n++ {
			for len(areas) > 0 && areas[0].End <= spans[n].Start {
				areas = areas[1:]
			}
			if len(areas) == 0 || areas[0].Start > spans[n].Start || areas[0].End < spans[n].End ||
				areas[0].Prot&unix.PROT_WRITE == 0 {
				break
			}
		}
		if err := writePages(r.t.pid, spans[:n], pages[:n]); err != nil {
			return err
		}
		if spans, pages = spans[n:], pages[n:]; len(spans) == 0 {
			break
		}
		if _, err := r.t.mem.WriteAt(pages[0], int64(spans[0].Start)); err != nil {
			return fmt.Errorf("content at %x: %w", spans[0].Start, err)
		}
		spans, pages = spans[1:], pages[1:]
	}
	return nil
}

// namespacePID returns the ID of a process in its own PID namespace (proc_pid_status(5)).
func namespacePID(pid int) (int, error) {
	data, err := os.ReadFile(procPath(pid, "status"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if ids, ok := strings.CutPrefix(line, "NSpid:"); ok {
			f := strings.Fields(ids)
			return strconv.Atoi(f[len(f)-1])
		}
	}
	return pid, nil
}
