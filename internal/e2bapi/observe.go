package e2bapi

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/auth"
	"github.com/pandastack/pandastack/internal/sandbox"
)

type metric struct {
	Timestamp     time.Time `json:"timestamp"`
	TimestampUnix int64     `json:"timestampUnix"`
	CPUCount      int       `json:"cpuCount"`
	CPUUsedPct    float64   `json:"cpuUsedPct"`
	MemUsed       int64     `json:"memUsed"`
	MemTotal      int64     `json:"memTotal"`
	MemCache      int64     `json:"memCache"`
	DiskUsed      int64     `json:"diskUsed"`
	DiskTotal     int64     `json:"diskTotal"`
}

// measure asks the sandbox itself; one that rests has no metrics, and one that ended the last of its life, if they
// are known.
func (s *Server) measure(r *http.Request, p auth.Principal, id api.SandboxID) ([]metric, error) {
	b, err := s.sandboxes.Get(r.Context(), p, id)
	if isCode(err, api.NotFound) {
		return s.measured(r, p, id)
	}
	if err != nil || b.Status != api.Running {
		return []metric{}, err
	}
	g, err := s.sandboxes.Guest(r.Context(), p, id)
	if err != nil {
		return nil, err
	}
	st, err := g.Stats(r.Context())
	if err != nil {
		return nil, err
	}
	return []metric{metricOf(time.Now(), api.Inside{CPUs: st.CPUs, CPUBusySeconds: st.CPUBusy.Seconds(), UptimeSeconds: st.Uptime.Seconds(),
		MemTotalBytes: st.MemTotal, MemAvailableBytes: st.MemAvailable, MemCachedBytes: st.MemCached,
		DiskUsedBytes: st.DiskUsed, DiskTotalBytes: st.DiskTotal})}, nil
}

// measured gives what was known last of a sandbox that ended; the error that it is not there if it never was.
func (s *Server) measured(r *http.Request, p auth.Principal, id api.SandboxID) ([]metric, error) {
	l, err := s.sandboxes.Logs(r.Context(), p, id)
	if err != nil || l.Ending == nil || l.Ending.Usage == nil || l.Ending.Usage.Guest == nil {
		return []metric{}, err
	}
	return []metric{metricOf(l.Ending.Ended, *l.Ending.Usage.Guest)}, nil
}

func metricOf(at time.Time, in api.Inside) metric {
	m := metric{
		Timestamp: at.UTC(), TimestampUnix: at.Unix(), CPUCount: in.CPUs, MemUsed: in.MemTotalBytes - in.MemAvailableBytes,
		MemTotal: in.MemTotalBytes, MemCache: in.MemCachedBytes, DiskUsed: in.DiskUsedBytes, DiskTotal: in.DiskTotalBytes,
	}
	if in.UptimeSeconds > 0 && in.CPUs > 0 {
		m.CPUUsedPct = 100 * in.CPUBusySeconds / in.UptimeSeconds / float64(in.CPUs)
	}
	return m
}

func (s *Server) metrics(r *http.Request, p auth.Principal) (int, any, error) {
	list, err := s.measure(r, p, idOf(r))
	return http.StatusOK, list, err
}

// maxMany bounds the sandboxes of one question.
const maxMany = 100

func (s *Server) metricsOfMany(r *http.Request, p auth.Principal) (int, any, error) {
	ids := strings.Split(r.URL.Query().Get("sandbox_ids"), ",")
	if len(ids) > maxMany || ids[0] == "" {
		return 0, nil, api.Errorf(api.Invalid, "sandbox_ids: give 1 to %d ids, separated by commas", maxMany)
	}
	out := map[string]metric{}
	for _, id := range ids {
		list, err := s.measure(r, p, api.SandboxID(id))
		if err != nil && !isCode(err, api.NotFound) {
			return 0, nil, err
		}
		for _, m := range list {
			out[id] = m
		}
	}
	return http.StatusOK, map[string]any{"sandboxes": out}, nil
}

type logEntry struct {
	Timestamp time.Time         `json:"timestamp"`
	Message   string            `json:"message"`
	Level     string            `json:"level"`
	Fields    map[string]string `json:"fields"`
}

// entriesOf puts what a sandbox printed into the protocol's lines. The console carries no times: its
// lines have that of the question.
func entriesOf(l sandbox.Logs, now time.Time) []logEntry {
	out := []logEntry{}
	add := func(t time.Time, level, source, text string) {
		for line := range strings.Lines(text) {
			out = append(out, logEntry{t, strings.TrimRight(line, "\r\n"), level, map[string]string{"source": source}})
		}
	}
	for _, p := range l.Processes {
		at := p.Started
		if p.Exited {
			at = p.Ended
		}
		add(at, "info", "stdout", p.Stdout)
		add(at, "error", "stderr", p.Stderr)
	}
	add(now, "debug", "console", l.Console)
	return out
}

func limitOf(r *http.Request, fallback int) (int, error) {
	text := r.URL.Query().Get("limit")
	if text == "" {
		return fallback, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > 10_000 {
		return 0, api.Errorf(api.Invalid, "limit: %.20q is not from 0 to 10000", text)
	}
	return n, nil
}

func (s *Server) logs(r *http.Request, p auth.Principal) ([]logEntry, error) {
	limit, err := limitOf(r, 1000)
	if err != nil {
		return nil, err
	}
	l, err := s.sandboxes.Logs(r.Context(), p, idOf(r))
	if err != nil {
		return nil, err
	}
	q := r.URL.Query()
	out := []logEntry{}
	for _, e := range entriesOf(l, time.Now().UTC()) {
		if level := q.Get("level"); level != "" && level != e.Level || !strings.Contains(e.Message, q.Get("search")) {
			continue
		}
		out = append(out, e)
	}
	return out[max(0, len(out)-limit):], nil
}

func (s *Server) logsV2(r *http.Request, p auth.Principal) (int, any, error) {
	list, err := s.logs(r, p)
	return http.StatusOK, map[string]any{"logs": list}, err
}

// lineOf is an entry as the first version of this API has it: JSON in a text, as the agent of that time wrote it.
func lineOf(e logEntry) string {
	data, err := json.Marshal(map[string]string{"level": e.Level, "logger": e.Fields["source"], "message": e.Message})
	if err != nil { // texts always encode
		return "{}"
	}
	return string(data)
}

func (s *Server) logsV1(r *http.Request, p auth.Principal) (int, any, error) {
	list, err := s.logs(r, p)
	lines := []map[string]any{}
	for _, e := range list {
		lines = append(lines, map[string]any{"timestamp": e.Timestamp, "line": lineOf(e)})
	}
	return http.StatusOK, map[string]any{"logs": lines, "logEntries": list}, err
}

func (s *Server) teams(_ *http.Request, p auth.Principal) (int, any, error) {
	return http.StatusOK, []map[string]any{{"teamID": p.Workspace, "name": p.Workspace, "apiKey": "", "isDefault": true}}, nil
}
