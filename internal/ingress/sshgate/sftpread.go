package sshgate

import (
	"context"
	"io"
	"sync"

	"github.com/pkg/sftp"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// Bounds of a file that is read. Clients ask for many pieces at once, which may be handled out of order: what was read
// last is kept for those that come late.
const (
	keptBytes = 1 << 20
	stepBytes = 128 << 10
	maxAhead  = 1 << 20 // how far ahead a piece is read up to, in place of beginning again there
)

// reader reads a file of a sandbox as one stream as long as the pieces that are asked for are close to each other.
type reader struct {
	f  *files
	at string

	mu     sync.Mutex
	cancel context.CancelFunc
	stream io.ReadCloser // guarded by mu, as all that follows; nil: it is not open
	kept   []byte        // the last bytes of the stream
	end    int64         // offset behind kept
	eof    bool          // the stream has ended
	closed bool
}

// Fileread implements sftp.FileReader.
func (f *files) Fileread(r *sftp.Request) (io.ReaderAt, error) {
	if err := f.enter(keptBytes); err != nil {
		return nil, err
	}
	rd := &reader{f: f, at: r.Filepath}
	if err := rd.begin(0); err != nil {
		f.leave(keptBytes)
		return nil, status(err)
	}
	return rd, nil
}

// begin opens the stream at an offset. The caller holds mu, or is the only one.
func (r *reader) begin(offset int64) error {
	r.stop()
	ctx, cancel := context.WithCancel(r.f.ctx)
	info, stream, err := r.f.guest.Read(ctx, r.at, r.f.user, offset, -1)
	if err != nil {
		cancel()
		return err
	}
	r.cancel, r.stream = cancel, stream
	r.kept, r.end, r.eof = r.kept[:0], offset, false
	if info.Kind == guestapi.KindDir {
		r.stop()
		return guestapi.ErrIsDir
	}
	return nil
}

// stop closes the stream.
func (r *reader) stop() {
	if r.stream != nil {
		r.cancel()
		_ = r.stream.Close() // it was only read
		r.stream = nil
	}
}

// ReadAt implements io.ReaderAt.
func (r *reader) ReadAt(p []byte, offset int64) (n int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || offset < 0 {
		return 0, io.ErrClosedPipe
	}
	for n < len(p) {
		at := offset + int64(n)
		begin := r.end - int64(len(r.kept))
		switch {
		case at >= begin && at < r.end:
			n += copy(p[n:], r.kept[at-begin:])
			continue
		case at >= r.end && r.eof:
			return n, io.EOF
		case at < begin || at > r.end+maxAhead || r.stream == nil:
			if err := r.begin(at); err != nil {
				return n, status(err)
			}
		}
		if err := r.step(); err != nil {
			return n, status(err)
		}
	}
	return n, nil
}

// step reads a piece of the stream.
func (r *reader) step() error {
	if len(r.kept)+stepBytes > keptBytes {
		drop := min(len(r.kept), keptBytes/2)
		r.kept = r.kept[:copy(r.kept, r.kept[drop:])]
	}
	at := len(r.kept)
	r.kept = append(r.kept, make([]byte, stepBytes)...)
	n, err := r.stream.Read(r.kept[at:])
	r.kept = r.kept[:at+n]
	r.end += int64(n)
	if err == io.EOF {
		r.eof = true
		return nil
	}
	return err
}

// Close implements io.Closer.
func (r *reader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.closed, r.kept = true, nil
		r.stop()
		r.f.leave(keptBytes)
	}
	return nil
}
