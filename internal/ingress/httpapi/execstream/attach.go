package execstream

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
)

// Process returns the description of a process for clients.
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

// ParseOffsets parses the id of an event of AttachSSE; "" is the beginning.
func ParseOffsets(id string) (guestapi.Offsets, error) {
	var o guestapi.Offsets
	if id == "" {
		return o, nil
	}
	if n, err := fmt.Sscanf(id, "%d-%d-%d", &o.Stdout, &o.Stderr, &o.PTY); n != 3 || err != nil ||
		o.Stdout < 0 || o.Stderr < 0 || o.PTY < 0 || formatOffsets(o) != id {
		return guestapi.Offsets{}, api.Errorf(api.Invalid,
			"Last-Event-ID: %.60q is not an id of this stream: leave it out to start from the beginning", id).
			With("field", "Last-Event-ID")
	}
	return o, nil
}

func formatOffsets(o guestapi.Offsets) string {
	return fmt.Sprintf("%d-%d-%d", o.Stdout, o.Stderr, o.PTY)
}

// attachStream sends the output of a process and tracks up to which offset it was sent.
type attachStream struct {
	sse  *SSE
	at   guestapi.Offsets // where the text of the next event begins
	text map[guestapi.Stream]*TextDecoder
}

// maxChunkBytes bounds the output in one event. A client whose connection is cut again and again makes progress
// by whole events.
const maxChunkBytes = 4 << 10

// send sends output. The id of an event is the offset behind its text, so a client that resumes gets the
// characters that were still incomplete.
func (f *attachStream) send(ev guestapi.Event) error {
	text, at := f.decoder(ev.Stream), f.at.Of(ev.Stream)
	for offset := ev.Offset; len(ev.Data) > 0; {
		piece := ev.Data[:min(len(ev.Data), maxChunkBytes)]
		ev.Data, offset = ev.Data[len(piece):], offset+int64(len(piece))
		chunk := text.Decode(piece)
		*at = offset - int64(len(text.held))
		if chunk == "" {
			continue
		}
		if err := f.sse.ID(formatOffsets(f.at), streamName(ev.Stream), api.ExecChunk{Chunk: chunk}); err != nil {
			return err
		}
	}
	return nil
}

func (f *attachStream) decoder(s guestapi.Stream) *TextDecoder {
	if f.text == nil {
		f.text = map[guestapi.Stream]*TextDecoder{}
	}
	if f.text[s] == nil {
		f.text[s] = &TextDecoder{}
	}
	return f.text[s]
}

// flush sends what is left of incomplete characters when the process has exited.
func (f *attachStream) flush() {
	for _, s := range []guestapi.Stream{guestapi.StreamStdout, guestapi.StreamStderr, guestapi.StreamPTY} {
		text := f.decoder(s)
		*f.at.Of(s) += int64(len(text.held))
		if rest := text.Flush(); rest != "" {
			_ = f.sse.ID(formatOffsets(f.at), streamName(s), api.ExecChunk{Chunk: rest}) // the client may be gone
		}
	}
}

// AttachSSE follows a process from the given offsets and sends its output as server-sent events.
//
// The events are start, stdout and stderr, then exit or error. Every chunk has an id from which the
// stream can be resumed without loss, as long as the guest keeps the output. The process continues when the client
// goes away. A failure to attach is returned before anything was sent; begin makes the event stream.
func AttachSSE(
	ctx context.Context,
	g guestapi.Guest,
	ref guestapi.ProcessRef,
	from guestapi.Offsets,
	begin func() *SSE,
) error {
	f := &attachStream{at: from}
	defer func() {
		if f.sse != nil {
			f.sse.Close()
		}
	}()
	began := time.Now()
	exit, err := guestexec.Attach(ctx, g, ref, from, guestexec.Sink{
		Started: func(pid uint32) error {
			f.sse = begin()
			return f.sse.Event("start", api.ExecStarted{PID: pid})
		},
		Output: f.send,
	})
	if f.sse == nil {
		return hosterror.OfGuest(err, "process")
	}
	if err != nil { // incomplete characters are sent to the client if it resumes
		_ = f.sse.Event("error", api.AsError(hosterror.OfGuest(err, "process"))) // the client may be gone
		return nil
	}
	f.flush()
	took := exit.Wall
	if took == 0 {
		took = time.Since(began)
	}
	_ = f.sse.Event("exit", api.ExecExit{ // the client may be gone
		ExitCode: exit.Code, DurationMS: took.Milliseconds(), OutOfMemory: exit.OutOfMemory,
	})
	return nil
}
