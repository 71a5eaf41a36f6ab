package insight

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
)

const (
	sampleEvery = 15 * time.Second
	sampleLimit = 10 * time.Second // of one round
	atOnce      = 16               // databases that are measured at a time
)

// span is a range of time with the step of the points that are kept for it.
type span struct {
	name    string
	length  time.Duration
	step    time.Duration
	buckets []string // that it can be read in, the default first
}

// spans are the ranges of metrics. Each has points of its own, so that a month costs no more memory than an hour.
var spans = []span{
	{"1h", time.Hour, 15 * time.Second, []string{"15s", "1m", "5m"}},
	{"24h", 24 * time.Hour, 5 * time.Minute, []string{"5m", "30m", "2h"}},
	{"7d", 7 * 24 * time.Hour, 30 * time.Minute, []string{"30m", "2h"}},
	{"30d", 30 * 24 * time.Hour, 2 * time.Hour, []string{"2h"}},
}

// Target is a server to measure.
type Target struct {
	Database  api.DatabaseID
	Sandbox   api.SandboxID
	Principal auth.Principal // as which its sandbox can be measured
}

// Sandboxes measures sandboxes; *sandbox.Service implements it. Measuring wakes no sandbox and does not count as use.
type Sandboxes interface {
	Usage(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Usage, error)
}

// Recorder measures the servers of databases periodically and keeps what it measured, in memory. Make it with
// NewRecorder; Run measures.
type Recorder struct {
	sandboxes Sandboxes
	targets   func(context.Context) ([]Target, error)

	mu     sync.Mutex
	series map[api.DatabaseID]*series // guarded by mu
}

// NewRecorder returns a recorder of the servers that targets returns.
func NewRecorder(sandboxes Sandboxes, targets func(context.Context) ([]Target, error)) *Recorder {
	return &Recorder{sandboxes: sandboxes, targets: targets, series: map[api.DatabaseID]*series{}}
}

// series is what was measured of one database.
type series struct {
	sandbox api.SandboxID
	last    *api.Usage // last sample of a server that ran
	points  [][]point  // for each of spans, oldest first
}

// point is the sum of the samples of one step.
type point struct {
	at                  time.Time
	busy, capacity      float64 // seconds of the processors
	memory              float64 // sum over samples
	samples             float64
	rx, tx, read, wrote int64
}

func (p *point) add(o point) {
	p.busy, p.capacity = p.busy+o.busy, p.capacity+o.capacity
	p.memory, p.samples = p.memory+o.memory, p.samples+o.samples
	p.rx, p.tx, p.read, p.wrote = p.rx+o.rx, p.tx+o.tx, p.read+o.read, p.wrote+o.wrote
}

func (p point) shown() api.DatabaseMetricPoint {
	out := api.DatabaseMetricPoint{
		TS: p.at, NetRxBytes: p.rx, NetTxBytes: p.tx, DiskRead: p.read, DiskWrite: p.wrote,
		MemBytes: int64(p.memory / max(p.samples, 1)),
	}
	if p.capacity > 0 {
		out.CPUPct = 100 * p.busy / p.capacity
	}
	return out
}

// between returns what happened between two samples. false: the machine was started again in between.
func between(at time.Time, a, b *api.Usage) (point, bool) {
	up := b.Guest.UptimeSeconds - a.Guest.UptimeSeconds
	if a.PID != b.PID || up <= 0 {
		return point{}, false
	}
	diff := func(before, now int64) int64 { return max(now-before, 0) }
	return point{
		at: at, samples: 1, memory: float64(max(b.Guest.MemTotalBytes-b.Guest.MemAvailableBytes, 0)),
		busy:     max(b.Guest.CPUBusySeconds-a.Guest.CPUBusySeconds, 0),
		capacity: up * float64(max(b.Guest.CPUs, 1)),
		rx:       diff(a.Guest.NetRxBytes, b.Guest.NetRxBytes), tx: diff(a.Guest.NetTxBytes, b.Guest.NetTxBytes),
		read: diff(a.HostReadBytes, b.HostReadBytes), wrote: diff(a.HostWrittenBytes, b.HostWrittenBytes),
	}, true
}

// Run measures until ctx ends.
func (r *Recorder) Run(ctx context.Context) error {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			r.sample(ctx)
		}
	}
}

