package metricshistory

import (
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
)

// memoryIntegral sums up the memory of one machine over time. Between two measurements it is taken as their mean, and
// before the first as what that one says.
type memoryIntegral struct {
	pid   int
	at    time.Time
	bytes int64
	sum   float64 // byte seconds
}

// add takes up a measurement. Another process is another machine's life, of which nothing is known yet; one that
// takes nothing, because it rests, is none.
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

// MemoryIntegral notes a question with what was measured for it, and gives what the machine of a sandbox had in memory,
// summed up over its life since it started or woke, in byte seconds: as exact as measurements are near to each
// other.
func (h *History) MemoryIntegral(who auth.Principal, id api.SandboxID, now time.Time, u api.Usage) float64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.touch(who, id, now)
	s.memory.add(now, u)
	return s.memory.sum
}
