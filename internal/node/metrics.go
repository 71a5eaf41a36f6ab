package node

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/lib/obs"
)

// metrics makes what /metrics shows beside the series of the API itself: the process, the host, and the ends of
// operations on sandboxes, which the function takes.
func (n *node) metrics(
	host hostapi.Host,
) (*prometheus.Registry, func(verb string, code api.Code, took time.Duration), error) {
	reg, err := obs.NewRegistry()
	if err != nil {
		return nil, nil, err
	}
	ops, err := obs.NewOperations(reg, "pandastack_sandbox")
	if err != nil {
		return nil, nil, err
	}
	if err := reg.Register(newHostCollector(host, n.Version)); err != nil {
		return nil, nil, err
	}
	return reg, func(verb string, code api.Code, took time.Duration) { ops.Observe(verb, string(code), took) }, nil
}

// hostTime bounds how long the host may take to tell its state for a scrape.
const hostTime = 5 * time.Second

// hostCollector asks the host at every scrape. A host that does not answer has pandastack_host_up 0, and no other series.
type hostCollector struct {
	host    hostapi.Host
	version string
	up, info, cpus, memory, memoryFree, disk, diskFree,
	machines, running, baked *prometheus.Desc
}

func newHostCollector(host hostapi.Host, version string) *hostCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("pandastack_"+name, help, labels, nil)
	}
	return &hostCollector{
		host: host, version: version,
		up: desc("host_up", "1 if the host agent answers."),
		info: desc(
			"node_info",
			"What runs here; always 1.",
			"version",
			"driver",
			"driver_version",
			"accelerator",
			"isolation",
		),
		cpus:       desc("host_cpus", "Processors of the host."),
		memory:     desc("host_memory_bytes", "Memory of the host that sandboxes may have."),
		memoryFree: desc("host_memory_free_bytes", "Memory that may still be promised to sandboxes."),
		disk:       desc("host_disk_bytes", "Size of the data directory's file system."),
		diskFree:   desc("host_disk_free_bytes", "Room on the data directory's file system."),
		machines:   desc("host_machines", "Machines that the host knows, hibernated ones too."),
		running:    desc("host_machines_running", "Machines that run or are paused."),
		baked:      desc("template_baked", "1 if a template that comes with the program is baked.", "template"),
	}
}

// Describe implements prometheus.Collector.
func (c *hostCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.up, c.info, c.cpus, c.memory, c.memoryFree, c.disk, c.diskFree, c.machines, c.running, c.baked} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *hostCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeoutCause(
		context.Background(),
		hostTime,
		errors.New("the host took too long to answer"),
	)
	defer cancel()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	has, err := c.host.Capacity(ctx)
	if err != nil {
		gauge(c.up, 0)
		return
	}
	gauge(c.up, 1)
	gauge(c.info, 1, c.version, has.Driver, has.Version, has.Accelerator, has.Isolation)
	gauge(c.cpus, float64(has.VCPUs))
	gauge(c.memory, mib(has.MemoryMiB))
	gauge(c.memoryFree, mib(has.MemoryFreeMiB))
	gauge(c.disk, mib(has.DiskMiB))
	gauge(c.diskFree, mib(has.DiskFreeMiB))
	gauge(c.machines, float64(has.Machines))
	gauge(c.running, float64(has.Running))
	templates, err := c.host.Templates(ctx)
	if err != nil {
		return // they are told at the next scrape
	}
	for _, t := range templates {
		if t.Published {
			continue // there may be any number of those that users build
		}
		baked := 0.0
		if t.Baked {
			baked = 1
		}
		gauge(c.baked, baked, string(t.Name))
	}
}

func mib(n int) float64 { return float64(n) * (1 << 20) }
