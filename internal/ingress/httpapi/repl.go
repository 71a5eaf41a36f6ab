package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/execstream"
	"github.com/pandastack/pandastack/internal/ingress/repl"
)

// Bounds of the results of one cell, besides its output.
const (
	maxResults     = 256
	maxResultBytes = 32 << 20 // of all results together
)

func replLanguages(*request) (api.ReplLanguages, error) {
	var out api.ReplLanguages
	for _, l := range repl.Languages() {
		out.Languages = append(out.Languages, string(l))
	}
	return out, nil
}

func replSession(id api.SandboxID, c repl.Context) api.ReplSession {
	return api.ReplSession{
		ID:        c.ID,
		SessionID: c.ID,
		SandboxID: id,
		Language:  string(c.Language),
		CreatedAt: c.Created.UTC(),
	}
}

// inGuest calls do with the sandbox in the path and its guest.
func inGuest[T any](rq *request, do func(context.Context, api.Sandbox, guestapi.Guest) (T, error)) (T, error) {
	g, box, err := rq.enter()
	if err != nil {
		var none T
		return none, err
	}
	return do(rq.r.Context(), box, g)
}

func language(text string) (repl.Language, error) {
	l, err := repl.ParseLanguage(text)
	return l, hosterror.OfGuest(err, "language")
}

func startSession(rq *request, req api.ReplSessionRequest) (api.ReplSession, error) {
	return inGuest(rq, func(ctx context.Context, box api.Sandbox, g guestapi.Guest) (api.ReplSession, error) {
		l, err := language(req.Language)
		if err != nil {
			return api.ReplSession{}, err
		}
		if req.User == "" {
			req.User = box.User
		}
		if req.Cwd == "" {
			req.Cwd = box.Workdir
		}
		c, err := rq.s.deps.Cells.Create(ctx, string(box.ID), g, l, req.Cwd, req.User)
		if err != nil {
			return api.ReplSession{}, replError(err, "a context for "+string(l))
		}
		return replSession(box.ID, c), nil
	})
}

func listSessions(rq *request) ([]api.ReplSession, error) {
	return inGuest(rq, func(ctx context.Context, box api.Sandbox, g guestapi.Guest) ([]api.ReplSession, error) {
		list, err := repl.List(ctx, g)
		if err != nil {
			return nil, replError(err, "contexts")
		}
		out := make([]api.ReplSession, 0, len(list))
		for _, c := range list {
			out = append(out, replSession(box.ID, c))
		}
		return out, nil
	})
}

func endSession(rq *request) error {
	_, err := inGuest(rq, func(ctx context.Context, box api.Sandbox, g guestapi.Guest) (struct{}, error) {
		c, err := repl.Find(ctx, g, rq.r.PathValue("session"))
		if err == nil {
			err = rq.s.deps.Cells.End(ctx, string(box.ID), g, c)
		}
		return struct{}{}, replError(err, "session "+truncate(rq.r.PathValue("session")))
	})
	return err
}

func runInSession(rq *request, cell api.ReplCell) (api.ReplResult, error) {
	return inGuest(rq, func(ctx context.Context, box api.Sandbox, g guestapi.Guest) (api.ReplResult, error) {
		subject := "session " + truncate(rq.r.PathValue("session"))
		c, err := repl.ParseID(rq.r.PathValue("session"))
		if err != nil {
			return api.ReplResult{}, replError(err, subject)
		}
		run := func(cell repl.Cell, yield func(repl.Event) error) (repl.Outcome, error) {
			return rq.s.deps.Cells.Run(ctx, string(box.ID), g, c, cell, yield)
		}
		return rq.runCell(c.Language, cell, subject, "the context stays", run)
	})
}

func runOnce(rq *request, req api.ReplOnce) (api.ReplResult, error) {
	return inGuest(rq, func(ctx context.Context, box api.Sandbox, g guestapi.Guest) (api.ReplResult, error) {
		l, err := language(req.Language)
		if err != nil {
			return api.ReplResult{}, err
		}
		run := func(cell repl.Cell, yield func(repl.Event) error) (repl.Outcome, error) {
			return rq.s.deps.Cells.Once(ctx, string(box.ID), g, l, box.Workdir, box.User, cell, yield)
		}
		return rq.runCell(l, req.ReplCell, "cell", "it has ended", run)
	})
}