// sample measures all servers once.
func (r *Recorder) sample(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, sampleLimit)
	defer cancel()
	targets, err := r.targets(ctx)
	if err != nil {
		return // the next round reads them again
	}
	r.keep(targets)
	var all errgroup.Group
	all.SetLimit(atOnce)
	for _, t := range targets {
		all.Go(func() error {
			u, err := r.sandboxes.Usage(ctx, t.Principal, t.Sandbox)
			if err != nil {
				u = api.Usage{} // a gap
			}
			r.add(t, time.Now().UTC(), u)
			return nil
		})
	}
	_ = all.Wait() // they return no errors
}

// keep makes the series of targets and drops those of databases that are gone.
func (r *Recorder) keep(targets []Target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := make(map[api.DatabaseID]*series, len(targets))
	for _, t := range targets {
		s := r.series[t.Database]
		if s == nil {
			s = &series{points: make([][]point, len(spans))}
		}
		if s.sandbox != t.Sandbox {
			s.sandbox, s.last = t.Sandbox, nil
		}
		kept[t.Database] = s
	}
	r.series = kept
}

// add adds a sample of a server.
func (r *Recorder) add(t Target, at time.Time, u api.Usage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.series[t.Database]
	if s == nil || s.sandbox != t.Sandbox {
		return
	}
	before := s.last
	s.last = nil
	if u.Guest == nil {
		return
	}
	s.last = &u
	if before == nil {
		return
	}
	p, ok := between(at, before, &u)
	if !ok {
		return
	}
	for i, sp := range spans {
		s.points[i] = merge(s.points[i], p, sp.step)
		if oldest := at.Add(-sp.length - sp.step); s.points[i][0].at.Before(oldest) {
			s.points[i] = slices.Delete(s.points[i], 0, 1)
		}
	}
}

// merge adds a point to those of its step.
func merge(points []point, p point, step time.Duration) []point {
	p.at = p.at.Truncate(step)
	if n := len(points); n > 0 && !points[n-1].at.Before(p.at) {
		points[n-1].add(p)
		return points
	}
	return append(points, p)
}

// Metrics returns what was measured of a server since the node started.
//
// A bucket that is not kept for the range is an error that names those that are.
func (s *Service) Metrics(
	ctx context.Context,
	p auth.Principal,
	id api.DatabaseID,
	name, bucket string,
) (api.DatabaseMetrics, error) {
	name = cmp.Or(name, spans[0].name)
	i := slices.IndexFunc(spans, func(s span) bool { return s.name == name })
	if i < 0 {
		return api.DatabaseMetrics{}, api.Errorf(api.Invalid, "range: %.60q is not 1h, 24h, 7d or 30d", name).
			With("field", "range")
	}
	bucket = cmp.Or(bucket, spans[i].buckets[0])
	if !slices.Contains(spans[i].buckets, bucket) {
		return api.DatabaseMetrics{}, api.Errorf(api.Invalid, "bucket: %.60q is not kept for %s: use %s", bucket, name,
			strings.Join(spans[i].buckets, " or ")).With("field", "bucket")
	}
	if _, err := s.deps.Get(ctx, p, id); err != nil {
		return api.DatabaseMetrics{}, err
	}
	step, err := time.ParseDuration(bucket)
	if err != nil {
		return api.DatabaseMetrics{}, err
	}
	now := time.Now().UTC()
	out := api.DatabaseMetrics{
		Range: name, Bucket: bucket, BucketSeconds: int(step / time.Second), From: now.Add(-spans[i].length), To: now,
		Points: s.deps.Recorder.points(id, i, step, now),
	}
	out.Empty = len(out.Points) == 0
	return out, nil
}

// points returns the points of a database for one of spans in steps.
func (r *Recorder) points(id api.DatabaseID, i int, step time.Duration, now time.Time) []api.DatabaseMetricPoint {
	r.mu.Lock()
	defer r.mu.Unlock()
	var merged []point
	if s := r.series[id]; s != nil {
		for _, p := range s.points[i] {
			if p.at.Add(spans[i].step).After(now.Add(-spans[i].length)) {
				merged = merge(merged, p, step)
			}
		}
	}
	out := make([]api.DatabaseMetricPoint, 0, len(merged))
	for _, p := range merged {
		out = append(out, p.shown())
	}
	return out
}
