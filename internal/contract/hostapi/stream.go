package hostapi

import (
	"context"
	"io"
)

// Stream is a sequence of values that arrive over time, such as events. Recv must not be called concurrently.
type Stream[T any] interface {
	// Recv waits for the next value. It returns io.EOF after the last one. If ctx ends first, nothing is lost.
	Recv(ctx context.Context) (T, error)
	// Close ends the stream and waits until the work behind it has ended. It may be called more than once.
	Close() error
}

// streamBuffer is how many values may wait for Recv before the producer waits.
const streamBuffer = 64

// NewStream returns a stream of the values that f sends. f runs until it returns, which ends the stream with its
// error or io.EOF; its context ends with ctx and with Close, and send fails then.
func NewStream[T any](ctx context.Context, f func(ctx context.Context, send func(T) error) error) Stream[T] {
	ctx, cancel := context.WithCancelCause(ctx)
	s := &stream[T]{cancel: cancel, values: make(chan T, streamBuffer), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.err = f(ctx, func(v T) error {
			select {
			case s.values <- v:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	}()
	return s
}

type stream[T any] struct {
	cancel context.CancelCauseFunc
	values chan T
	done   chan struct{} // closed when the producer has returned
	err    error         // of the producer; read after done
}

// Recv implements Stream.
func (s *stream[T]) Recv(ctx context.Context) (T, error) {
	var none T
	select {
	case v := <-s.values:
		return v, nil
	case <-ctx.Done():
		return none, context.Cause(ctx)
	case <-s.done:
	}
	select {
	case v := <-s.values: // sent before the producer returned
		return v, nil
	default:
	}
	if s.err == nil {
		return none, io.EOF
	}
	return none, s.err
}

// Close implements Stream.
func (s *stream[T]) Close() error {
	s.cancel(context.Canceled)
	<-s.done
	return nil
}

// AwaitPublish receives the progress of Host.Publish until its end, and closes the stream. log, which may be nil,
// is called for every line.
func AwaitPublish(
	ctx context.Context,
	progress Stream[PublishProgress],
	log func(step, line string),
) (Template, error) {
	defer progress.Close()
	for {
		p, err := progress.Recv(ctx)
		switch {
		case err == io.EOF:
			return Template{}, io.ErrUnexpectedEOF // without the template
		case err != nil:
			return Template{}, err
		case p.Template != nil:
			return *p.Template, nil
		case log != nil:
			log(p.Step, p.Line)
		}
	}
}
