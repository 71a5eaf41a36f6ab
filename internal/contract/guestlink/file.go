package guestlink

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/lib/mux"
)

// Stat implements guestapi.Guest.
func (l *Link) Stat(ctx context.Context, path, user string) (guestapi.FileInfo, error) {
	return l.file(ctx, guestapi.OpStat, guestapi.FileRequest{Path: path, User: user, Flag: true})
}

// List implements guestapi.Guest.
func (l *Link) List(ctx context.Context, path, user string, depth int) ([]guestapi.FileInfo, error) {
	r := guestapi.FileRequest{Path: path, User: user, Depth: depth, Flag: true}
	return list(ctx, l, guestapi.OpList, guestapi.AppendFileRequest(nil, &r),
		func(b []byte, pay func(int64) error) ([]guestapi.FileInfo, error) {
			return guestapi.ParseFileInfos(b, maxEntries, pay)
		})
}

// Move implements guestapi.Guest.
func (l *Link) Move(ctx context.Context, from, to, user string) (guestapi.FileInfo, error) {
	return l.file(ctx, guestapi.OpMove, guestapi.FileRequest{Path: from, To: to, User: user, Flag: true})
}

// Remove implements guestapi.Guest.
func (l *Link) Remove(ctx context.Context, path, user string, recursive bool) error {
	r := guestapi.FileRequest{Path: path, User: user, Flag: recursive}
	_, err := l.call(ctx, guestapi.OpRemoveAll, guestapi.AppendFileRequest(nil, &r))
	return err
}

// MakeDir implements guestapi.Guest.
func (l *Link) MakeDir(ctx context.Context, path, user string) (guestapi.FileInfo, error) {
	return l.file(ctx, guestapi.OpMakeDir, guestapi.FileRequest{Path: path, User: user, Flag: true})
}

func (l *Link) file(ctx context.Context, op guestapi.Op, r guestapi.FileRequest) (guestapi.FileInfo, error) {
	response, err := l.call(ctx, op, guestapi.AppendFileRequest(nil, &r))
	if err != nil {
		return guestapi.FileInfo{}, err
	}
	return parseFile(response)
}

func parseFile(response []byte) (guestapi.FileInfo, error) {
	i, err := guestapi.ParseFileInfo(response)
	if err != nil {
		return i, linkError(err)
	}
	return i, nil
}

// Read implements guestapi.Guest. The reader ends with ctx, too.
func (l *Link) Read(
	ctx context.Context,
	path, user string,
	offset, length int64,
) (guestapi.FileInfo, io.ReadCloser, error) {
	r := guestapi.FileRequest{Path: path, User: user, Offset: offset, Length: length}
	st, response, err := l.open(ctx, guestapi.OpRead, guestapi.AppendFileRequest(nil, &r))
	if err != nil {
		return guestapi.FileInfo{}, nil, err
	}
	i, err := parseFile(response)
	if err != nil {
		return i, nil, cancelStream(st, err)
	}
	return i, &content{ctx: ctx, st: st}, nil
}

// content reads the messages of a stream.
type content struct {
	ctx  context.Context // of the call that opened it
	st   *mux.Stream
	rest []byte
}

func (c *content) Read(b []byte) (int, error) {
	for len(c.rest) == 0 {
		message, err := c.st.Recv(c.ctx)
		if err == io.EOF {
			return 0, io.EOF
		}
		if err != nil {
			return 0, linkError(err)
		}
		c.rest = message
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func (c *content) Close() error { return cancelStream(c.st, nil) }

// Write implements guestapi.Guest.
func (l *Link) Write(
	ctx context.Context,
	path string,
	opt guestapi.WriteOptions,
	r io.Reader,
) (guestapi.FileInfo, error) {
	request := guestapi.FileRequest{
		Path: path, User: opt.User, Flag: opt.Atomic, Mode: opt.Mode, Size: opt.Size, Metadata: opt.Metadata,
	}
	st, rest, err := l.begin(ctx, guestapi.OpWriteFile, guestapi.AppendFileRequest(nil, &request), false)
	if err != nil {
		return guestapi.FileInfo{}, err
	}
	if err := l.send(ctx, st, rest, false); err != nil {
		return guestapi.FileInfo{}, cancelStream(st, err)
	}
	if err := sendAll(ctx, st, r); err != nil {
		return guestapi.FileInfo{}, cancelStream(st, err)
	}
	response, err := l.finishShort(ctx, st, nil)
	if err != nil {
		return guestapi.FileInfo{}, err
	}
	return parseFile(response)
}

func sendAll(ctx context.Context, st *mux.Stream, r io.Reader) error {
	buf := make([]byte, messageSize)
	for {
		n, err := io.ReadFull(r, buf)
		end := err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !end {
			return fmt.Errorf("read the content to write: %w", err)
		}
		if end {
			err = st.SendFin(ctx, buf[:n])
		} else {
			err = st.Send(ctx, buf)
		}
		if err != nil {
			return linkError(err)
		}
		if end {
			return nil
		}
	}
}

// Watch implements guestapi.Guest.
func (l *Link) Watch(ctx context.Context, path, user string, recursive bool) (guestapi.Watcher, error) {
	r := guestapi.FileRequest{Path: path, User: user, Flag: recursive}
	st, _, err := l.open(ctx, guestapi.OpWatch, guestapi.AppendFileRequest(nil, &r))
	if err != nil {
		return nil, err
	}
	return &watcher{st}, nil
}

type watcher struct{ st *mux.Stream }

func (w *watcher) Next(ctx context.Context) (guestapi.FileEvent, error) {
	message, err := w.st.Recv(ctx)
	if err == io.EOF {
		return guestapi.FileEvent{}, io.EOF
	}
	var e guestapi.FileEvent
	if err == nil {
		e, err = guestapi.ParseFileEvent(message)
	}
	if err != nil {
		return guestapi.FileEvent{}, linkError(err)
	}
	return e, nil
}

func (w *watcher) Close() error { return cancelStream(w.st, nil) }
