package checkpoint

import (
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

// Plan is what a vehicle becomes. Descriptors are given by their numbers in the vehicle.
type Plan struct {
	Image   *Image
	Over    *Capture // content over that of the image; nil: none. Its image is Image.
	Content int      // descriptor of the file with the stored content
	Outside int      // of the file that is mapped and not part of the image
	Single  bool     // each page of that file is read alone when it is touched, and nothing around it
	Files   []int    // of Image.Files, in their order
	Roles   map[string]int
	// Fresh are descriptors for EventRole (counters that are 0) and PollRole, each used once; at least as many as
	// the image has.
	Fresh map[string][]int
	Given int // how many descriptors the vehicle was started with, those below 3 included
	// Before, if not nil, is called when all memory is in its place and nothing runs yet.
	Before func() error
	Name   string
	Args   []string
	Env    []string
}

// Vehicle is a process on its way to become another one.
type Vehicle struct {
	pid  int
	work chan func()
}

// Attach takes hold of a process of Program, which has to be started already and was not attached to before. It
// ends, without a chance to do anything, when the vehicle is closed before it became something.
func Attach(pid int) *Vehicle {
	v := &Vehicle{pid: pid, work: make(chan func())}
	go func() {
		runtime.LockOSThread() // for ever: a process that is traced ends with its tracer
		for f := range v.work {
			f()
		}
	}()
	return v
}

// Close ends what the vehicle needed of ours. It is called once, and not while Become runs.
func (v *Vehicle) Close() { close(v.work) }

// Waiting tells whether a process is a vehicle that has not become anything.
func Waiting(pid int) (bool, error) {
	maps, err := readMaps(pid)
	if err != nil {
		return false, err
	}
	return len(maps) > 0 && maps[0].start == vehicleCode, nil
}

// Become makes the process of a vehicle go on where that of the image stood. It is called once. When it fails
// the process is of no use; the caller ends it. When ctx ends first the work goes on until the process has ended.
func (v *Vehicle) Become(ctx context.Context, p Plan) error {
	if err := p.Image.Check(); err != nil {
		return err
	}
	done := make(chan error, 1)
	v.work <- func() { done <- become(v.pid, p) }
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("make a process of its image: %w", err)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func become(pid int, p Plan) (err error) {
	t, err := attach(pid, optionClone)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			// Let go of, it would run on as it is: half made.
			err = errors.Join(err, unix.Kill(pid, unix.SIGKILL))
		}
		err = errors.Join(err, t.detach())
	}()
	b := builder{t: t, plan: p, table: table{at: tableAt}}
	if err := b.start(); err != nil {
		return err
	}
	if err := b.lay(); err != nil {
		return err
	}
	if err := b.run(); err != nil {
		return err
	}
	return b.finish()
}

// builder makes one process.
type builder struct {
	t     *tracee
	plan  Plan
	own   Regs // of the vehicle while it waits
	table table
}

// start makes sure that the process is a vehicle, and gives it memory for the table.
func (b *builder) start() error {
	if err := getRegs(b.t.pid, &b.own); err != nil {
		return err
	}
	if len(b.t.tids) != 1 || b.own[rRIP]&^(pageSize-1) != vehicleCode {
		return errors.New("it is no vehicle")
	}
	state, err := getState(b.t.pid)
	if err != nil {
		return err
	}
	for _, th := range b.plan.Image.Threads {
		if len(th.State) != len(state) {
			return fmt.Errorf(
				"the image has %d bytes of vector registers, and this processor %d",
				len(th.State),
				len(state),
			)
		}
	}
	b.t.via = vehicleCode + waiting + 5
	for _, m := range [][2]uint64{{tableAt, tableBytes}, {names, namesBytes}} {
		const flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_FIXED
		if _, err := b.t.call(b.t.pid, b.own, callMmap, m[0], m[1], unix.PROT_READ|unix.PROT_WRITE, flags, ^uint64(0), 0); err != nil {
			return err
		}
	}
	return nil
}