// runCell runs code by run and collects its output. subject names the context in errors.
//
// The error of a cell that ran out of time is timeout, with its output; then says what happened to its context.
func (rq *request) runCell(
	l repl.Language,
	cell api.ReplCell,
	subject, then string,
	run func(repl.Cell, func(repl.Event) error) (repl.Outcome, error),
) (api.ReplResult, error) {
	if err := rq.pay(minOutput, subject); err != nil {
		return api.ReplResult{}, err
	}
	got := collector{memory: rq.memory}
	got.res = api.ReplResult{Language: string(l), Results: []map[string]string{}}
	end, err := run(repl.Cell{
		Code: cell.Code, Env: cell.Env, Timeout: time.Duration(cell.TimeoutMS) * time.Millisecond,
	}, got.add)
	res := got.result()
	if err != nil {
		return api.ReplResult{}, replError(err, subject)
	}
	res.DurationMS = end.Took.Milliseconds()
	res.ExitCode, res.Exit = end.Code, end.Code
	if end.Interrupted {
		seconds := strconv.FormatFloat(float64(cell.TimeoutMS)/1000, 'f', -1, 64)
		return res, api.Errorf(api.Timeout, "cell timeout after %ss; %s", seconds, then).
			With("stdout", res.Stdout).With("stderr", res.Stderr).With("duration_ms", res.DurationMS)
	}
	return res, nil
}

// minOutput is memory that a cell takes before it runs, so that it is refused then, in bytes.
const minOutput = 64 << 10

// collector collects the events of a cell, as far as memory pays for them.
type collector struct {
	memory      *execstream.Memory
	out, err    strings.Builder
	res         api.ReplResult
	resultBytes int
}

func (c *collector) add(e repl.Event) error {
	switch e.Kind {
	case repl.Stdout:
		c.appendOutput(&c.out, e.Text, &c.res.StdoutTruncated)
	case repl.Stderr:
		c.appendOutput(&c.err, e.Text, &c.res.StderrTruncated)
	case repl.Result:
		c.addResult(e.Data)
	case repl.Failed:
		if text := errorText(e); c.pay(len(text), &c.res.StderrTruncated) {
			c.res.Error = text
		} else {
			c.res.Error = e.Name
		}
	case repl.Count:
	}
	return nil
}

// pay pays for n bytes, or sets truncated.
func (c *collector) pay(n int, truncated *bool) bool {
	ok := c.memory.Take(int64(n)) == nil
	*truncated = *truncated || !ok
	return ok
}

// growth is how much memory a byte takes in a builder that grows: in the old array and in the new one.
const growth = 2

// appendOutput appends text up to the limit that the output of commands has too.
func (c *collector) appendOutput(b *strings.Builder, text string, truncated *bool) {
	if *truncated {
		return
	}
	if room := api.MaxOutput - b.Len(); len(text) > room {
		text, *truncated = strings.ToValidUTF8(text[:room], ""), true
	}
	if c.memory.Take(growth*int64(len(text))) != nil {
		*truncated = true
		return
	}
	b.WriteString(text)
}

// addResult adds a result, if it fits.
func (c *collector) addResult(data map[string]any) {
	n := 0
	for media, v := range data {
		n += len(media) + 64
		switch v := v.(type) {
		case string:
			n += len(v)
		case json.RawMessage:
			n += 2 * len(v) // characters of HTML are escaped
		default:
			n += 2 * maxTableBytes
		}
	}
	if len(c.res.Results) == maxResults || c.resultBytes+n > maxResultBytes || !c.pay(n, &c.res.ResultsTruncated) {
		c.res.ResultsTruncated = true
		return
	}
	c.resultBytes += n
	c.res.Results = append(c.res.Results, textBundle(data))
}

// maxTableBytes is more than the columns of a table of comma-separated values take.
const maxTableBytes = 2 << 20

// result returns what was collected.
func (c *collector) result() api.ReplResult {
	c.res.Stdout, c.res.Stderr = c.out.String(), c.err.String()
	return c.res
}

// textBundle converts every form of a result to text: what is not text is encoded as JSON.
func textBundle(data map[string]any) map[string]string {
	out := make(map[string]string, len(data))
	for media, v := range data {
		if s, ok := v.(string); ok && media != "application/json" {
			out[media] = s
			continue
		}
		if b, err := json.Marshal(v); err == nil {
			out[media] = string(b)
		}
	}
	return out
}

func errorText(e repl.Event) string {
	if e.Traceback != "" {
		return e.Traceback
	}
	return e.Name + ": " + e.Value
}

func replError(err error, subject string) error {
	if errors.Is(err, repl.ErrEnded) {
		return api.Wrap(api.NotFound, err, subject+": the context has ended: start another one")
	}
	return hosterror.OfGuest(err, subject)
}
