package function

import (
	"bufio"
	"context"
	_ "embed" // of the shims
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
)

// The shims use nothing but the standard libraries of their languages.
var (
	//go:embed shim.py
	shimPython []byte
	//go:embed shim.mjs
	shimNode []byte
)

// shim is a process with the handler loaded by a shim.
type shim struct {
	*process
	socket string
	loaded chan struct{} // closed when done and failure are known
	done   done
	failure
	broken bool // failure is set
}

// startShim starts a shim. It listens on a socket that only this program can reach.
func startShim(
	ctx context.Context, place Place, socket string, c command, rest func(int, []byte),
) (*shim, error) {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	l, ok := listener.(*net.UnixListener)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%T is no Unix socket", listener), listener.Close())
	}
	l.SetUnlinkOnClose(false)
	file, err := l.File()
	if err = errors.Join(err, l.Close()); err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // the process has its own
	c.files = append(c.files, file)
	p, err := startProcess(place, c, true, rest)
	if err != nil {
		return nil, errors.Join(err, os.Remove(socket))
	}
	s := &shim{process: p, socket: socket, loaded: make(chan struct{})}
	go s.load(ctx)
	return s, nil
}

// load waits until the handler is loaded. The end of the process ends it.
func (s *shim) load(ctx context.Context) {
	defer close(s.loaded)
	d, f := s.exchange(ctx, start{Kind: callLoad}, nil)
	if s.done = d; f != nil {
		s.failure, s.broken = *f, true
		s.retire(nil)
		<-s.exited
	}
}

// exchange makes a call that has no result.
func (s *shim) exchange(ctx context.Context, in start, to reply) (done, *failure) {
	conn, err := s.dial()
	if err != nil {
		f, code := s.ending(ctx)
		return done{ExitCode: code}, f
	}
	defer conn.Close() //nolint:errcheck // the call has ended, or failed already
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	return s.talk(ctx, conn, in, strings.NewReader(""), to)
}

func (s *shim) dial() (net.Conn, error) { return net.Dial("unix", s.socket) }

// reply takes the response of a handler.
type reply interface {
	head(head) error
	data(p []byte, more bool) error
}

// call makes a call of the handler and returns how it ended. The end of ctx closes its connection.
func (s *shim) call(ctx context.Context, in start, body io.Reader, to reply) (*failure, *int) {
	conn, err := s.dial()
	if err != nil {
		return s.ending(ctx)
	}
	defer conn.Close() //nolint:errcheck // the call has ended, or failed already
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	d, f := s.talk(ctx, conn, in, body, to)
	return f, d.ExitCode
}

// talk sends a call and reads frames until its end.
func (s *shim) talk(
	ctx context.Context, conn net.Conn, in start, body io.Reader, to reply,
) (done, *failure) {
	if err := writeStart(conn, in); err != nil {
		f, code := s.ending(ctx)
		return done{ExitCode: code}, f
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		sendBody(conn, body)
	}()
	defer func() {
		_ = conn.Close() // ends sendBody, unless it waits for a body, which the server ends
		if closer, ok := body.(io.Closer); ok {
			_ = closer.Close() // a body that is read to its end does not mind
		}
		<-sent
	}()
	d, err := readReply(bufio.NewReaderSize(conn, 64<<10), to)
	switch {
	case err == nil:
		if d.Last {
			s.retire(nil)
		}
		return d, d.Failure
	case errors.Is(err, errProtocol):
		s.retire(nil)
		return done{}, failed(typeProtocol, "the handler wrote to the connection of its call")
	case errors.Is(err, errResponse):
		return done{}, failed(typeResponse, "%s", err)
	case errors.Is(err, errCaller):
		return done{}, nil
	}
	f, code := s.ending(ctx)
	return done{ExitCode: code}, f
}

// sendBody sends the body of a call until it ends, or the shim reads no more.
func sendBody(conn net.Conn, body io.Reader) {
	buf := make([]byte, bodyPiece)
	for {
		n, err := body.Read(buf)
		if n > 0 && writeFrame(conn, frameBody, buf[:n]) != nil {
			return
		}
		if errors.Is(err, io.EOF) {
			// The reply says whether the shim has it.
			_ = writeFrame(conn, frameEnd, nil)
			return
		}
		if err != nil {
			_ = conn.Close() // the handler must not take a part for the whole
			return
		}
	}
}

var (
	errResponse = errors.New("the response is not valid")
	errCaller   = errors.New("the caller is gone")
)

func readReply(r *bufio.Reader, to reply) (done, error) {
	var d done
	buf := make([]byte, 32<<10)
	for {
		kind, data, err := readFrame(r, buf)
		if err != nil {
			return d, err
		}
		switch kind {
		case frameHead:
			var h head
			if json.Unmarshal(data, &h) != nil || to == nil {
				return d, errProtocol
			}
			err = to.head(h)
		case frameData:
			if to == nil {
				return d, errProtocol
			}
			err = to.data(data, r.Buffered() > 0)
		case frameDone:
			if json.Unmarshal(data, &d) != nil {
				return done{}, errProtocol
			}
			d.Failure = bound(d.Failure)
			return d, nil
		default:
			return d, errProtocol
		}
		if err != nil {
			return d, err
		}
	}
}
