package checkpoint

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Constants of ptrace(2) that package unix does not define (linux/ptrace.h).
const (
	ptraceCont        = 7
	ptraceGetRegs     = 12
	ptraceSetRegs     = 13
	ptraceDetach      = 17
	ptraceSyscall     = 24
	ptraceSetOptions  = 0x4200
	ptraceGetEventMsg = 0x4201
	ptraceGetRegset   = 0x4204
	ptraceSetRegset   = 0x4205
	ptraceSeize       = 0x4206
	ptraceInterrupt   = 0x4207
	ptraceGetSigmask  = 0x420a
	ptraceSetSigmask  = 0x420b
	ptraceSeccomp     = 0x420c
	xstateRegset      = 0x202
	optionSysgood     = 0x1
	optionClone       = 0x8
	optionExitKill    = 0x100000
	eventClone        = 3
	eventStop         = 128
	filterInstruction = 8
	maxFilterInstr    = 4096
	maxState          = 16384
	sigsetBytes       = 8
	kernelActionBytes = 32
)

func ptrace(request, tid int, addr, data uintptr) (int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, uintptr(request), uintptr(tid), addr, data, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

func getRegs(tid int, r *Regs) error {
	_, err := ptrace(ptraceGetRegs, tid, 0, uintptr(unsafe.Pointer(r)))
	return err
}

func setRegs(tid int, r *Regs) error {
	_, err := ptrace(ptraceSetRegs, tid, 0, uintptr(unsafe.Pointer(r)))
	return err
}

func getState(tid int) ([]byte, error) {
	buf := make([]byte, maxState)
	iov := unix.Iovec{Base: &buf[0], Len: maxState}
	if _, err := ptrace(ptraceGetRegset, tid, xstateRegset, uintptr(unsafe.Pointer(&iov))); err != nil {
		return nil, err
	}
	return buf[:min(iov.Len, maxState)], nil
}

func setState(tid int, state []byte) error {
	if len(state) == 0 {
		return nil
	}
	iov := unix.Iovec{Base: &state[0], Len: uint64(len(state))}
	_, err := ptrace(ptraceSetRegset, tid, xstateRegset, uintptr(unsafe.Pointer(&iov)))
	return err
}

func getMask(tid int) (uint64, error) {
	var mask uint64
	_, err := ptrace(ptraceGetSigmask, tid, sigsetBytes, uintptr(unsafe.Pointer(&mask)))
	return mask, err
}

func setMask(tid int, mask uint64) error {
	_, err := ptrace(ptraceSetSigmask, tid, sigsetBytes, uintptr(unsafe.Pointer(&mask)))
	return err
}

func eventMessage(tid int) (uint64, error) {
	var msg uint64
	_, err := ptrace(ptraceGetEventMsg, tid, 0, uintptr(unsafe.Pointer(&msg)))
	return msg, err
}

// getFilter returns the seccomp filter with the given index. It returns ENOENT if there are no
// more.
func getFilter(tid, index int) ([]byte, error) {
	n, err := ptrace(ptraceSeccomp, tid, uintptr(index), 0)
	if err != nil {
		return nil, err
	}
	if n <= 0 || n > maxFilterInstr {
		return nil, unix.EINVAL
	}
	buf := make([]byte, n*filterInstruction)
	if _, err := ptrace(ptraceSeccomp, tid, uintptr(index), uintptr(unsafe.Pointer(&buf[0]))); err != nil {
		return nil, err
	}
	return buf, nil
}

// From linux/fs.h (Linux 6.7).
const (
	pagemapScanIoctl = 0xc0606610
	pageIsFile       = 1 << 2
	pageIsPresent    = 1 << 3
	pageIsSwapped    = 1 << 4
)

// pageRegion is struct page_region.
type pageRegion struct{ start, end, categories uint64 }

// scanArg is struct pm_scan_arg.
type scanArg struct {
	size, flags, start, end, walkEnd, vec, vecLen, maxPages uint64
	inverted, mask, anyOf, result                           uint64
}

// scan finds private pages between start and end that are present or swapped out. It returns the
// number of filled regions and the address at which it stopped.
func scan(pagemap int, start, end uint64, regions []pageRegion) (int, uint64, error) {
	arg := scanArg{
		start: start, end: end, vec: uint64(uintptr(unsafe.Pointer(&regions[0]))), vecLen: uint64(len(regions)),
		inverted: pageIsFile, mask: pageIsFile, anyOf: pageIsPresent | pageIsSwapped, result: pageIsPresent,
	}
	arg.size = uint64(unsafe.Sizeof(arg))
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(pagemap), pagemapScanIoctl, uintptr(unsafe.Pointer(&arg)))
	if errno != 0 {
		return 0, 0, errno
	}
	return int(n), arg.walkEnd, nil
}
