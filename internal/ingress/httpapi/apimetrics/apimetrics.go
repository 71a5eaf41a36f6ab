// Package apimetrics counts what the API does, for Prometheus.
package apimetrics

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pandastack/pandastack/api"
)

// countTimeout bounds how long the store may take to count sandboxes for a scrape.
const countTimeout = 5 * time.Second

// Sandboxes counts sandboxes.
type Sandboxes interface {
	Counts(ctx context.Context) (map[api.Status]int, error)
}

// Metrics are the metrics of the API.
type Metrics struct {
	requests  *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
	creates   *prometheus.CounterVec
	boots     *prometheus.HistogramVec
	sandboxes *prometheus.GaugeVec
}

// New registers the metrics.
func New(reg *prometheus.Registry) (*Metrics, error) {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pandastack_http_requests_total", Help: "Requests answered, by route, method and status.",
		}, []string{"route", "method", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "pandastack_http_request_duration_seconds", Help: "Time from request to answer, by route.",
			Buckets: []float64{.002, .005, .01, .02, .05, .1, .15, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"route"}),
		creates: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pandastack_sandbox_creates_total", Help: "Sandboxes asked for, by result and boot mode.",
		}, []string{"result", "boot_mode"}),
		boots: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "pandastack_sandbox_boot_duration_seconds", Help: "Start of a machine until its guest confirmed.",
			Buckets: []float64{.02, .04, .06, .08, .1, .15, .2, .3, .5, 1, 2, 5, 10, 30},
		}, []string{"boot_mode"}),
		sandboxes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "pandastack_sandboxes", Help: "Sandboxes by state.",
		}, []string{"state"}),
	}
	for _, c := range []prometheus.Collector{m.requests, m.seconds, m.creates, m.boots, m.sandboxes} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("httpapi: register metrics: %w", err)
		}
	}
	return m, nil
}

// Observe counts a response. Streams count when they end; their duration is how long they were open.
func (m *Metrics) Observe(route, method string, status int, took time.Duration) {
	m.requests.WithLabelValues(route, boundedMethod(method), strconv.Itoa(status)).Inc()
	m.seconds.WithLabelValues(route).Observe(took.Seconds())
}

// boundedMethod keeps methods that clients invent from creating series.
func boundedMethod(method string) string {
	switch method {
	case "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS":
		return method
	default:
		return "other"
	}
}

// Created counts a create.
func (m *Metrics) Created(box api.Sandbox, err error) {
	if err != nil {
		m.creates.WithLabelValues(string(api.CodeOf(err)), "").Inc()
		return
	}
	m.creates.WithLabelValues("ok", box.BootMode).Inc()
	m.boots.WithLabelValues(box.BootMode).Observe(float64(box.BootMS) / 1000)
}

// Count updates the number of sandboxes. It is called before every scrape.
func (m *Metrics) Count(ctx context.Context, boxes Sandboxes) error {
	ctx, cancel := context.WithTimeoutCause(ctx, countTimeout, errors.New("counting took too long"))
	defer cancel()
	counts, err := boxes.Counts(ctx)
	if err != nil {
		return err
	}
	for _, st := range api.Statuses() {
		m.sandboxes.WithLabelValues(string(st)).Set(float64(counts[st]))
	}
	return nil
}
