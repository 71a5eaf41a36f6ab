package obs

import (
	"cmp"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// NewRegistry returns a registry with the metrics of the Go runtime and the process.
func NewRegistry() (*prometheus.Registry, error) {
	r := prometheus.NewRegistry()
	return r, errors.Join(
		r.Register(collectors.NewGoCollector()),
		r.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})))
}

// Operations counts and times operations by name. It is safe for concurrent use.
type Operations struct {
	total   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
}

// NewOperations registers the metrics of operations, with names that begin with prefix.
//
// They are <prefix>_operations_total, by operation and code, and <prefix>_operation_duration_seconds, by operation.
// It returns an error if they are registered already.
func NewOperations(r prometheus.Registerer, prefix string) (*Operations, error) {
	o := &Operations{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "_operations_total", Help: "Operations that ended, by what they were and how: ok, or " +
				"the code of the error.",
		}, []string{"operation", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: prefix + "_operation_duration_seconds", Help: "How long operations took that went well.",
			Buckets: []float64{.002, .005, .01, .02, .05, .1, .15, .2, .3, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"operation"}),
	}
	return o, errors.Join(r.Register(o.total), r.Register(o.seconds))
}

// Observe records the end of an operation. code is empty for success. Names and codes must be of a bounded set.
func (o *Operations) Observe(name, code string, took time.Duration) {
	o.total.WithLabelValues(name, cmp.Or(code, "ok")).Inc()
	if code == "" {
		o.seconds.WithLabelValues(name).Observe(took.Seconds())
	}
}
