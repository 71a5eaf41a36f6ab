// Package guestlink is the host's end of the guest channel: a guestapi.Guest over one connection.
//
// It owns the connection and the session on it. It knows nothing of monitors, machines or sandboxes. All
// that a guest sends is bounded and checked before it is returned: lengths, numbers of entries, and the
// text of errors, which is made printable. A guest that breaks the protocol loses its link. Well-formed responses
// are passed on, true or not.
//
// A Link may be used by many goroutines. It runs a few of its own, which Close waits for.
package guestlink

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/lib/budget"
	"github.com/pandastack/pandastack/internal/lib/mux"
)

// Bounds of one response.
const (
	maxResponse = 32 << 20            // bytes of a list
	maxSingle   = guestapi.MaxRequest // bytes of any other response
	maxEntries  = 1 << 16             // files of a listing; the guest agent sends no more
	maxListed   = 1 << 14             // processes, ports
	messageSize = 32 << 10            // bytes of content in a message; what the guest's device writes at once
)

// Options of a new link.
type Options struct {
	// Generation of the machine. A guest that last confirmed another one refuses everything but a restore.
	Generation uint64
	// Identity, if not nil, is sent right after the greeting; Ready waits for its confirmation.
	Identity *guestapi.Identity
	// Resync is set if the channel may hold half of an earlier frame: the link is the first of a new host
	// process to a machine that kept running.
	Resync bool
	// Memory, if not nil, pays for what the link buffers for calls whose context carries no budget.Account. The link
	// closes it.
	Memory *budget.Account
}

// Link is a machine's guest as the host sees it.
type Link struct {
	h        *mux.Host
	memory   *budget.Account
	ctx      context.Context // ends with Close; for work that outlives the call that began it
	cancel   context.CancelCauseFunc
	wg       sync.WaitGroup
	restored chan struct{} // closed when the restore has ended
	err      error         // of the restore; read after restored
}

var _ guestapi.Guest = (*Link)(nil)

// Open greets the guest over conn, which the link owns from now on.
//
// It does not wait for the guest, which may not have been started yet; requests may be made at once and wait for
// it. The link keeps the values of ctx but not its end.
func Open(ctx context.Context, conn net.Conn, opt Options) (*Link, error) {
	hello := mux.Hello{Generation: opt.Generation}
	if _, err := rand.Read(hello.Nonce[:]); err != nil {
		return nil, fmt.Errorf("greet guest: %w", err)
	}
	l := &Link{restored: make(chan struct{}), memory: opt.Memory}
	l.ctx, l.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	l.h = mux.NewHost(conn, hello, opt.Resync)
	if opt.Identity == nil {
		close(l.restored)
		return l, nil
	}
	st, rest, err := l.begin(ctx, guestapi.OpRestore, guestapi.AppendIdentity(nil, opt.Identity), true)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	l.wg.Go(func() {
		defer close(l.restored)
		_, l.err = l.finishShort(l.ctx, st, rest)
	})
	return l, nil
}

// Ready waits until the guest has confirmed the greeting and, if there was an identity, the restore.
func (l *Link) Ready(ctx context.Context) error {
	if err := l.h.Greeted(ctx); err != nil {
		return fmt.Errorf("greet guest: %w", linkError(err))
	}
	select {
	case <-l.restored:
	case <-ctx.Done():
		return fmt.Errorf("restore guest: %w", context.Cause(ctx))
	}
	if l.err != nil {
		return fmt.Errorf("restore guest: %w", l.err)
	}
	return nil
}

// Done is closed when the link has ended, by Close or because the channel did.
func (l *Link) Done() <-chan struct{} { return l.h.Done() }

// Alive reports whether the link has not ended.
func (l *Link) Alive() bool {
	select {
	case <-l.h.Done():
		return false
	default:
		return true
	}
}

// Close ends the link and waits for its goroutines. Processes in the guest keep running.
func (l *Link) Close() error {
	l.cancel(guestapi.ErrLost)
	err := l.h.Close()
	l.wg.Wait()
	l.memory.Close()
	return err
}

// payer returns the account that pays for what is buffered for ctx, nil if there is no limit.
func (l *Link) payer(ctx context.Context) *budget.Account {
	if a := budget.FromContext(ctx); a != nil {
		return a
	}
	return l.memory
}

// linkError translates an error of the channel into one of guestapi.
func linkError(err error) error {
	var reset *mux.ResetError
	var over *budget.Error
	switch {
	case errors.As(err, &over) && over.Never:
		return fmt.Errorf("%w: %w", guestapi.ErrTooLarge, err)
	case errors.As(err, &over):
		return fmt.Errorf("%w: %w", guestapi.ErrBusy, err)
	case errors.As(err, &reset):
		if reset.Code == 0 || reset.Code > 255 {
			return guestapi.CodeError(1, reset.Text)
		}
		return guestapi.CodeError(uint8(reset.Code), reset.Text)
	case errors.Is(err, mux.ErrLost):
		return fmt.Errorf("%w: %w", guestapi.ErrLost, err)
	case errors.Is(err, mux.ErrTooMany):
		return fmt.Errorf("%w: %w", guestapi.ErrBusy, err)
	case errors.Is(err, guestapi.ErrFormat):
		return fmt.Errorf("%w: %w", guestapi.ErrInternal, err)
	}
	return err
}

