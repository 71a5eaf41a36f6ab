package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/build"
	"github.com/pandastack/pandastack/internal/control/build/registry"
	"github.com/pandastack/pandastack/internal/control/job"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/template"
	"github.com/pandastack/pandastack/internal/image/ext4"
)

// imageCacheBytes is the size of the cache of pulled images.
const imageCacheBytes = 4 << 30

// builds creates the service that builds templates and registers it with the job queue.
func (n *node) builds(
	ctx context.Context,
	db *store.DB,
	jobs *job.Queue,
	host hostapi.Host,
	templates *template.Service,
	boxes *sandbox.Service,
) (*build.Service, error) {
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
	s, err := build.New(
		build.Config{
			Dir:           n.path("builds"),
			Parallel:      c.Parallel,
			StepTimeout:   c.StepTimeout,
			MaxLayerBytes: int64(c.LayersGiB) << 30,
			MemoryMiB:     c.MemoryMiB,
			MaxQueued:     c.QueueLimit,
		},
		build.Deps{
			Store:     db,
			Jobs:      jobs,
			Host:      host,
			Templates: templates,
			Sandboxes: boxes,
			Registry:  images,
			Log:       n.Log,
		},
	)
	if err != nil {
		return nil, err
	}
	return s, s.Open(ctx)
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
