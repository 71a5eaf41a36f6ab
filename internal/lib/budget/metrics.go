package budget

import (
	"maps"

	"github.com/prometheus/client_golang/prometheus"
)

// The series of all pools; the label is the pool's name.
var (
	totalDesc = prometheus.NewDesc(
		"pandastack_budget_total", "Units that all owners share.", []string{"budget"}, nil)
	usedDesc = prometheus.NewDesc(
		"pandastack_budget_used", "Units in use.", []string{"budget"}, nil)
	largestDesc = prometheus.NewDesc(
		"pandastack_budget_largest_owner", "Units of the largest owner of the top level.", []string{"budget"}, nil)
	refusedDesc = prometheus.NewDesc(
		"pandastack_budget_refused_total", "Refusals, by level.", []string{"budget", "level"}, nil)
)

// Collector is a prometheus.Collector of pools.
type Collector []*Pool

// Describe implements prometheus.Collector.
func (Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{totalDesc, usedDesc, largestDesc, refusedDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c Collector) Collect(ch chan<- prometheus.Metric) {
	for _, p := range c {
		if p == nil {
			continue
		}
		p.mu.Lock()
		used, largest, refused := p.root.used, int64(0), maps.Clone(p.refused)
		for _, o := range p.root.children {
			largest = max(largest, o.used)
		}
		p.mu.Unlock()
		gauge := func(d *prometheus.Desc, v int64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), p.cfg.Name)
		}
		gauge(totalDesc, p.cfg.Total)
		gauge(usedDesc, used)
		gauge(largestDesc, largest)
		for level, n := range refused {
			ch <- prometheus.MustNewConstMetric(refusedDesc, prometheus.CounterValue, float64(n), p.cfg.Name, level)
		}
	}
}
