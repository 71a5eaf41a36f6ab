package control

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/metricshistory"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/ingress/repl"
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

// Bounds of measuring.
const (
	maxBatch     = 100                    // sandboxes of one request
	sampleWindow = 200 * time.Millisecond // for which the use of processors is watched
)

// sampleGuests measures sandboxes, all in the same short time. A sandbox that sleeps has no metrics. One that ended has
// its last ones, if they are known. The error is not_found, beside the metrics of the others, for one that never
// existed.
func (s *Server) sampleGuests(
	r *http.Request,
	p auth.Principal,
	ids []api.SandboxID,
) (map[api.SandboxID]metric, error) {
	out := map[api.SandboxID]metric{}
	guests := map[api.SandboxID]guestapi.Guest{}
	before := map[api.SandboxID]guestapi.Stats{}
	var missing error
	for _, id := range ids {
		b, err := s.sandboxes.Get(r.Context(), p, id)
		if isCode(err, api.NotFound) {
			m, known, err := s.lastPoint(r, p, id)
			switch {
			case isCode(err, api.NotFound):
				missing = err
			case err != nil:
				return nil, err
			case known:
				out[id] = newMetric(m)
				s.history.Record(p, id, time.Now(), m)
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		if b.Status != api.Running {
			continue
		}
		g, err := s.sandboxes.Guest(r.Context(), p, id)
		if err == nil {
			before[id], err = g.Stats(r.Context())
		}
		if err != nil {
			return nil, err
		}
		guests[id] = g
	}
	if len(guests) == 0 {
		return out, missing
	}
	select {
	case <-r.Context().Done():
		return nil, context.Cause(r.Context())
	case <-time.After(sampleWindow):
	}
	for id, g := range guests {
		st, err := g.Stats(r.Context())
		if err != nil {
			return nil, err
		}
		m, ok := metricshistory.Delta(time.Now(), guestStats(before[id]), guestStats(st))
		if !ok {
			continue // it was restarted meanwhile
		}
		out[id] = newMetric(m)
		s.history.Record(p, id, m.At, m)
	}
	return out, missing
}

// guestStats converts what a guest reports about itself.
func guestStats(st guestapi.Stats) api.GuestStats {
	return api.GuestStats{
		CPUs:              st.CPUs,
		CPUBusySeconds:    st.CPUBusy.Seconds(),
		UptimeSeconds:     st.Uptime.Seconds(),
		MemTotalBytes:     st.MemTotal,
		MemAvailableBytes: st.MemAvailable,
		MemCachedBytes:    st.MemCached,
		DiskUsedBytes:     st.DiskUsed,
		DiskTotalBytes:    st.DiskTotal,
		NetRxBytes:        st.NetRx,
		NetTxBytes:        st.NetTx,
	}
}

// lastPoint returns the last measurement of a sandbox that ended. The error is not_found if the sandbox never existed.
func (s *Server) lastPoint(r *http.Request, p auth.Principal, id api.SandboxID) (metricshistory.Point, bool, error) {
	l, err := s.sandboxes.Logs(r.Context(), p, id)
	if err != nil || l.Tombstone == nil || l.Tombstone.Usage == nil || l.Tombstone.Usage.Guest == nil {
		return metricshistory.Point{}, false, err
	}
	return metricshistory.Point{At: l.Tombstone.Ended, Guest: *l.Tombstone.Usage.Guest}, true, nil
}

func newMetric(p metricshistory.Point) metric {
	in := p.Guest
	return metric{
		Timestamp: p.At.UTC(), TimestampUnix: p.At.Unix(), CPUCount: in.CPUs, CPUUsedPct: p.CPUPercent(),
		MemUsed:  in.MemTotalBytes - in.MemAvailableBytes,
		MemTotal: in.MemTotalBytes, MemCache: in.MemCachedBytes,
		DiskUsed: in.DiskUsedBytes, DiskTotal: in.DiskTotalBytes,
	}
}

// clockSlack is by how much a measurement of now may be newer than the end of the requested time.
const clockSlack = 5 * time.Second

// metrics returns the measurements of the requested time: a new one, and earlier ones.
func (s *Server) metrics(r *http.Request, p auth.Principal) (int, any, error) {
	q := r.URL.Query()
	start, err := intParam(q, "start", maxMillis/1000, 0)
	if err != nil {
		return 0, nil, err
	}
	end, err := intParam(q, "end", maxMillis/1000, maxMillis/1000)
	if err != nil {
		return 0, nil, err
	}
	if end < start {
		return 0, nil, api.Errorf(api.Invalid, "end: %d lies before start, %d", end, start)
	}
	if _, err := s.sampleGuests(r, p, []api.SandboxID{sandboxID(r)}); err != nil {
		return 0, nil, err
	}
	last := time.Unix(end+1, 0).Add(-1) // the end of that second
	return http.StatusOK, pointsBetween(s.history.Points(sandboxID(r)), time.Unix(start, 0), last), nil
}

// pointsBetween selects the measurements from start to end. The request itself made the newest one, after the time that
// was "now" for the client.
func pointsBetween(points []metricshistory.Point, start, end time.Time) []metric {
	out := []metric{}
	for i, p := range points {
		at := p.At
		if i == len(points)-1 {
			at = at.Add(-clockSlack)
		}
		if !p.At.Before(start) && !at.After(end) {
			out = append(out, newMetric(p))
		}
	}
	return out
}

func (s *Server) metricsOfMany(r *http.Request, p auth.Principal) (int, any, error) {
	text := strings.Join(r.URL.Query()["sandbox_ids"], ",")
	ids := strings.Split(text, ",")
	if len(ids) > maxBatch || text == "" {
		return 0, nil, api.Errorf(api.Invalid, "sandbox_ids: give 1 to %d ids, separated by commas", maxBatch)
	}
	out := map[string]metric{}
	var asked []api.SandboxID
	for _, id := range ids {
		if !slices.Contains(asked, shortID(id)) {
			asked = append(asked, shortID(id))
		}
	}
	all, err := s.sampleGuests(r, p, asked)
	if isCode(err, api.NotFound) {
		err = nil // sandboxes that do not exist are left out
	}
	for id, m := range all {
		out[string(id)] = m
	}
	return http.StatusOK, map[string]any{"sandboxes": out}, err
}

type logEntry struct {
	Timestamp time.Time         `json:"timestamp"`
	Message   string            `json:"message"`
	Level     string            `json:"level"`
	Fields    map[string]string `json:"fields"`
}

// newLogEntries converts the output of a sandbox to lines of the protocol, oldest first. The console has no times: its
// lines have the time of the sandbox's creation.
func newLogEntries(l sandbox.Logs, begin time.Time) []logEntry {
	out := []logEntry{}
	add := func(level, source, text string, at func(line int) time.Time) {
		n := 0
		for line := range strings.Lines(text) {
			out = append(
				out,
				logEntry{at(n), strings.TrimRight(line, "\r\n"), level, map[string]string{"source": source}},
			)
			n++
		}
	}
	add("debug", "console", l.Console, func(int) time.Time { return begin })
	for _, p := range l.Processes {
		if repl.IsContextTag(p.Tag) {
			continue // messages of its driver are not output
		}
		at := p.Started
		if p.Exited {
			at = p.Ended
		}
		add("info", "stdout", p.Stdout, func(line int) time.Time { return p.StdoutAt.Line(line, at) })
		add("error", "stderr", p.Stderr, func(line int) time.Time { return p.StderrAt.Line(line, at) })
	}
	slices.SortStableFunc(out, func(a, b logEntry) int { return a.Timestamp.Compare(b.Timestamp) })
	return out
}

// levels of log entries, the lowest first.
var levels = []string{"debug", "info", "warn", "error"}

// parseLevel returns the index in levels of the lowest requested level.
func parseLevel(q url.Values) (int, error) {
	text := q.Get("level")
	if text == "" {
		return 0, nil
	}
	i := slices.Index(levels, text)
	if i < 0 {
		return 0, api.Errorf(api.Invalid, "level: %.20q is none of %s", text, strings.Join(levels, ", "))
	}
	return i, nil
}

// logQuery selects entries.
type logQuery struct {
	from, to time.Time // zero: no bound
	backward bool      // newest first
	level    int       // the lowest, an index of levels
	search   string
	limit    int
}

// intParam reads a whole number from the query, from 0 to most.
func intParam(q url.Values, name string, most, fallback int64) (int64, error) {
	text := q.Get(name)
	if text == "" {
		return fallback, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > most {
		return 0, api.Errorf(api.Invalid, "%s: %.20q is not from 0 to %d", name, text, most)
	}
	return n, nil
}

// maxMillis bounds times in queries, in milliseconds: the year 9999.
const maxMillis = 253402300799999

// timeParam reads a time in milliseconds from the query. It returns the zero time if there is none.
func timeParam(q url.Values, name string) (time.Time, error) {
	n, err := intParam(q, name, maxMillis, 0)
	if err != nil || q.Get(name) == "" {
		return time.Time{}, err
	}
	return time.UnixMilli(n), nil
}

// maxLogEntries is how many entries one response has at most.
const maxLogEntries = 1000

func parseLogQuery(q url.Values) (logQuery, error) {
	out := logQuery{search: q.Get("search")}
	limit, err := intParam(q, "limit", 10_000, maxLogEntries)
	if err != nil {
		return out, err
	}
	out.limit = int(limit)
	switch text := q.Get("direction"); text {
	case "", "forward":
	case "backward":
		out.backward = true
	default:
		return out, api.Errorf(api.Invalid, "direction: %.20q is not forward or backward", text)
	}
	if out.level, err = parseLevel(q); err != nil {
		return out, err
	}
	cursor, err := timeParam(q, "cursor")
	if err != nil {
		return out, err
	}
	if out.from, err = timeParam(q, "start"); err != nil {
		return out, err
	}
	if out.backward {
		out.to = cursor
	} else if !cursor.IsZero() {
		out.from = cursor
	}
	return out, nil
}

// apply returns the entries that a query selects: the first of them in its direction.
func (q logQuery) apply(all []logEntry) []logEntry {
	out := []logEntry{}
	if q.backward {
		all = slices.Clone(all)
		slices.Reverse(all)
	}
	for _, e := range all {
		// Times in queries are whole milliseconds.
		at := e.Timestamp.Truncate(time.Millisecond)
		switch {
		case len(out) == q.limit:
			return out
		case at.Before(q.from),
			!q.to.IsZero() && at.After(q.to),
			slices.Index(levels, e.Level) < q.level,
			!strings.Contains(e.Message, q.search):
		default:
			out = append(out, e)
		}
	}
	return out
}

func (s *Server) logs(r *http.Request, p auth.Principal) ([]logEntry, error) {
	q, err := parseLogQuery(r.URL.Query())
	if err != nil {
		return nil, err
	}
	l, err := s.sandboxes.Logs(r.Context(), p, sandboxID(r))
	if err != nil {
		return nil, err
	}
	var begin time.Time
	if l.Tombstone != nil {
		begin = l.Tombstone.Created
	} else if b, err := s.sandboxes.Get(r.Context(), p, sandboxID(r)); err == nil { // it may end at this moment
		begin = b.CreatedAt
	}
	return q.apply(newLogEntries(l, begin)), nil
}

func (s *Server) logsV2(r *http.Request, p auth.Principal) (int, any, error) {
	list, err := s.logs(r, p)
	return http.StatusOK, map[string]any{"logs": list}, err
}

// legacyLine returns an entry as in the first version of this API: JSON in a text, as the agent of that time wrote it.
func legacyLine(e logEntry) string {
	data, err := json.Marshal(map[string]string{"level": e.Level, "logger": e.Fields["source"], "message": e.Message})
	if err != nil { // strings always encode
		return "{}"
	}
	return string(data)
}

func (s *Server) logsV1(r *http.Request, p auth.Principal) (int, any, error) {
	list, err := s.logs(r, p)
	lines := []map[string]any{}
	for _, e := range list {
		lines = append(lines, map[string]any{"timestamp": e.Timestamp, "line": legacyLine(e)})
	}
	return http.StatusOK, map[string]any{"logs": lines, "logEntries": list}, err
}

func (s *Server) teams(_ *http.Request, p auth.Principal) (int, any, error) {
	return http.StatusOK, []map[string]any{
		{"teamID": p.Workspace, "name": p.Workspace, "apiKey": "", "isDefault": true},
	}, nil
}
