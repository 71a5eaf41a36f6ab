package execstream

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// Process describes a process to a client.
func Process(p guestapi.ProcessInfo) api.Process {
	out := api.Process{
		PID: p.PID, Tag: p.Tag, Cmd: p.Shell, Cwd: p.Dir, User: p.User, PTY: p.PTY,
		StartedAt: p.Started.UTC(), Running: p.Exit == nil,
	}
	if out.Cmd == "" {
		out.Cmd = strings.Join(p.Argv, " ")
	}
	if p.Exit != nil {
		code := p.Exit.Code
		out.ExitCode, out.OutOfMemory = &code, p.Exit.OutOfMemory
	}
	return out
}

// ParseOffsets reads the id of an event of AttachSSE; "" is the beginning.
func ParseOffsets(id string) (guestapi.Offsets, error) {
	var o guestapi.Offsets
	if id == "" {
		return o, nil
	}
	if n, err := fmt.Sscanf(id, "%d-%d-%d", &o.Stdout, &o.Stderr, &o.PTY); n != 3 || err != nil ||
		o.Stdout < 0 || o.Stderr < 0 || o.PTY < 0 || formatOffsets(o) != id {
		return guestapi.Offsets{}, api.Errorf(api.Invalid, "Last-Event-ID: %.60q is not an id of this stream: leave it out to begin anew", id).
			With("field", "Last-Event-ID")
	}
	return o, nil
}

func formatOffsets(o guestapi.Offsets) string {
	return fmt.Sprintf("%d-%d-%d", o.Stdout, o.Stderr, o.PTY)
}

// attachStream sends the output of a process and knows how far it came.
type attachStream struct {
	sse  *SSE
	at   guestapi.Offsets
	text [3]TextDecoder // stdout, stderr, terminal
}

// maxChunkBytes bounds one event, in bytes of output: a client whose connection is cut again and again gets on by
// whole events.
const maxChunkBytes = 4 << 10

// send sends output. The event's id says where the text after it begins, so characters that are held back
// are told again to a client that comes back.
func (f *attachStream) send(ev guestapi.Event) error {
	i, at := f.place(ev.Stream)
	for offset := ev.Offset; len(ev.Data) > 0; {
		piece := ev.Data[:min(len(ev.Data), maxChunkBytes)]
		ev.Data, offset = ev.Data[len(piece):], offset+int64(len(piece))
		chunk := f.text[i].Decode(piece)
		*at = offset - int64(len(f.text[i].held))
		if chunk == "" {
			continue
		}
		if err := f.sse.ID(formatOffsets(f.at), streamName(ev.Stream), api.ExecChunk{Chunk: chunk}); err != nil {
			return err
		}
	}
	return nil
}

func (f *attachStream) place(s guestapi.Stream) (int, *int64) {
	switch s {
	case guestapi.StreamStderr:
		return 1, &f.at.Stderr
	case guestapi.StreamPTY:
		return 2, &f.at.PTY
	case guestapi.StreamStdout:
		return 0, &f.at.Stdout
	}
	return 0, &f.at.Stdout
}

func (f *attachStream) flush() {
	for i, s := range []guestapi.Stream{guestapi.StreamStdout, guestapi.StreamStderr, guestapi.StreamPTY} {
		_, at := f.place(s)
		*at += int64(len(f.text[i].held))
		if rest := f.text[i].Flush(); rest != "" {
			_ = f.sse.ID(formatOffsets(f.at), streamName(s), api.ExecChunk{Chunk: rest}) // the client may be gone
		}
	}
}

// AttachSSE follows a process from the given offsets: events start, stdout and stderr, then exit or
// error. Every chunk has an id from which the stream can be taken up again without loss, as long as the
// guest keeps the output. The process goes on when the client goes away. Failures to attach are returned
// before anything was sent; begin makes the event stream.
func AttachSSE(
	ctx context.Context,
	g guestapi.Guest,
	ref guestapi.ProcessRef,
	from guestapi.Offsets,
	begin func() *SSE,
) error {
	p, err := g.Attach(ctx, ref, from)
	if err != nil {
		return GuestError(err, "process")
	}
	defer p.Close() //nolint:errcheck // lets go of a process that goes on
	f := &attachStream{sse: begin(), at: from}
	defer f.sse.Close()
	began := time.Now()
	if err := f.sse.Event("start", api.ExecStarted{PID: p.PID()}); err != nil {
		return nil //nolint:nilerr // the client is gone
	}
	for {
		ev, err := p.Next(ctx)
		switch {
		case err != nil: // what is held back is told to a client that comes back
			_ = f.sse.Event("error", api.AsError(GuestError(err, "process"))) // the client may be gone
			return nil
		case ev.Exit != nil:
			f.flush()
			took := ev.Exit.Wall
			if took == 0 {
				took = time.Since(began)
			}
			exit := api.ExecExit{
				ExitCode:    ev.Exit.Code,
				DurationMS:  took.Milliseconds(),
				OutOfMemory: ev.Exit.OutOfMemory,
			}
			_ = f.sse.Event("exit", exit) // as above
			return nil
		}
		if err := f.send(ev); err != nil {
			return nil //nolint:nilerr // the client is gone
		}
	}
}
