package appedge

import (
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pandastack/pandastack/api"
)

// window is how long figures are collected before they become the earlier ones. Stats are of two windows.
const window = 30 * time.Minute

// stats are the figures of an app.
type stats struct {
	now, before figures
	wakes       int64
}

// figures are about the requests of one window.
type figures struct {
	since    time.Time
	requests int64
	classes  [6]int64 // of statuses, by their first digit; 0: the client left before
	times    [buckets]int64
}

func newStats(now time.Time) stats {
	return stats{now: figures{since: now}, before: figures{since: now}}
}

// Times until responses begin are counted in buckets, of which each is a quarter longer than the one before: the first
// ends at 0.1 ms, the last at over ten minutes.
const (
	buckets   = 72
	firstMs   = 0.1
	bucketLog = 0.2231435513142097 // ln 1.25
)

func bucketOf(took time.Duration) int {
	ms := float64(took) / float64(time.Millisecond)
	if ms <= firstMs {
		return 0
	}
	return min(buckets-1, int(math.Ceil(math.Log(ms/firstMs)/bucketLog)))
}

func (s *stats) turn(now time.Time) {
	if now.Sub(s.now.since) >= window {
		s.before, s.now = s.now, figures{since: now}
		if now.Sub(s.before.since) >= 3*window { // there were no requests for long
			s.before = figures{since: now}
		}
	}
}

func (s *stats) add(now time.Time, status int, took time.Duration) {
	s.turn(now)
	s.now.requests++
	s.now.classes[min(status/100, 5)]++
	s.now.times[bucketOf(took)]++
}

// quantile returns the time in milliseconds within which the part q of the responses began.
func quantile(times [buckets]int64, total int64, q float64) float64 {
	if total == 0 {
		return 0
	}
	want := int64(math.Ceil(q * float64(total)))
	var sum int64
	for i, n := range times {
		if sum += n; sum >= want {
			return math.Round(firstMs*math.Pow(1.25, float64(i))*100) / 100
		}
	}
	return 0
}

// record counts a request that has ended.
func (a *app) record(w *recorder) {
	now := time.Now()
	if w.status == 0 {
		w.took = now.Sub(w.began)
	}
	a.edge.metrics.request(w.status, w.took)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stats.add(now, w.status, w.took)
}

// Stats returns the figures of an app that the edge knows: of its requests of the last 30 to 60 minutes. Times are
// those until a response began.
func (e *Edge) Stats(id api.AppID) api.AppStats {
	out := api.AppStats{Statuses: map[string]int64{}, Since: time.Now().UTC()}
	a := e.known(id)
	if a == nil {
		return out
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	s := &a.stats
	s.turn(time.Now())
	times := s.now.times
	for i, n := range s.before.times {
		times[i] += n
	}
	out.Requests = s.now.requests + s.before.requests
	for class := 1; class < len(s.now.classes); class++ {
		if n := s.now.classes[class] + s.before.classes[class]; n > 0 {
			out.Statuses[strconv.Itoa(class)+"xx"] = n
		}
	}
	out.P50Ms = quantile(times, out.Requests, 0.50)
	out.P95Ms = quantile(times, out.Requests, 0.95)
	out.P99Ms = quantile(times, out.Requests, 0.99)
	out.InFlight, out.Wakes, out.Since = a.requests, s.wakes, s.before.since.UTC()
	return out
}

// metrics are the figures of all apps together.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  prometheus.Histogram
	wakes    *prometheus.CounterVec
	waking   prometheus.Histogram
	inFlight prometheus.GaugeFunc
}

func newMetrics(e *Edge) *metrics {
	times := []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	return &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pandastack_app_requests_total", Help: "Requests to apps, by class of status.",
		}, []string{"class"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "pandastack_app_response_seconds", Help: "Time until responses of apps began.", Buckets: times,
		}),
		wakes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pandastack_app_wakes_total", Help: "Wakes of apps, by outcome.",
		}, []string{"outcome"}),
		waking: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "pandastack_app_wake_seconds", Help: "Time that wakes of apps took.", Buckets: times,
		}),
		inFlight: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "pandastack_app_requests_in_flight", Help: "Requests to apps that are under way or wait.",
		}, func() float64 { return float64(e.inFlight()) }),
	}
}

func (e *Edge) inFlight() (all int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range e.apps {
		a.mu.Lock()
		all += a.requests
		a.mu.Unlock()
	}
	return all
}

func (m *metrics) request(status int, took time.Duration) {
	class := "canceled"
	if status >= http.StatusContinue {
		class = strconv.Itoa(min(status/100, 5)) + "xx"
	}
	m.requests.WithLabelValues(class).Inc()
	m.seconds.Observe(took.Seconds())
}

func (m *metrics) wake(took time.Duration, err error) {
	outcome := "ok"
	if err != nil {
		outcome = "error"
	}
	m.wakes.WithLabelValues(outcome).Inc()
	m.waking.Observe(took.Seconds())
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.seconds, m.wakes, m.waking, m.inFlight}
}

// Describe implements prometheus.Collector.
func (e *Edge) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range e.metrics.all() {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (e *Edge) Collect(ch chan<- prometheus.Metric) {
	for _, c := range e.metrics.all() {
		c.Collect(ch)
	}
}