// begin opens a stream with a request and returns the part of the request that did not fit into one message. The
// caller resets the stream. fin means that the host sends nothing after the request.
func (l *Link) begin(ctx context.Context, op guestapi.Op, body []byte, fin bool) (*mux.Stream, []byte, error) {
	if len(body) > guestapi.MaxRequest {
		return nil, nil, fmt.Errorf(
			"%w: request of %d bytes, at most %d are possible",
			guestapi.ErrInvalid,
			len(body),
			guestapi.MaxRequest,
		)
	}
	request := guestapi.AppendRequest(make([]byte, 0, len(body)+8), op, body)
	first, rest := request[:min(len(request), messageSize)], request[min(len(request), messageSize):]
	var meter mux.Meter
	if a := l.payer(ctx); a != nil {
		meter = a
	}
	st, err := l.h.Open(ctx, first, fin && len(rest) == 0, meter)
	if err != nil {
		return nil, nil, linkError(err)
	}
	return st, rest, nil
}

// open begins a request that continues in both directions, and returns the first message of its response.
func (l *Link) open(ctx context.Context, op guestapi.Op, body []byte) (*mux.Stream, []byte, error) {
	st, rest, err := l.begin(ctx, op, body, false)
	if err != nil {
		return nil, nil, err
	}
	if err := l.send(ctx, st, rest, false); err != nil {
		return nil, nil, cancelStream(st, err)
	}
	response, err := l.first(ctx, st)
	if err != nil {
		return nil, nil, cancelStream(st, err)
	}
	return st, response, nil
}

// first returns the body of the first message of a response.
func (l *Link) first(ctx context.Context, st *mux.Stream) ([]byte, error) {
	response, err := st.Recv(ctx)
	if err == io.EOF {
		err = guestapi.ErrFormat
	}
	if err == nil {
		response, err = guestapi.ParseStatus(response)
	}
	if err != nil {
		return nil, linkError(err)
	}
	return response, nil
}

// cancelStream notifies the guest that the stream is no longer read, and returns err.
func cancelStream(st *mux.Stream, err error) error {
	st.Reset(uint16(guestapi.ErrorCode(context.Canceled)), "")
	return err
}

func (l *Link) send(ctx context.Context, st *mux.Stream, rest []byte, fin bool) error {
	for len(rest) > 0 {
		part := rest[:min(len(rest), messageSize)]
		rest = rest[len(part):]
		var err error
		if fin && len(rest) == 0 {
			err = st.SendFin(ctx, part)
		} else {
			err = st.Send(ctx, part)
		}
		if err != nil {
			return linkError(err)
		}
	}
	return nil
}

// finish sends the rest of a request and returns the whole response, of at most limit bytes. It ends the stream. bill
// pays for the response, if it is more than one message.
func (l *Link) finish(ctx context.Context, st *mux.Stream, rest []byte, limit int, bill *bill) ([]byte, error) {
	if err := l.send(ctx, st, rest, true); err != nil {
		return nil, cancelStream(st, err)
	}
	response, err := l.first(ctx, st)
	for err == nil {
		var more []byte
		if more, err = st.Recv(ctx); err != nil {
			break
		}
		if len(response)+len(more) > limit {
			err = guestapi.ErrFormat
			break
		}
		if err = bill.take(growth * int64(len(more))); err == nil {
			response = append(response, more...)
		}
	}
	if err == io.EOF {
		st.Drop()
		return response, nil
	}
	return nil, cancelStream(st, linkError(err))
}

// growth is how much memory a slice takes for each byte while it is appended to: the old array and the new one.
const growth = 2

// bill is what one call has taken from an account.
type bill struct {
	account *budget.Account
	own     bool // the account is the link's: no request ends that would return it
	taken   int64
}

func (l *Link) bill(ctx context.Context) *bill {
	return &bill{account: l.payer(ctx), own: budget.FromContext(ctx) == nil}
}

func (b *bill) take(n int64) error {
	if err := b.account.Take(n); err != nil {
		return err
	}
	b.taken += n
	return nil
}

// settle returns what was taken for the message of a response that has been parsed. What was parsed is the caller's,
// and stays with the caller's account, if there is one.
func (b *bill) settle(message int64) {
	if b.own {
		message = b.taken
	}
	b.account.Give(min(message, b.taken))
}

// call makes a request with one short response.
func (l *Link) call(ctx context.Context, op guestapi.Op, body []byte) ([]byte, error) {
	st, rest, err := l.begin(ctx, op, body, true)
	if err != nil {
		return nil, err
	}
	return l.finishShort(ctx, st, rest)
}

// finishShort is finish for responses that are no lists. The account pays while they arrive.
func (l *Link) finishShort(ctx context.Context, st *mux.Stream, rest []byte) ([]byte, error) {
	b := l.bill(ctx)
	response, err := l.finish(ctx, st, rest, maxSingle, b)
	b.settle(b.taken)
	return response, err
}

// list makes a request whose response is a list.
func list[T any](
	ctx context.Context,
	l *Link,
	op guestapi.Op,
	body []byte,
	parse func(b []byte, pay func(int64) error) ([]T, error),
) ([]T, error) {
	st, rest, err := l.begin(ctx, op, body, true)
	if err != nil {
		return nil, err
	}
	b := l.bill(ctx)
	response, err := l.finish(ctx, st, rest, maxResponse, b)
	message := b.taken
	if err != nil {
		b.settle(message)
		return nil, err
	}
	all, err := parse(response, b.take)
	if err != nil {
		b.settle(b.taken)
		return nil, linkError(err)
	}
	b.settle(message)
	return all, nil
}
