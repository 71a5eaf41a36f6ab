package checkpoint

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// One call transfers at most maxIovecs pieces (IOV_MAX) and maxTransfer bytes (the kernel's limit
// is 2 GiB).
const (
	maxIovecs   = 1024
	maxTransfer = 256 << 20
)

// Read copies spans of a process's memory into buf, one after the other. The process itself must be
// able to read them.
func Read(pid int, spans []Span, buf []byte) error {
	return transfer(unix.ProcessVMReadv, pid, spans, buf)
}

// Write copies buf into spans of a process's memory. The process itself must be able to write them.
func Write(pid int, spans []Span, buf []byte) error {
	return transfer(unix.ProcessVMWritev, pid, spans, buf)
}

// writePages writes each page to the span with the same index. The process itself must be able to
// write there.
func writePages(pid int, spans []Span, pages [][]byte) error {
	local := make([]unix.Iovec, 0, min(len(spans), maxIovecs))
	remote := make([]unix.RemoteIovec, 0, cap(local))
	for len(spans) > 0 {
		local, remote = local[:0], remote[:0]
		want, n := 0, 0
		for n < min(len(spans), maxIovecs) && (n == 0 || want+len(pages[n]) <= maxTransfer) {
			piece := unix.Iovec{Base: &pages[n][0]}
			piece.SetLen(len(pages[n]))
			local = append(local, piece)
			remote = append(remote, unix.RemoteIovec{Base: uintptr(spans[n].Start), Len: len(pages[n])})
			want += len(pages[n])
			n++
		}
		got, err := unix.ProcessVMWritev(pid, local, remote, 0)
		if err != nil {
			return fmt.Errorf("memory of process %d: %w", pid, err)
		}
		if got != want {
			return fmt.Errorf("memory of process %d: transferred %d of %d bytes", pid, got, want)
		}
		spans, pages = spans[n:], pages[n:]
	}
	return nil
}

// vectorCall is process_vm_readv or process_vm_writev.
type vectorCall func(pid int, local []unix.Iovec, remote []unix.RemoteIovec, flags uint) (int, error)

func transfer(call vectorCall, pid int, spans []Span, buf []byte) error {
	remote := make([]unix.RemoteIovec, 0, min(len(spans), maxIovecs))
	for i, off := 0, uint64(0); i < len(spans); {
		var want uint64
		for remote = remote[:0]; i < len(spans) && len(remote) < maxIovecs && want < maxTransfer; {
			s := spans[i]
			n := min(s.End-s.Start-off, maxTransfer-want)
			remote = append(remote, unix.RemoteIovec{Base: uintptr(s.Start + off), Len: int(n)})
			want += n
			if off += n; s.Start+off == s.End {
				i, off = i+1, 0
			}
		}
		if want == 0 {
			return nil
		}
		if uint64(len(buf)) < want {
			return fmt.Errorf("memory of process %d: the buffer has %d bytes, want %d", pid, len(buf), want)
		}
		local := unix.Iovec{Base: &buf[0]}
		local.SetLen(int(want))
		n, err := call(pid, []unix.Iovec{local}, remote, 0)
		if err != nil {
			return fmt.Errorf("memory of process %d: %w", pid, err)
		}
		if uint64(n) != want {
			return fmt.Errorf("memory of process %d: transferred %d of %d bytes", pid, n, want)
		}
		buf = buf[want:]
	}
	return nil
}
