package process

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// output is one output stream of a process.
type output struct {
	p      *Process
	stream guestapi.Stream
	file   *os.File
	ring   ring          // guarded by p.mu
	done   bool          // no more output will be kept; guarded by p.mu
	room   chan struct{} // holds a token when a follower took output
}

const readSize = 32 << 10

// readAll reads until no process can write any more.
func (o *output) readAll() {
	defer func() { _ = o.file.Close() }() // the file was only read
	buf := make([]byte, 4<<10)
	for {
		n, err := o.file.Read(buf)
		if n > 0 {
			o.keep(buf[:n])
			if n == len(buf) && n < readSize {
				buf = make([]byte, readSize)
			}
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			o.drain(buf)
			o.finish()
			if o.file.SetReadDeadline(time.Time{}) != nil {
				return
			}
			o.discard(buf)
			return
		}
		if err != nil {
			break
		}
	}
	o.finish()
}

// drain reads the output that was left when the process ended.
func (o *output) drain(buf []byte) {
	raw, err := o.file.SyscallConn()
	if err != nil {
		return
	}
	for n := 1; n > 0; {
		n = 0
		_ = raw.Control(func(fd uintptr) { n, err = unix.Read(int(fd), buf) }) // a closed file has no output
		if n > 0 {
			o.keep(buf[:n])
		} else if err == unix.EINTR {
			n = 1
		}
	}
}

// discard reads the output of children of an ended process, so that a full pipe does not stop them.
func (o *output) discard(buf []byte) {
	for {
		if _, err := o.file.Read(buf[:1<<10]); err != nil {
			return
		}
	}
}

// keep puts data into the ring, as fast as the slowest follower takes it.
func (o *output) keep(data []byte) {
	p := o.p
	for len(data) > 0 {
		p.mu.Lock()
		n := len(data)
		if keep, attached := p.slowest(o.stream); attached {
			n = min(n, o.ring.room(keep))
		}
		if n > 0 {
			o.ring.put(data[:n])
			data = data[n:]
			p.notifyFollowers()
		}
		p.mu.Unlock()
		if n == 0 {
			<-o.room
		}
	}
}

// finish records that no more output will be kept.
func (o *output) finish() {
	p := o.p
	p.mu.Lock()
	defer p.mu.Unlock()
	o.done = true
	p.publishExit()
}