// lay fills the table.
func (b *builder) lay() error {
	for _, step := range []func() error{b.stageFiles, b.moveKernels, b.mapAreas, b.placeKernels, b.describe, b.descriptors, b.signals, b.threads} {
		if err := step(); err != nil {
			return err
		}
	}
	b.table.call(callCloseFrom, stage, 1<<32-1, 0)
	return nil
}

// stageFiles moves what the vehicle was given out of the way.
func (b *builder) stageFiles() error {
	for n := range b.plan.Given {
		b.table.call(callDup3, uint64(n), uint64(stage+n), unix.O_CLOEXEC)
	}
	b.table.call(callCloseFrom, 3, stage-1, 0)
	return nil
}

func staged(n int) uint64 { return uint64(stage + n) }

// kernels pairs the kernel's areas here with where they are in the image.
func (b *builder) kernels() (here, there []KernelMap, err error) {
	maps, err := readMaps(b.t.pid)
	if err != nil {
		return nil, nil, err
	}
	for _, m := range maps {
		if m.kernels() && m.name != "[vsyscall]" {
			here = append(here, KernelMap{m.name, m.start, m.end})
		}
	}
	there = b.plan.Image.Kernel
	same := len(here) == len(there)
	for i := 0; same && i < len(here); i++ {
		same = here[i].Name == there[i].Name && here[i].End-here[i].Start == there[i].End-there[i].Start
	}
	if !same {
		return nil, nil, errors.New("the kernel's own areas are others than in the image")
	}
	return here, there, nil
}

const moveFlags = unix.MREMAP_MAYMOVE | unix.MREMAP_FIXED

// moveKernels takes the kernel's areas to where nothing else will be, and the vehicle's stack away.
func (b *builder) moveKernels() error {
	here, _, err := b.kernels()
	if err != nil {
		return err
	}
	at := uint64(kernelsAt)
	for _, k := range here {
		n := k.End - k.Start
		if at+n > reserved {
			return errors.New("the kernel's own areas are too large")
		}
		b.table.call(callMremap, k.Start, n, n, moveFlags, at)
		at += n
	}
	b.table.call(callMunmap, reserved, top-reserved)
	return nil
}

// placeKernels takes them to where they are in the image.
func (b *builder) placeKernels() error {
	at := uint64(kernelsAt)
	for _, k := range b.plan.Image.Kernel {
		n := k.End - k.Start
		b.table.call(callMremap, at, n, n, moveFlags, k.Start)
		at += n
	}
	return nil
}

// stackBytes is how much memory the main thread's stack has at least: what the kernel gives by default.
const stackBytes = 8 << 20

func (b *builder) mapAreas() error {
	im := b.plan.Image
	const fixed = unix.MAP_PRIVATE | unix.MAP_FIXED | unix.MAP_NORESERVE
	const nothing = ^uint64(0)
	grown := false
	for i, a := range im.Areas {
		n, prot := a.End-a.Start, uint64(a.Prot)
		if a.Stack && !grown {
			grown = true
			low := max(reserved, a.Start-min(a.Start, stackBytes))
			if i > 0 {
				low = max(low, im.Areas[i-1].End+pageSize)
			}
			if low < a.Start {
				b.table.call(callMmap, low, a.Start-low, prot, fixed|unix.MAP_ANONYMOUS, nothing, 0)
			}
		}
		switch a.Backing {
		case Zero:
			b.table.call(callMmap, a.Start, n, prot, fixed|unix.MAP_ANONYMOUS, nothing, 0)
		case Stored:
			b.table.call(callMmap, a.Start, n, prot, fixed, staged(b.plan.Content), uint64(a.Offset))
		case Outside:
			b.table.call(callMmap, a.Start, n, prot, fixed, staged(b.plan.Outside), uint64(a.Offset))
			if b.plan.Single {
				b.table.call(callMadvise, a.Start, n, unix.MADV_RANDOM)
			}
		case Mapped:
			if a.File >= len(b.plan.Files) {
				return fmt.Errorf("file %d of the image is not there", a.File)
			}
			b.table.call(callMmap, a.Start, n, prot, fixed, staged(b.plan.Files[a.File]), uint64(a.Offset))
		default:
			return fmt.Errorf("area with backing %q", a.Backing)
		}
	}
	return nil
}

