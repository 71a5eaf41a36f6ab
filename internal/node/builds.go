package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/build"
	"github.com/pandastack/pandastack/internal/control/build/registry"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/image/ext4"
)

// imageCacheBytes is the size of the cache of pulled images.
const imageCacheBytes = 4 << 30

// builds creates the service that builds templates, over deps and the registries, and registers it with the job queue.
func (n *node) builds(ctx context.Context, deps build.Deps) (*build.Service, error) {
	c := n.Config.Build
	allowed, err := c.Allowed()
	if err != nil {
		return nil, err
	}
	images, err := registry.New(registry.Config{
		Dir: n.path("registry"), CacheBytes: imageCacheBytes, Insecure: c.Registries(), Allow: allowed,
	})
	if err != nil {
		return nil, err
	}
	deps.Registry = images
	s, err := build.New(
		build.Config{
			Dir:           n.path("builds"),
			Parallel:      c.Parallel,
			StepTimeout:   c.StepTimeout,
			MaxLayerBytes: int64(c.LayersGiB) << 30,
			MemoryMiB:     c.MemoryMiB,
		},
		deps,
	)
	if err != nil {
		return nil, err
	}
	return s, s.Open(ctx)
}

// quotas creates what bounds the use of workspaces, with a metric of what was refused.
func (n *node) quotas(db *store.DB, registry *prometheus.Registry) (*quota.Quotas, error) {
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "pandastack_quota_refused_total",
		Help: "Requests that a quota of a workspace refused, by kind of quota.",
	}, []string{"kind"})
	for _, kind := range quota.Kinds() {
		refused.WithLabelValues(string(kind))
	}
	if err := registry.Register(refused); err != nil {
		return nil, err
	}
	return quota.New(quota.Config{
		Defaults: quota.Defaults(n.Config.Quota),
		Refused:  func(kind quota.Kind) { refused.WithLabelValues(string(kind)).Inc() },
	}, db), nil
}

// importRoot implements agent.Deps.ImportRoot with package ext4. It adds the directories that the guest agent uses
// as mount points.
func importRoot(ctx context.Context, tar io.Reader, out *os.File, sizeMiB int) (files int, err error) {
	opt := ext4.Options{SizeMiB: sizeMiB}
	for _, dir := range []string{"dev", "proc", "run", "sys"} {
		opt.Extra = append(opt.Extra, ext4.File{Path: dir, Dir: true, Mode: 0o755})
	}
	opt.Extra = append(opt.Extra, ext4.File{Path: "tmp", Dir: true, Mode: 0o1777})
	report, err := ext4.Write(ctx, tar, out, opt)
	switch {
	case errors.Is(err, ext4.ErrFull):
		err = fmt.Errorf(
			"%w: %w: the image does not fit into %d MiB; choose a larger size",
			hostapi.ErrInvalid,
			err,
			sizeMiB,
		)
	case errors.Is(err, ext4.ErrStream), errors.Is(err, ext4.ErrTooLarge):
		err = fmt.Errorf("%w: %w", hostapi.ErrInvalid, err)
	}
	return report.Files + report.Dirs, err
}
