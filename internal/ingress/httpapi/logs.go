package httpapi

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/execstream"
	"github.com/pandastack/pandastack/internal/ingress/repl"
)

// logPollInterval is how often a log that is followed is read.
const logPollInterval = 500 * time.Millisecond

// logLine is the data of events of a log that is followed.
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
	_, _ = rq.w.Write([]byte(text.String())) // the client may have closed the connection
	return nil
}

// eachSource calls do for every requested stream of a log, the console first. Messages between contexts of code and the
// server are not output of a user.
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

// followLogs sends lines as events until the client disconnects or the sandbox has ended.
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
			_ = out.Event("error", api.AsError(err)) // the client may have disconnected
			return nil
		}
	}
}