// describe tells the kernel about the layout (prctl(2), PR_SET_MM), and what others shall see of the process.
func (b *builder) describe() error {
	var text []byte
	for _, s := range append(slices.Clone(b.plan.Args), b.plan.Env...) {
		text = append(append(text, s...), 0)
	}
	args := 0
	for _, s := range b.plan.Args {
		args += len(s) + 1
	}
	if len(text) > namesBytes {
		return fmt.Errorf("%d bytes of arguments and environment, at most %d fit", len(text), namesBytes)
	}
	if _, err := b.t.mem.WriteAt(text, names); err != nil {
		return err
	}
	l := b.plan.Image.Layout
	const setMM, mapMM, noFile = 35, 14, 1<<32 - 1
	mm := []uint64{
		l[0], l[1], l[2], l[3], l[4], l[5], l[6],
		names, names + uint64(args), names + uint64(args), names + uint64(len(text)),
		0, noFile << 32, // no auxiliary vector; the program's file stays
	}
	at := b.table.words(mm...)
	b.table.call(callPrctl, setMM, mapMM, at, uint64(8*len(mm)), 0)
	const setName = 15
	name := b.table.bytes(append([]byte(b.plan.Name[:min(len(b.plan.Name), 15)]), 0))
	b.table.call(callPrctl, setName, name, 0, 0, 0)
	return nil
}

// descriptors gives each number of the image what it stands for.
func (b *builder) descriptors() error {
	fresh := maps.Clone(b.plan.Fresh)
	for _, fd := range b.plan.Image.FDs {
		if fd.Number < 3 {
			continue // as the vehicle has them
		}
		n, ok := b.plan.Roles[fd.Role]
		if list := fresh[fd.Role]; len(list) > 0 {
			n, fresh[fd.Role], ok = list[0], list[1:], true
		}
		if !ok {
			return fmt.Errorf("nothing is there for descriptor %d, %s", fd.Number, fd.Role)
		}
		b.table.call(callDup3, staged(n), uint64(fd.Number), unix.O_CLOEXEC)
		if fd.NonBlocking {
			b.table.call(callFcntl, uint64(fd.Number), unix.F_SETFL, unix.O_NONBLOCK)
		}
		if fd.Role == EventRole && fd.Value != 0 {
			b.table.call(callWrite, uint64(fd.Number), b.table.words(fd.Value), 8)
		}
	}
	return nil
}

