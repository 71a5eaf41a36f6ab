package sshgate

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"github.com/pkg/sftp"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
)

// maxEarly bounds the bytes of a file that arrived before those that precede them. Clients send many pieces at once,
// which may be handled out of order.
const maxEarly = 2 << 20

// writer writes a file of a sandbox. Pieces that follow each other are one stream.
type writer struct {
	f       *files
	at      string
	appends bool
	size    int64 // of the file before, if appends is set

	mu     sync.Mutex
	added  int64            // to offsets; guarded by mu, as all that follows
	sink   *sink            // nil: there is none
	next   int64            // offset at which sink goes on
	early  map[int64][]byte // pieces behind next, by offset
	held   int              // bytes of early
	failed error
	closed bool
}

// Filewrite implements sftp.FileWriter.
func (f *files) Filewrite(r *sftp.Request) (io.WriterAt, error) {
	if err := f.enter(maxEarly); err != nil {
		return nil, err
	}
	w, err := f.create(r)
	if err != nil {
		f.leave(maxEarly)
		return nil, status(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.writers[w.at] = append(f.writers[w.at], w)
	return w, nil
}

// create opens a file as the flags of a request say.
func (f *files) create(r *sftp.Request) (*writer, error) {
	flags := r.Pflags()
	w := &writer{f: f, at: r.Filepath, appends: flags.Append, early: map[int64][]byte{}}
	info, err := f.stat(r.Filepath)
	switch {
	case errors.Is(err, guestapi.ErrNotFound) && flags.Creat:
		if _, err := f.stat(path.Dir(r.Filepath)); err != nil {
			return nil, err // a write would make it
		}
	case err != nil:
		return nil, err
	case info.Kind == guestapi.KindDir:
		return nil, guestapi.ErrIsDir
	case flags.Excl && flags.Creat:
		return nil, guestapi.ErrExists
	case flags.Append:
		w.next, w.size = info.Size, info.Size
		return w, nil
	case !flags.Trunc: // the file keeps what is not written
		return w, nil
	}
	mode := uint32(0)
	if r.AttrFlags().Permissions {
		mode = r.Attributes().Mode & 0o777
	}
	w.sink = f.replace(r.Filepath, mode)
	return w, nil
}

// writing returns the open writers of a file.
func (f *files) writing(at string) []*writer {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.writers[at])
}

// WriteAt implements io.WriterAt.
func (w *writer) WriteAt(p []byte, offset int64) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || offset < 0 {
		return 0, io.ErrClosedPipe
	}
	if w.failed != nil {
		return 0, status(w.failed)
	}
	if w.appends {
		offset = w.appended(offset)
	}
	if offset == w.next {
		w.fail(w.write(p))
		w.fail(w.drain())
		return len(p), status(w.failed)
	}
	if old, ok := w.early[offset]; ok {
		w.held -= len(old)
	}
	w.early[offset] = slices.Clone(p) // the caller uses p again
	w.held += len(p)
	if offset < w.next || w.held > maxEarly {
		w.fail(w.settle())
	}
	return len(p), status(w.failed)
}

// appended returns the offset in the file of a piece that is appended. Clients count from the begin of the file or,
// since the protocol says that it does not matter, from what they append: those send offsets before its end. The caller
// holds mu.
func (w *writer) appended(offset int64) int64 {
	if w.added == 0 && w.next == w.size && offset < w.size {
		w.added = w.size
		moved := make(map[int64][]byte, len(w.early))
		for at, p := range w.early {
			moved[at+w.added] = p
		}
		w.early = moved
	}
	return offset + w.added
}

func (w *writer) fail(err error) {
	if w.failed == nil {
		w.failed = err
	}
}

// write writes a piece at next. The caller holds mu, as that of all that follow.
func (w *writer) write(p []byte) error {
	if w.failed != nil {
		return w.failed
	}
	if w.sink == nil {
		var err error
		if w.sink, err = w.f.change(w.at, w.next, w.appends); err != nil {
			return err
		}
	}
	w.next += int64(len(p))
	return w.sink.write(p)
}

// drain writes the early pieces that are next.
func (w *writer) drain() error {
	for {
		p, ok := w.early[w.next]
		if !ok {
			return nil
		}
		delete(w.early, w.next)
		w.held -= len(p)
		if err := w.write(p); err != nil {
			return err
		}
	}
}

