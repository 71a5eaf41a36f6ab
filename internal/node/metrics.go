package node

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/lib/budget"
	"github.com/pandastack/pandastack/internal/lib/obs"
)

// metrics creates the registry behind /metrics with the series of the process, of the host and of operations on
// sandboxes. The returned function records the end of an operation. The API adds series of its own.
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
	if err := reg.Register(budget.Collector(n.budgets)); err != nil {
		return nil, nil, err
	}
	return reg, func(verb string, code api.Code, took time.Duration) { ops.Observe(verb, string(code), took) }, nil
}

// hostTimeout is how long a scrape waits for the host.
const hostTimeout = 5 * time.Second

// hostCollector queries the host at every scrape. If the host does not reply, pandastack_host_up is 0 and the other
// series are absent.
type hostCollector struct {
	host    hostapi.Host
	version string
	up, info, cpus, memory, memoryFree, memoryAvailable, memoryPromised, memoryPressure, disk, diskFree,
	machines, running, waiting, unresponsive, baked *prometheus.Desc
}

func newHostCollector(host hostapi.Host, version string) *hostCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("pandastack_"+name, help, labels, nil)
	}
	return &hostCollector{
		host: host, version: version,
		up: desc("host_up", "1 if the host agent replies."),
		info: desc(
			"node_info",
			"Versions and driver of the node; always 1.",
			"version",
			"driver",
			"driver_version",
			"accelerator",
			"isolation",
		),
		cpus:            desc("host_cpus", "CPUs of the host."),
		memory:          desc("host_memory_bytes", "Memory of the host that sandboxes may use."),
		memoryFree:      desc("host_memory_free_bytes", "Memory that can still be promised to sandboxes."),
		memoryAvailable: desc("host_memory_available_bytes", "Memory that can be used now without swapping."),
		memoryPromised:  desc("host_memory_promised_bytes", "Memory promised to sandboxes that run."),
		memoryPressure:  desc("host_memory_pressure_ratio", "Part of the last 10 s of waiting for memory."),
		disk:            desc("host_disk_bytes", "Size of the data directory's file system."),
		diskFree:        desc("host_disk_free_bytes", "Free space on the data directory's file system."),
		machines:        desc("host_machines", "Machines on the host, including hibernated ones."),
		running:         desc("host_machines_running", "Machines that are running or paused."),
		waiting:         desc("host_machines_waiting_for_space", "Machines paused until there is disk space for them."),
		unresponsive:    desc("host_machines_unresponsive", "Machines that run and whose guests do not answer."),
		baked:           desc("template_baked", "1 if a built-in template is baked.", "template"),
	}
}

// Describe implements prometheus.Collector.
func (c *hostCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.up, c.info, c.cpus, c.memory, c.memoryFree, c.memoryAvailable, c.memoryPromised,
		c.memoryPressure, c.disk, c.diskFree, c.machines, c.running, c.waiting,
		c.unresponsive, c.baked,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *hostCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeoutCause(
		context.Background(),
		hostTimeout,
		errors.New("the host took too long to reply"),
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
	gauge(c.memoryAvailable, mib(has.MemoryAvailableMiB))
	gauge(c.memoryPromised, mib(has.MemoryPromisedMiB))
	gauge(c.memoryPressure, has.MemoryPressure/100)
	gauge(c.disk, mib(has.DiskMiB))
	gauge(c.diskFree, mib(has.DiskFreeMiB))
	gauge(c.machines, float64(has.Machines))
	gauge(c.running, float64(has.Running))
	gauge(c.waiting, float64(has.WaitingForSpace))
	gauge(c.unresponsive, float64(has.Unresponsive))
	templates, err := c.host.Templates(ctx)
	if err != nil {
		return // this scrape has no template series; the next one may
	}
	for _, t := range templates {
		if t.Published {
			continue // templates that users build are unbounded in number
		}
		baked := 0.0
		if t.Baked {
			baked = 1
		}
		gauge(c.baked, baked, string(t.Name))
	}
}

// mib returns n MiB in bytes.
func mib(n int) float64 { return float64(n) * (1 << 20) }
