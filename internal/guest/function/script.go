package function

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"sync"
)

// runScript runs a script for one event. Its standard output is the result.
func (h *shimHandler) runScript(ctx context.Context, c *call, event []byte, to reply) (*failure, *int) {
	input, err := os.CreateTemp(h.server.place.State, "event")
	if err != nil {
		return failed(typeUnsupported, "write the event: %s", err), nil
	}
	defer input.Close() //nolint:errcheck // it is removed
	if err := os.Remove(input.Name()); err != nil {
		return failed(typeUnsupported, "write the event: %s", err), nil
	}
	if _, err := input.WriteAt(event, 0); err != nil {
		return failed(typeUnsupported, "write the event: %s", err), nil
	}
	h.server.mu.Lock()
	env := h.server.environ(
		"PANDASTACK_INVOCATION_ID="+c.id, "PANDASTACK_ATTEMPT="+strconv.Itoa(c.attempt),
		"PANDASTACK_REMAINING_MS="+strconv.FormatInt(c.remaining(), 10), "TRACEPARENT="+c.trace,
	)
	h.server.mu.Unlock()
	var result resultBuffer
	argv := h.script
	if c.rehearsal {
		argv = append(slices.Clone(argv[:len(argv)-1]), os.DevNull) // an empty script
	}
	run := command{argv: argv, env: env, stdin: input, tee: result.add}
	p, err := startProcess(h.server.place, run, false, c.out.add)
	if err != nil {
		return failed(typeUnsupported, "%s", err), nil
	}
	p.add(c)
	c.target.Store(p)
	select {
	case <-p.exited:
	case <-ctx.Done():
		p.kill()
		<-p.exited
	}
	c.memory = p.peak()
	if ctx.Err() != nil {
		return timedOut(), nil
	}
	f, code := exitFailure(p.state, p.memory)
	if *code != 0 {
		return f, code
	}
	data, ok := result.json()
	if !ok {
		return failed(typeResult, "the script has more than %d MiB of output", maxEvent>>20), code
	}
	// A caller that is gone needs no result.
	_ = to.data(data, true)
	return nil, code
}

// resultBuffer keeps the standard output of a script.
type resultBuffer struct {
	mu   sync.Mutex
	data []byte
	over bool
}

func (b *resultBuffer) add(p []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over = b.over || len(b.data)+len(p) > maxEvent; !b.over {
		b.data = append(b.data, p...)
	}
}

// json returns the last line if it is JSON, and else all lines as a string; false if there is too much.
func (b *resultBuffer) json() ([]byte, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	text := bytes.TrimSpace(b.data)
	last := text[bytes.LastIndexByte(text, '\n')+1:]
	if json.Valid(last) {
		return last, !b.over
	}
	all, _ := json.Marshal(string(bytes.ToValidUTF8(b.data, []byte("\ufffd")))) // a string
	return all, !b.over
}