// settle writes all early pieces where they belong, whatever is between them.
func (w *writer) settle() error {
	for _, offset := range slices.Sorted(maps.Keys(w.early)) {
		p := w.early[offset]
		delete(w.early, offset)
		w.held -= len(p)
		if offset != w.next {
			if err := w.finish(); err != nil {
				return err
			}
			w.next = offset
		}
		if err := w.write(p); err != nil {
			return err
		}
	}
	return nil
}

// finish ends the stream, so that the file has what was written.
func (w *writer) finish() error {
	if w.sink == nil {
		return nil
	}
	s := w.sink
	w.sink = nil
	return s.close()
}

// flush writes everything that has arrived.
func (w *writer) flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail(w.settle())
	w.fail(w.finish())
	return w.failed
}

// Close implements io.Closer.
func (w *writer) Close() error {
	err := w.flush()
	w.mu.Lock()
	done := w.closed
	w.closed = true
	w.mu.Unlock()
	if done {
		return status(err)
	}
	w.f.leave(maxEarly)
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	w.f.writers[w.at] = slices.DeleteFunc(w.f.writers[w.at], func(o *writer) bool { return o == w })
	if len(w.f.writers[w.at]) == 0 {
		delete(w.f.writers, w.at)
	}
	return status(err)
}

// TransferError implements sftp.TransferError: the session ends with the file open.
func (w *writer) TransferError(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail(err)
	w.early, w.held = map[int64][]byte{}, 0
	if w.sink != nil {
		w.sink.abort(err)
	}
}

// sink is a stream into a file.
type sink struct {
	write func(p []byte) error
	close func() error    // waits until all is written
	abort func(err error) // makes close fail
}

// replace returns a stream that becomes the content of a file.
func (f *files) replace(at string, mode uint32) *sink {
	out, in := io.Pipe()
	done := make(chan error, 1)
	go func() { // close waits for it
		_, err := f.guest.Write(f.ctx, at, guestapi.WriteOptions{User: f.user, Mode: mode, Size: -1}, out)
		_ = out.CloseWithError(cmp.Or(err, io.ErrClosedPipe))
		done <- err
	}()
	return &sink{
		write: func(p []byte) error {
			_, err := in.Write(p)
			return err
		},
		close: func() error {
			_ = in.Close() // of a pipe
			return <-done
		},
		abort: func(err error) { _ = in.CloseWithError(err) },
	}
}

// The scripts that write their input into a file: at an offset, whose file must exist, and at its end. dd moves the
// offset of the open file, which cat shares with it.
const (
	changeScript = `exec 1<>"$1" && dd bs=1 seek="$2" count=0 conv=notrunc 2>/dev/null && exec cat`
	appendScript = `exec cat >>"$1"`
)

// change returns a stream into a file that exists, at an offset or at its end.
func (f *files) change(at string, offset int64, appends bool) (*sink, error) {
	spec := f.shell(changeScript, at, strconv.FormatInt(offset, 10))
	if appends {
		spec = f.shell(appendScript, at)
	}
	spec.Stdin = true
	ctx, cancel := context.WithCancelCause(f.ctx)
	p, err := f.guest.Start(ctx, spec)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	done := make(chan error, 1)
	go func() { // close waits for it
		message := guestexec.NewBuffer(guestexec.Limit{Bytes: maxMessage})
		exit, err := guestexec.Follow(ctx, p, guestexec.Sink{Output: func(e guestapi.Event) error {
			message.Add(e.Data)
			return nil
		}})
		if err == nil {
			err = failure(exit, string(message.Output().Data))
		} else { // the session has ended, or the sandbox has
			_ = guestexec.Signal(ctx, f.guest, guestapi.ProcessRef{PID: p.PID()}, int(syscall.SIGKILL))
		}
		_ = p.Close() // ends writes to a program that has exited
		done <- err
	}()
	return &sink{
		write: func(piece []byte) error {
			_, err := p.Write(piece)
			return err
		},
		close: func() error {
			defer cancel(nil)
			_ = p.CloseInput() // the program may have failed, which says more
			return <-done
		},
		abort: func(err error) {
			cancel(err)
			_ = p.Close() // as above
		},
	}, nil
}
