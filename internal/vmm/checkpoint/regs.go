package checkpoint

// Regs are the general-purpose registers of a thread: struct user_regs_struct (sys/user.h).
type Regs [27]uint64

// Indexes in Regs.
const (
	rR12     = 3
	rRBX     = 5
	rR10     = 7
	rR9      = 8
	rR8      = 9
	rRAX     = 10
	rRDX     = 12
	rRSI     = 13
	rRDI     = 14
	rOrigRAX = 15
	rRIP     = 16
	rRSP     = 19
	rFSBase  = 21
)

// arguments are the registers that hold the arguments of a system call (syscall(2)).
var arguments = [6]int{rRDI, rRSI, rRDX, rR10, rR8, rR9}

// notInSyscall as orig_rax says that the thread is in no system call, so that the kernel restarts
// none.
const notInSyscall = ^uint64(0)

// The kernel's internal errors of an interrupted call that is to be restarted (linux/errno.h).
const (
	restartSys     = 512
	restartNoIntr  = 513
	restartNoHand  = 514
	restartByBlock = 516
)

// restartSyscall returns registers with which a thread repeats the system call that it was
// interrupted in. A call with a timeout starts with its full timeout again.
func (r Regs) restartSyscall() Regs {
	if int64(r[rOrigRAX]) >= 0 {
		switch -int64(r[rRAX]) {
		case restartSys, restartNoIntr, restartNoHand, restartByBlock:
			r[rRIP] -= syscallBytes
			r[rRAX] = r[rOrigRAX]
		}
	}
	r[rOrigRAX] = notInSyscall
	return r
}

// syscallBytes is the length of the SYSCALL instruction.
const syscallBytes = 2

// System call numbers on amd64 (asm/unistd_64.h).
const (
	callWrite     = 1
	callMmap      = 9
	callMunmap    = 11
	callSigaction = 13
	callMremap    = 25
	callMadvise   = 28
	callPause     = 34
	callRecvmsg   = 47
	callClone     = 56
	callFcntl     = 72
	callPrctl     = 157
	callDup3      = 292
	callSeccomp   = 317
	callCloseFrom = 436
)
