package function

import (
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/contract/fnruntime"
)

// The streams of output.
const (
	streamOut = 1
	streamErr = 2
)

// capture keeps the output of one call.
type capture struct {
	mu        sync.Mutex
	out       [2][]byte
	truncated bool
	limit     int
}

func newCapture() *capture { return &capture{limit: fnruntime.MaxOutput} }

func (c *capture) add(stream int, p []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	to := &c.out[stream-1]
	if room := c.limit - len(*to); len(p) > room {
		p, c.truncated = p[:room], true
	}
	*to = append(*to, p...)
}

func (c *capture) text() (stdout, stderr string, truncated bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.out[0]), string(c.out[1]), c.truncated
}

// tap reads the end of a pipe as data comes, and at once when drain is called.
type tap struct {
	file *os.File
	raw  syscall.RawConn
	mu   sync.Mutex // held from a read until its data is delivered
	sink func([]byte)
	buf  []byte
	done chan struct{}
}

// newTap returns a pipe: its reader, and the end for the writer, which the caller closes.
func newTap(sink func([]byte)) (*tap, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	raw, err := r.SyscallConn()
	if err != nil {
		return nil, nil, errors.Join(err, r.Close(), w.Close())
	}
	return &tap{file: r, raw: raw, sink: sink, buf: make([]byte, 64<<10), done: make(chan struct{})}, w, nil
}

// run delivers until all writers have closed the pipe, or close is called.
func (t *tap) run() {
	defer close(t.done)
	// The end of the pipe, and its closed reader, end the output alike.
	_ = t.raw.Read(func(fd uintptr) bool { return t.pump(int(fd), -1) })
}

// pump delivers what is in the pipe, in at most limit reads, and reports whether the pipe has ended.
func (t *tap) pump(fd, limit int) (ended bool) {
	for ; limit != 0; limit-- {
		t.mu.Lock()
		n, err := unix.Read(fd, t.buf)
		if n > 0 {
			t.sink(t.buf[:n])
		}
		t.mu.Unlock()
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return false
		case err != nil || n == 0:
			return true
		}
	}
	return false
}

// drain delivers what was written before it was called. It is bounded, for programs that write on and on.
func (t *tap) drain() {
	// A closed tap has nothing more.
	_ = t.raw.Control(func(fd uintptr) { t.pump(int(fd), 64) })
}

// close ends run, and waits for it. Processes may still hold the other end.
func (t *tap) close() {
	_ = t.file.Close() // it was only read
	<-t.done
}

// logDecoder reads the records in which shims write output: stream, number of the call, length, bytes.
//
// Shims write each record in one piece of at most PIPE_BUF bytes, so that records of processes do not mix. The handler
// can write to the pipe as well: after a malformed record the rest is discarded.
type logDecoder struct {
	rest []byte
	bad  bool
	each func(stream int, number uint32, p []byte)
}

const (
	logHeader = 7
	maxRecord = 4096
)

func (d *logDecoder) write(p []byte) {
	if d.bad {
		return
	}
	d.rest = append(d.rest, p...)
	data := d.rest
	for len(data) >= logHeader {
		stream, number := int(data[0]), binary.BigEndian.Uint32(data[1:])
		end := logHeader + int(binary.BigEndian.Uint16(data[5:]))
		if stream != streamOut && stream != streamErr || end > maxRecord {
			d.bad, d.rest = true, nil
			return
		}
		if len(data) < end {
			break
		}
		d.each(stream, number, data[logHeader:end])
		data = data[end:]
	}
	d.rest = d.rest[:copy(d.rest, data)]
}
