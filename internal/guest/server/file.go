package server

import (
	"context"
	"fmt"
	"io"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

func (r *request) files(ctx context.Context) error {
	q, err := guestapi.ParseFileRequest(r.body)
	if err != nil {
		return fmt.Errorf("%w: %w", guestapi.ErrInvalid, err)
	}
	b := r.h.s.backend
	var info guestapi.FileInfo
	switch r.op {
	case guestapi.OpStat:
		info, err = b.Stat(ctx, q.Path, q.User)
	case guestapi.OpMove:
		info, err = b.Move(ctx, q.Path, q.To, q.User)
	case guestapi.OpMakeDir:
		info, err = b.MakeDir(ctx, q.Path, q.User)
	case guestapi.OpWriteFile:
		opt := guestapi.WriteOptions{User: q.User, Mode: q.Mode, Size: q.Size, Atomic: q.Flag, Metadata: q.Metadata}
		info, err = b.Write(ctx, q.Path, opt, &messages{ctx: ctx, r: r})
	case guestapi.OpRemoveAll:
		if err := b.Remove(ctx, q.Path, q.User, q.Flag); err != nil {
			return err
		}
		return r.reply(ctx, nil)
	case guestapi.OpList:
		return r.list(ctx, q)
	case guestapi.OpRead:
		return r.read(ctx, q)
	default:
		return r.watch(ctx, q)
	}
	if err != nil {
		return err
	}
	if !q.Flag || r.op == guestapi.OpWriteFile {
		info.End = nil // a host that did not ask may not know it
	}
	return r.reply(ctx, guestapi.AppendFileInfo(nil, &info))
}

func (r *request) list(ctx context.Context, q guestapi.FileRequest) error {
	all, err := r.h.s.backend.List(ctx, q.Path, q.User, q.Depth)
	if err != nil {
		return err
	}
	var b []byte
	for i := range all {
		if !q.Flag {
			all[i].End = nil
		}
		b = guestapi.AppendFileInfo(b, &all[i])
	}
	return r.reply(ctx, b)
}

func (r *request) read(ctx context.Context, q guestapi.FileRequest) error {
	info, content, err := r.h.s.backend.Read(ctx, q.Path, q.User, q.Offset, q.Length)
	if err != nil {
		return err
	}
	defer func() { _ = content.Close() }() // the content was only read
	info.End = nil
	if err := r.beginReply(ctx, guestapi.AppendFileInfo(nil, &info)); err != nil {
		return err
	}
	from, ok := content.(pieces)
	if !ok {
		from = &reads{content, make([]byte, chunk)}
	}
	for {
		piece, err := from.Next(chunk)
		if len(piece) > 0 {
			if err := r.st.Send(ctx, piece); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return r.st.SendFin(ctx, nil)
		}
		if err != nil {
			return err
		}
	}
}

// pieces is content that returns its bytes without a copy. Without KVM every copy in a guest is emulated.
type pieces interface {
	Next(most int) ([]byte, error) // the bytes are valid until the next call
}

// reads adapts any other content to pieces, with one buffer.
type reads struct {
	r   io.Reader
	buf []byte
}

func (s *reads) Next(most int) ([]byte, error) {
	n, err := s.r.Read(s.buf[:min(len(s.buf), most)])
	return s.buf[:n], err
}

func (r *request) watch(ctx context.Context, q guestapi.FileRequest) error {
	w, err := r.h.s.backend.Watch(ctx, q.Path, q.User, q.Flag)
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }() // a watcher holds no data to lose
	if err := r.beginReply(ctx, nil); err != nil {
		return err
	}
	for {
		e, err := w.Next(ctx)
		if err == io.EOF {
			return r.st.SendFin(ctx, nil)
		}
		if err != nil {
			return err
		}
		if err := r.st.Send(ctx, guestapi.AppendFileEvent(nil, &e)); err != nil {
			return err
		}
	}
}

// messages reads the content that the host sends. It returns io.EOF only if the host marked the end.
type messages struct {
	ctx  context.Context // of the request
	r    *request
	rest []byte
}

func (m *messages) Read(b []byte) (int, error) {
	if len(m.rest) == 0 {
		var err error
		if m.rest, err = m.Next(); err != nil {
			return 0, err
		}
	}
	n := copy(b, m.rest)
	m.rest = m.rest[n:]
	return n, nil
}

// Next returns the next content without a copy, at least one byte. The caller owns it.
func (m *messages) Next() ([]byte, error) {
	if rest := m.rest; len(rest) > 0 {
		m.rest = nil
		return rest, nil
	}
	for {
		message, err := m.r.st.Recv(m.ctx)
		if err != nil || len(message) > 0 {
			return message, err
		}
	}
}
