package metricshistory

import (
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
)

// memoryIntegral integrates the memory of one machine over time. Between two measurements it uses their mean, and
// before the first one its value.
type memoryIntegral struct {
	pid   int
	at    time.Time
	bytes int64
	sum   float64 // byte seconds
}

// add adds a measurement. Another process id means that the machine was restarted, and the integral begins again. A
// sandbox without a process has no memory.
func (r *memoryIntegral) add(now time.Time, u api.Usage) {
	if u.PID == 0 || u.PID != r.pid {
		*r = memoryIntegral{pid: u.PID, at: now, bytes: u.HostRSSBytes, sum: float64(u.HostRSSBytes) * u.UptimeSeconds}
		return
	}
	if now.After(r.at) {
		r.sum += float64(r.bytes+u.HostRSSBytes) / 2 * now.Sub(r.at).Seconds()
		r.at, r.bytes = now, u.HostRSSBytes
	}
}

// MemoryIntegral returns the byte seconds of memory of a sandbox since it was started or woken.
//
// It also records a request with the measurement u. The shorter the time between measurements, the more exact is the
// result.
func (h *History) MemoryIntegral(who auth.Principal, id api.SandboxID, now time.Time, u api.Usage) float64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.touch(who, id, now)
	s.memory.add(now, u)
	return s.memory.sum
}
