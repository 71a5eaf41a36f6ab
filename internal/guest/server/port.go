package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// drain limits how long a program may take to read the data sent before the host closed a connection.
const drain = 5 * time.Second

func (r *request) ports(ctx context.Context) error {
	all, err := r.h.s.backend.Ports(ctx)
	if err != nil {
		return err
	}
	var b []byte
	for i := range all {
		b = guestapi.AppendPort(b, &all[i])
	}
	return r.reply(ctx, b)
}

func (r *request) dialPort(ctx context.Context) error {
	port, err := guestapi.ParseDial(r.body)
	if err != nil {
		return fmt.Errorf("%w: %w", guestapi.ErrInvalid, err)
	}
	c, err := r.h.s.backend.DialPort(ctx, port)
	if err != nil {
		return err
	}
	return r.join(ctx, c)
}

func (r *request) dialSocket(ctx context.Context) error {
	path, err := guestapi.ParseDialSocket(r.body)
	if err != nil {
		return fmt.Errorf("%w: %w", guestapi.ErrInvalid, err)
	}
	c, err := r.h.s.backend.DialSocket(ctx, path)
	if err != nil {
		return err
	}
	return r.join(ctx, c)
}

// join copies in both directions until both have ended, or either fails. It closes c.
func (r *request) join(ctx context.Context, c net.Conn) (err error) {
	ctx, stopUp := context.WithCancelCause(ctx)
	var up sync.WaitGroup
	defer func() {
		if err != nil {
			// The host may have sent all it has and wait for a reply, so the upload must end now.
			stopUp(err)
		}
		up.Wait()
		stopUp(nil)
		_ = c.Close() // both directions have ended
	}()
	if err := r.beginReply(ctx, nil); err != nil {
		return err
	}
	up.Go(func() { r.upload(ctx, c) })
	stop := context.AfterFunc(ctx, func() {
		// Neither call fails in a way that matters: a closed connection has woken its reader.
		_ = c.SetReadDeadline(time.Now()) // wakes the reader below
		_ = c.SetWriteDeadline(time.Now().Add(drain))
	})
	defer stop()
	return r.download(ctx, c)
}

func (r *request) download(ctx context.Context, c net.Conn) error {
	buf := make([]byte, chunk)
	for {
		n, err := c.Read(buf)
		if n > 0 {
			if err := r.st.Send(ctx, buf[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return r.st.SendFin(ctx, nil)
		}
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("%w: %w", guestapi.ErrRefused, err)
		}
	}
}

// upload copies data until the host ends its direction, then closes that direction of the connection.
func (r *request) upload(ctx context.Context, c net.Conn) {
	for {
		message, err := r.st.Recv(ctx)
		if err == nil {
			_, err = c.Write(message)
		}
		if err == nil {
			continue
		}
		half, ok := c.(interface{ CloseWrite() error })
		if errors.Is(err, io.EOF) && ok {
			_ = half.CloseWrite() // fails if the program has closed the connection already
		} else {
			_ = c.Close() // wakes the reader
		}
		return
	}
}
