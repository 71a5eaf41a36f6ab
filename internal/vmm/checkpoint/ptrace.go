package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// tracee is a process traced by the calling thread. Only that thread may use it, because ptrace(2)
// works per thread.
type tracee struct {
	pid       int
	tids      []int // stopped threads; the main thread comes first
	mem       *os.File
	syscallAt uint64 // address of a SYSCALL instruction in the process

	options uintptr
}

// maxTries bounds how often the threads of a process are listed while some of them are exiting.
const maxTries = 100

// errEnded reports that a process or thread exited while it was traced.
var errEnded = errors.New("the process has exited")

// attach stops all threads of a process until detach. If the calling thread exits before, they continue, unless
// options has optionExitKill or killOnExit was called. options are added to the ptrace(2) options that are always set.
func attach(pid int, options uintptr) (_ *tracee, err error) {
	t := &tracee{pid: pid, options: options | optionSysgood}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("attach to process %d: %w", pid, err), t.detach())
		}
	}()
	if err := t.seize(pid); err != nil {
		return nil, err
	}
	more := true
	for tries := 0; more; tries++ { // until no new thread was started meanwhile
		list, err := os.ReadDir(procPath(pid, "task"))
		if err != nil {
			return nil, err
		}
		more = false
		for _, e := range list {
			tid, err := strconv.Atoi(e.Name())
			if err != nil || slices.Contains(t.tids, tid) {
				continue
			}
			if len(t.tids) >= maxThreads {
				return nil, fmt.Errorf("%w: more than %d threads", ErrUnsupported, maxThreads)
			}
			// A thread may exit at any time while the process continues. ptrace returns EPERM for a
			// thread that has almost exited.
			err = t.seize(tid)
			if ends := errors.Is(err, errEnded) || err == unix.EPERM && tries < maxTries; err != nil && !ends {
				return nil, err
			}
			more = true
		}
	}
	t.mem, err = os.OpenFile(procPath(pid, "mem"), os.O_RDWR, 0)
	return t, err
}

// seize stops a thread. It returns errEnded if the thread has exited.
func (t *tracee) seize(tid int) error {
	if _, err := ptrace(ptraceSeize, tid, 0, t.options); err == unix.ESRCH {
		return errEnded
	} else if err != nil {
		return err
	}
	t.tids = append(t.tids, tid)
	// A thread that is about to exit cannot be interrupted, but must still be waited for.
	if _, err := ptrace(ptraceInterrupt, tid, 0, 0); err != nil && err != unix.ESRCH {
		return err
	}
	for {
		ws, err := waitStopped(tid)
		if errors.Is(err, errEnded) {
			t.tids = t.tids[:len(t.tids)-1]
		}
		if err != nil {
			return err
		}
		if ws.TrapCause() == eventStop || int(ws)>>16 == eventStop {
			return nil
		}
		// A signal arrived first and replaced the interruption. Interrupt again and deliver the
		// signal; then the thread stops.
		if _, err := ptrace(ptraceInterrupt, tid, 0, 0); err != nil && err != unix.ESRCH {
			return err
		}
		if _, err := ptrace(ptraceCont, tid, 0, uintptr(ws.StopSignal())); err != nil {
			return err
		}
	}
}

// waitStopped waits until a traced thread stops.
func waitStopped(tid int) (unix.WaitStatus, error) {
	var ws unix.WaitStatus
	for {
		_, err := unix.Wait4(tid, &ws, unix.WALL, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, fmt.Errorf("%w: wait for thread %d: %w", errEnded, tid, err)
		case !ws.Stopped():
			return 0, errEnded
		default:
			return ws, nil
		}
	}
}

// killOnExit says whether the process is killed if the calling thread exits. It must be while the threads have
// registers other than their own, with which they cannot continue.
func (t *tracee) killOnExit(kill bool) error {
	options := t.options
	if kill {
		options |= optionExitKill
	}
	for _, tid := range t.tids {
		if _, err := ptrace(ptraceSetOptions, tid, 0, options); err != nil && err != unix.ESRCH {
			return fmt.Errorf("set options of thread %d: %w", tid, err)
		}
	}
	return nil
}

// detach lets all threads continue.
func (t *tracee) detach() error {
	var all error
	for _, tid := range slices.Backward(t.tids) {
		if _, err := ptrace(ptraceDetach, tid, 0, 0); err != nil && err != unix.ESRCH {
			all = errors.Join(all, fmt.Errorf("detach from thread %d: %w", tid, err))
		}
	}
	t.tids = nil
	if t.mem != nil {
		all = errors.Join(all, t.mem.Close())
		t.mem = nil
	}
	return all
}

// syscall makes a stopped thread run one system call. r are its registers; afterwards they are as
// the system call left them.
func (t *tracee) syscall(tid int, r Regs, number uint64, args ...uint64) (uint64, error) {
	r[rRIP], r[rRAX], r[rOrigRAX] = t.syscallAt, number, notInSyscall
	for i, a := range args {
		r[arguments[i]] = a
	}
	if err := setRegs(tid, &r); err != nil {
		return 0, err
	}
	for range 2 { // the entry and the exit of the system call
		if _, err := ptrace(ptraceSyscall, tid, 0, 0); err != nil {
			return 0, err
		}
		if ws, err := waitStopped(tid); err != nil {
			return 0, err
		} else if ws.StopSignal() != unix.SIGTRAP|0x80 {
			return 0, fmt.Errorf("thread %d stopped by %v in a system call", tid, ws.StopSignal())
		}
	}
	if err := getRegs(tid, &r); err != nil {
		return 0, err
	}
	if v := int64(r[rRAX]); v < 0 && v > -pageSize {
		return 0, fmt.Errorf("system call %d in process %d: %w", number, t.pid, unix.Errno(-v))
	}
	return r[rRAX], nil
}

// scratchAddress returns an address below the part of the stack that a thread uses, beyond the red
// zone of 128 bytes (System V ABI, 3.2.2).
func scratchAddress(r Regs) uint64 { return (r[rRSP] - 1024) &^ 63 }

// findSyscall finds a SYSCALL instruction, which directly precedes the instruction pointer of a
// thread in a system call.
func (t *tracee) findSyscall(all []Regs) error {
	var code [syscallBytes]byte
	for _, r := range all {
		if int64(r[rOrigRAX]) < 0 {
			continue
		}
		at := r[rRIP] - syscallBytes
		if _, err := t.mem.ReadAt(code[:], int64(at)); err == nil && code == [syscallBytes]byte{0x0f, 0x05} {
			t.syscallAt = at
			return nil
		}
	}
	return fmt.Errorf("%w: no thread is in a system call", ErrUnsupported)
}

func (t *tracee) readWord(at uint64) (uint64, error) {
	var b [8]byte
	_, err := t.mem.ReadAt(b[:], int64(at))
	return binary.LittleEndian.Uint64(b[:]), err
}
