package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pandastack/pandastack/api"
)

func capacity(rq *request) (api.Capacity, error) {
	return rq.s.deps.Sandboxes.Capacity(rq.r.Context())
}

func health(rq *request) (api.Health, error) {
	return api.Health{Status: "ok", Version: rq.s.cfg.Version}, nil
}

// readyTimeout bounds how long the host may take to reply for the server to be ready.
const readyTimeout = 5 * time.Second

func ready(rq *request) (api.Health, error) {
	ctx, cancel := context.WithTimeoutCause(rq.r.Context(), readyTimeout, context.DeadlineExceeded)
	defer cancel()
	c, err := rq.s.deps.Sandboxes.Capacity(ctx)
	if err != nil {
		return api.Health{}, api.Wrap(api.Unavailable, err, "the host does not reply").
			With("checks", map[string]string{"host": "does not reply"})
	}
	if c.DiskShort {
		why := fmt.Sprintf("%d MiB are free and %d must be: delete snapshots or sandboxes, "+
			"or enlarge the data directory", c.DiskFreeMB, c.DiskReserveMB)
		return api.Health{}, api.Errorf(api.Unavailable, "the host's disk is full: %s", why).
			With("checks", map[string]string{"host": "ok", "disk": why})
	}
	checks := map[string]string{"host": "ok", "disk": "ok"}
	return api.Health{Status: "ok", Checks: checks, Version: rq.s.cfg.Version}, nil
}

func version(rq *request) (api.Version, error) {
	v := api.Version{Version: rq.s.cfg.Version, Commit: rq.s.cfg.Commit, GoVersion: runtime.Version(), API: "v1"}
	// The version is returned even if the host cannot be reached.
	if c, err := rq.s.deps.Sandboxes.Capacity(rq.r.Context()); err == nil {
		v.Driver, v.Isolation, v.Accel = c.Driver, c.Isolation, c.Accelerator
	}
	return v, nil
}

func bootStats(rq *request) (api.BootStats, error) { return rq.s.boots.Stats(), nil }

// overview counts what the caller's workspace has.
func overview(rq *request) (api.Overview, error) {
	out := api.Overview{Workspace: rq.p.Workspace, ByStatus: map[api.Status]int{}}
	list, err := rq.allSandboxes(api.SandboxFilter{})
	if err != nil {
		return out, err
	}
	for _, b := range list {
		out.Sandboxes++
		out.ByStatus[b.Status]++
		out.DiskMB += b.DiskMB
		if b.Status == api.Running || b.Status == api.Paused {
			out.CPUs, out.MemoryMB = out.CPUs+b.CPU, out.MemoryMB+b.MemoryMB
		}
	}
	snaps, err := rq.allSnapshots(api.SnapshotFilter{})
	for _, s := range snaps {
		out.Snapshots, out.SnapshotBytes = out.Snapshots+1, out.SnapshotBytes+s.SizeBytes
	}
	return out, err
}

func prometheusText(rq *request) error {
	if err := rq.s.met.Count(rq.r.Context(), rq.s.deps.Sandboxes); err != nil {
		return err
	}
	promhttp.HandlerFor(rq.s.deps.Metrics, promhttp.HandlerOpts{}).ServeHTTP(rq.w, rq.r)
	return nil
}

func openAPI(rq *request) error {
	rq.w.Header().Set("Content-Type", "application/json")
	rq.w.WriteHeader(http.StatusOK)
	_, _ = rq.w.Write(rq.s.spec) // the client may have closed the connection
	return nil
}
