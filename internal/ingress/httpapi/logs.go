package httpapi

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/execstream"
	"github.com/pandastack/pandastack/internal/ingress/repl"
)

// logPollInterval is how often a log that is followed is looked at.
const logPollInterval = 500 * time.Millisecond

// logLine is the data of the events of a log that is followed.
type logLine struct {
	Line   string `json:"line"`
	Stream string `json:"stream"`
	PID    uint32 `json:"pid,omitempty"`
}

// logSource is one stream of text in a sandbox's log.
type logSource struct {
	stream string
	pid    uint32
}

func logs(rq *request) error {
	want := rq.r.URL.Query().Get("stream")
	if !slices.Contains([]string{"", "both", "stdout", "stderr", "console"}, want) {
		return api.Errorf(api.Invalid, "stream: %q is not stdout, stderr, console or both", truncate(want)).
			With("field", "stream")
	}
	now, err := onSandbox(rq, rq.s.deps.Sandboxes.Logs)
	if err != nil {
		return err
	}
	if rq.boolParam("follow") {
		return followLogs(rq, want, now)
	}
	rq.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	rq.w.Header().Set("Cache-Control", "no-store")
	rq.w.WriteHeader(http.StatusOK)
	var text strings.Builder
	eachSource(now, want, func(_ logSource, s string) {
		text.WriteString(s)
		if s != "" && !strings.HasSuffix(s, "\n") {
			text.WriteByte('\n')
		}
	})
	_, _ = rq.w.Write([]byte(text.String())) // a client that is gone needs no answer
	return nil
}

// eachSource calls do for every stream of a log that was asked for, the console first. What contexts of
// code say to the server is no output of a user's.
func eachSource(l sandbox.Logs, want string, do func(logSource, string)) {
	all := want == "" || want == "both"
	if all || want == "console" {
		do(logSource{stream: "console"}, l.Console)
	}
	for _, p := range l.Processes {
		if repl.IsContextTag(p.Tag) {
			continue
		}
		if all || want == "stdout" {
			do(logSource{"stdout", p.PID}, p.Stdout)
		}
		if all || want == "stderr" {
			do(logSource{"stderr", p.PID}, p.Stderr)
		}
	}
}

// followLogs sends lines as events until the client goes or the sandbox has ended.
func followLogs(rq *request, want string, now sandbox.Logs) error {
	out := execstream.NewSSE(rq.w)
	defer out.Close()
	tails := map[logSource]*execstream.Tail{}
	tick := time.NewTicker(logPollInterval)
	defer tick.Stop()
	for {
		var broken error
		tell := func(at logSource, text string) {
			if broken == nil {
				broken = out.Event("line", logLine{Line: text, Stream: at.stream, PID: at.pid})
			}
		}
		eachSource(now, want, func(at logSource, text string) {
			t := tails[at]
			if t == nil {
				t = &execstream.Tail{}
				tails[at] = t
			}
			for _, l := range t.Lines(text) {
				tell(at, l)
			}
			if rest := t.Partial(); now.Tombstone != nil && rest != "" {
				tell(at, rest)
			}
		})
		if broken != nil || now.Tombstone != nil {
			return nil
		}
		select {
		case <-rq.r.Context().Done():
			return nil
		case <-tick.C:
		}
		var err error
		if now, err = onSandbox(rq, rq.s.deps.Sandboxes.Logs); err != nil {
			_ = out.Event("error", api.AsError(err)) // the client may be gone
			return nil
		}
	}
}

func hostUsage(rq *request) (api.HostUsage, error) {
	if rq.s.deps.UsageHistory == nil {
		return api.HostUsage{}, errNoUsageHistory
	}
	return onSandbox(rq, rq.s.deps.UsageHistory.Worked)
}

func series(rq *request) (api.Series, error) {
	if rq.s.deps.UsageHistory == nil {
		return api.Series{}, errNoUsageHistory
	}
	return onSandboxWith(rq, rq.r.URL.Query(), rq.s.deps.UsageHistory.Series)
}

var errNoUsageHistory = api.Errorf(api.Unsupported, "this server keeps no measurements")

func events(rq *request) error {
	n, err := rq.intParam("tail", 0, 100_000, 0)
	if err != nil {
		return err
	}
	q := sandbox.EventQuery{Tail: int(n)}
	if last := rq.r.Header.Get("Last-Event-ID"); last != "" {
		if q.After, err = strconv.ParseInt(last, 10, 64); err != nil || q.After < 0 {
			return api.Errorf(
				api.Invalid,
				"Last-Event-ID: %q is not an id of this stream: leave it out to begin anew",
				truncate(last),
			)
		}
	}
	if rq.boolParam("follow") || strings.Contains(rq.r.Header.Get("Accept"), "text/event-stream") {
		return followEvents(rq, q)
	}
	list, err := onSandboxWith(rq, q, rq.s.deps.Sandboxes.Events)
	if err != nil {
		return err
	}
	out := api.EventList{Events: make([]api.Event, 0, len(list))}
	for _, e := range list {
		out.Events = append(out.Events, e.Event)
	}
	writeJSON(rq.w, http.StatusOK, out)
	return nil
}

func followEvents(rq *request, q sandbox.EventQuery) error {
	// Whether the sandbox may be seen is asked before the stream begins, so that a no is an HTTP answer.
	if _, err := onSandboxWith(rq, sandbox.EventQuery{Tail: 1}, rq.s.deps.Sandboxes.Events); err != nil {
		return err
	}
	out := execstream.NewSSE(rq.w)
	defer out.Close()
	gone := errors.New("client has gone")
	_, err := onSandbox(rq, func(ctx context.Context, p auth.Principal, id api.SandboxID) (struct{}, error) {
		return struct{}{}, rq.s.deps.Sandboxes.FollowEvents(ctx, p, id, q, func(e sandbox.Event) error {
			if out.ID(strconv.FormatInt(e.Seq, 10), "event", e.Event) != nil {
				return gone
			}
			return nil
		})
	})
	if err != nil && !errors.Is(err, gone) && rq.r.Context().Err() == nil {
		_ = out.Event("error", api.AsError(err)) // the client may be gone
	}
	return nil
}