// signals sets actions, and the filters that the vehicle does not have yet.
func (b *builder) signals() error {
	for _, a := range b.plan.Image.Actions {
		if a.Signal == int(unix.SIGKILL) || a.Signal == int(unix.SIGSTOP) {
			continue
		}
		b.table.call(callSigaction, uint64(a.Signal), b.table.bytes(a.Data[:]), 0, sigsetBytes)
	}
	have, err := filters(b.t.pid)
	if err != nil {
		return err
	}
	all := b.plan.Image.Filters
	if len(have) > len(all) {
		return errors.New("the vehicle has more filters of system calls than the image")
	}
	b.table.call(callPrctl, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	for _, f := range all[len(have):] {
		if len(f) == 0 || len(f)%filterInstruction != 0 {
			return errors.New("a filter of system calls is damaged")
		}
		code := b.table.bytes(f)
		prog := b.table.words(uint64(len(f)/filterInstruction), code)
		b.table.call(callSeccomp, unix.SECCOMP_SET_MODE_FILTER, 0, prog)
	}
	return nil
}

func (b *builder) threads() error {
	// The very flags and arguments of the C library: filters compare them.
	const flags = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_THREAD |
		unix.CLONE_SYSVSEM | unix.CLONE_SETTLS | unix.CLONE_PARENT_SETTID | unix.CLONE_CHILD_CLEARTID
	for _, th := range b.plan.Image.Threads[1:] {
		b.table.call(callClone, flags, tableAt+tableBytes-64, th.Clear, th.Clear, th.Regs[rFSBase])
	}
	return nil
}

// run lets the vehicle do all that is in the table.
func (b *builder) run() error {
	raw, err := b.table.encode()
	if err != nil {
		return err
	}
	if _, err := b.t.mem.WriteAt(raw, tableAt); err != nil {
		return err
	}
	r := b.own
	r[rRIP], r[rRBX], r[rR12], r[rOrigRAX] = vehicleCode+calling, tableAt, uint64(len(b.table.calls)), noCall
	if err := setRegs(b.t.pid, &r); err != nil {
		return err
	}
	for {
		if _, err := ptrace(ptraceCont, b.t.pid, 0, 0); err != nil {
			return err
		}
		ws, err := wait(b.t.pid)
		if err != nil {
			return err
		}
		if int(ws)>>16 == eventClone {
			tid, err := eventMessage(b.t.pid)
			if err != nil {
				return err
			}
			if _, err := wait(int(tid)); err != nil {
				return err
			}
			b.t.tids = append(b.t.tids, int(tid))
			continue
		}
		if ws.StopSignal() != unix.SIGTRAP || int(ws)>>16 != 0 {
			return fmt.Errorf("the vehicle stopped by %v", ws.StopSignal())
		}
		break
	}
	if _, err := b.t.mem.ReadAt(raw, tableAt); err != nil {
		return err
	}
	return b.table.check(raw)
}

// finish writes what lies over the content, takes the vehicle's own memory away and sets the threads going.
func (b *builder) finish() error {
	im := b.plan.Image
	if b.plan.Over != nil {
		if err := b.over(b.plan.Over.spans, b.plan.Over.pages); err != nil {
			return err
		}
	}
	if b.plan.Before != nil {
		if err := b.plan.Before(); err != nil {
			return err
		}
	}
	if len(b.t.tids) != len(im.Threads) {
		return fmt.Errorf("%d threads of %d were started", len(b.t.tids), len(im.Threads))
	}
	all := make([]Regs, len(im.Threads))
	for i, th := range im.Threads {
		all[i] = th.Regs
	}
	if at := im.Threads[0].Clear; at != 0 { // what the kernel wrote for the others
		var id [4]byte
		inside, err := insideID(b.t.pid)
		if err != nil {
			return err
		}
		binary.LittleEndian.PutUint32(id[:], uint32(inside))
		if _, err := b.t.mem.WriteAt(id[:], int64(at)); err != nil {
			return err
		}
	}
	if err := b.t.findCall(all); err != nil {
		return err
	}
	for _, m := range [][2]uint64{{vehicleCode, pageSize}, {tableAt, tableBytes}} {
		if _, err := b.t.call(b.t.pid, all[0], callMunmap, m[0], m[1]); err != nil {
			return err
		}
	}
	for i, th := range im.Threads {
		tid, r := b.t.tids[i], th.Regs.again()
		if err := errors.Join(setState(tid, th.State), setMask(tid, th.Mask), setRegs(tid, &r)); err != nil {
			return fmt.Errorf("registers of thread %d: %w", i, err)
		}
	}
	return nil
}

// over writes pages to where spans say: where the process can write itself with few calls, elsewhere as its tracer.
func (b *builder) over(spans []Span, pages [][]byte) error {
	areas := b.plan.Image.Areas
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
		if err := writePages(b.t.pid, spans[:n], pages[:n]); err != nil {
			return err
		}
		if spans, pages = spans[n:], pages[n:]; len(spans) == 0 {
			break
		}
		if _, err := b.t.mem.WriteAt(pages[0], int64(spans[0].Start)); err != nil {
			return fmt.Errorf("content at %x: %w", spans[0].Start, err)
		}
		spans, pages = spans[1:], pages[1:]
	}
	return nil
}

// insideID is the id of a process in its own pid namespace (proc_pid_status(5)).
func insideID(pid int) (int, error) {
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
