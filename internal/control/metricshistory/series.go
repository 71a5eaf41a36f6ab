package metricshistory

import (
	"cmp"
	"context"
	"net/url"
	"strconv"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
)

// measureFor is how long the processor use is measured for a request.
const measureFor = 200 * time.Millisecond

// steps are the supported steps of series.
var steps = map[string]time.Duration{"15s": 15 * time.Second, "1m": time.Minute, "5m": 5 * time.Minute, "1h": time.Hour}

// defaultSpan is the length of a series without a start.
const defaultSpan = time.Hour

// HostUsage returns the host resources that a sandbox has used since it was started or woken. It counts as a request.
func (h *History) HostUsage(ctx context.Context, p auth.Principal, id api.SandboxID) (api.HostUsage, error) {
	u, err := h.sandboxes.Usage(ctx, p, id)
	if err != nil {
		return api.HostUsage{}, err
	}
	sum := h.MemoryIntegral(p, id, time.Now(), u)
	return api.HostUsage{
		SandboxID:          id,
		UptimeSeconds:      u.UptimeSeconds,
		ActiveCPUSeconds:   u.HostCPUSeconds,
		ResidentGiBSeconds: sum / (1 << 30),
	}, nil
}

// Series returns the measurements of a sandbox in steps.
//
// The query has the parameters from, to and step of the API; without to the series ends now. Series counts as a request
// and takes a measurement. An error with the code invalid names the wrong parameter.
func (h *History) Series(ctx context.Context, p auth.Principal, id api.SandboxID, q url.Values) (api.Series, error) {
	out := api.Series{SandboxID: id, Step: cmp.Or(q.Get("step"), "15s")}
	step, ok := steps[out.Step]
	if !ok {
		return api.Series{}, api.Errorf(api.Invalid, "step: %.60q is not 15s, 1m, 5m or 1h", out.Step).
			With("field", "step")
	}
	from, err := parseTime(q, "from")
	if err != nil {
		return api.Series{}, err
	}
	to, err := parseTime(q, "to")
	if err != nil {
		return api.Series{}, err
	}
	if err := h.measure(ctx, p, id); err != nil {
		return api.Series{}, err
	}
	if to.IsZero() {
		to = time.Now()
	}
	if from.IsZero() {
		from = to.Add(-defaultSpan)
	}
	if to.Before(from) {
		return api.Series{}, api.Errorf(api.Invalid, "to: %s is before from, %s", to.UTC().Format(time.RFC3339),
			from.UTC().Format(time.RFC3339)).
			With("field", "to")
	}
	out.From, out.To, out.StepSeconds = from.UTC(), to.UTC(), int(step/time.Second)
	out.Points = downsample(h.Points(id), from, to, step)
	out.Empty = len(out.Points) == 0
	return out, nil
}

// parseTime parses a time of the query. It returns the zero time if the query has none.
func parseTime(q url.Values, name string) (time.Time, error) {
	text := q.Get(name)
	if text == "" {
		return time.Time{}, nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > maxUnixSeconds {
		return time.Time{}, api.Errorf(api.Invalid, "%s: %.60q is neither RFC 3339 nor seconds since 1970", name, text).
			With("field", name)
	}
	return time.Unix(n, 0), nil
}

// maxUnixSeconds is the end of the year 9999, in seconds since 1970.
const maxUnixSeconds = 253402300799

// measure measures a sandbox for a short while and records the point. A sandbox that does not run adds no point.
func (h *History) measure(ctx context.Context, p auth.Principal, id api.SandboxID) error {
	before, err := h.sandboxes.Usage(ctx, p, id)
	if err != nil {
		return err
	}
	var points []Point
	if before.Guest != nil {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(measureFor):
		}
		now, err := h.sandboxes.Usage(ctx, p, id)
		if err != nil {
			return err
		}
		if now.Guest != nil {
			if point, ok := Delta(time.Now(), *before.Guest, *now.Guest); ok {
				points = append(points, point)
			}
		}
	}
	h.Record(p, id, time.Now(), points...)
	return nil
}

// downsample aggregates the points between from and to into steps.
func downsample(points []Point, from, to time.Time, step time.Duration) []api.SeriesPoint {
	out := []api.SeriesPoint{}
	n := 0.0 // number of points in the last step
	for _, p := range points {
		if p.At.Before(from) || p.At.After(to) {
			continue
		}
		if at := p.At.UTC().Truncate(step); len(out) == 0 || !out[len(out)-1].TS.Equal(at) {
			out, n = append(out, api.SeriesPoint{TS: at}), 0
		}
		last := &out[len(out)-1]
		last.CPUPct = (last.CPUPct*n + p.CPUPercent()) / (n + 1)
		last.MemBytes, last.DiskUsedBytes = p.Guest.MemTotalBytes-p.Guest.MemAvailableBytes, p.Guest.DiskUsedBytes
		last.NetRxBytes, last.NetTxBytes = p.Guest.NetRxBytes, p.Guest.NetTxBytes
		n++
	}
	return out
}
