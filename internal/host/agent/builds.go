package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/bake"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/lib/durable"
)

// images are the imported root file systems of this process. What an earlier process left belonged to builds that ended
// with it.
type images struct {
	dir string

	mu   sync.Mutex
	byID map[hostapi.ImageID]hostapi.Image // Created is zero while the image is being made
}

// open empties the directory.
func (im *images) open() error {
	if err := os.RemoveAll(im.dir); err != nil {
		return fmt.Errorf("images: %w", err)
	}
	if err := os.MkdirAll(im.dir, 0o700); err != nil {
		return fmt.Errorf("images: %w", err)
	}
	im.byID = map[hostapi.ImageID]hostapi.Image{}
	return nil
}

func (im *images) path(id hostapi.ImageID) string { return filepath.Join(im.dir, string(id)+".ext4") }

// reserve takes the id of an image that is about to be made.
func (im *images) reserve(req hostapi.Import) error {
	if req.ID == "" || len(req.ID) > 64 || strings.Trim(string(req.ID), idLetters) != "" {
		return fmt.Errorf(
			"image id %q is not 1 to 64 lower-case letters and digits: %w",
			string(req.ID),
			hostapi.ErrInvalid,
		)
	}
	im.mu.Lock()
	defer im.mu.Unlock()
	if _, taken := im.byID[req.ID]; taken {
		return fmt.Errorf("image %s: %w", req.ID, hostapi.ErrExists)
	}
	im.byID[req.ID] = hostapi.Image{ID: req.ID}
	return nil
}

func (im *images) put(image hostapi.Image) {
	im.mu.Lock()
	defer im.mu.Unlock()
	im.byID[image.ID] = image
}

// remove removes an image and its file.
func (im *images) remove(id hostapi.ImageID) error {
	im.mu.Lock()
	defer im.mu.Unlock()
	delete(im.byID, id)
	if err := os.Remove(im.path(id)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// get returns an image that is complete.
func (im *images) get(id hostapi.ImageID) (hostapi.Image, error) {
	im.mu.Lock()
	defer im.mu.Unlock()
	image, ok := im.byID[id]
	if !ok || image.Created.IsZero() {
		return hostapi.Image{}, fmt.Errorf("image %s: %w", id, hostapi.ErrNotFound)
	}
	return image, nil
}

// ImportImage implements hostapi.Host.
func (h *Host) ImportImage(ctx context.Context, req hostapi.Import, tar io.Reader) (_ hostapi.Image, err error) {
	if h.deps.ImportRoot == nil {
		return hostapi.Image{}, fmt.Errorf("import image %s: %w", req.ID, hostapi.ErrUnsupported)
	}
	if req.SizeMiB < 1 {
		return hostapi.Image{}, fmt.Errorf("import image %s: %d MiB: %w", req.ID, req.SizeMiB, hostapi.ErrInvalid)
	}
	if err := h.machines.CheckDiskSpace("image "+string(req.ID), 0); err != nil {
		return hostapi.Image{}, fmt.Errorf("import: %w", err)
	}
	if err := h.images.reserve(req); err != nil {
		return hostapi.Image{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.images.remove(req.ID))
		}
	}()
	path := h.images.path(req.ID)
	files, err := h.writeImage(ctx, path, req, tar)
	if durable.IsNoSpace(err) {
		err = fmt.Errorf("%w: %w", hostapi.ErrNoSpace, err)
	}
	if err != nil {
		return hostapi.Image{}, fmt.Errorf("import image %s: %w", req.ID, err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return hostapi.Image{}, err
	}
	image := hostapi.Image{ID: req.ID, SizeMiB: int(info.Size() >> 20), Files: files, Created: now()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		image.Bytes = st.Blocks * 512
	}
	h.images.put(image)
	return image, nil
}

func (h *Host) writeImage(ctx context.Context, path string, req hostapi.Import, tar io.Reader) (files int, err error) {
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return 0, err
	}
	files, err = h.deps.ImportRoot(ctx, tar, out, req.SizeMiB)
	return files, errors.Join(err, out.Close())
}

// Images implements hostapi.Host.
func (h *Host) Images(context.Context) ([]hostapi.Image, error) {
	h.images.mu.Lock()
	defer h.images.mu.Unlock()
	out := []hostapi.Image{}
	for _, image := range h.images.byID {
		if !image.Created.IsZero() {
			out = append(out, image)
		}
	}
	slices.SortFunc(out, func(a, b hostapi.Image) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}

// DeleteImage implements hostapi.Host.
func (h *Host) DeleteImage(_ context.Context, id hostapi.ImageID) error {
	if _, err := h.images.get(id); err != nil {
		return err
	}
	return h.images.remove(id)
}

// bootImage makes a machine that cold boots from an image.
func (h *Host) bootImage(ctx context.Context, req hostapi.Create) (hostapi.Machine, error) {
	if _, err := h.images.get(req.Image); err != nil {
		return hostapi.Machine{}, err
	}
	if req.VCPUs < 1 || req.MemoryMiB < 1 {
		return hostapi.Machine{}, fmt.Errorf(
			"create machine %s from an image: %d processors and %d MiB: %w",
			req.ID,
			req.VCPUs,
			req.MemoryMiB,
			hostapi.ErrInvalid,
		)
	}
	return h.owned(h.machines.Boot(ctx, machine.Boot{
		ID: req.ID, Disk: h.images.path(req.Image), VCPUs: req.VCPUs, MemoryMiB: req.MemoryMiB, DiskMiB: req.DiskMiB,
		Env: req.Env, Listed: true, Group: req.Group, Labels: req.Labels, Egress: req.Egress,
	}))
}

// Publish implements hostapi.Host.
func (h *Host) Publish(ctx context.Context, req hostapi.Publish) (hostapi.Stream[hostapi.PublishProgress], error) {
	if err := exactlyOne(req.Snapshot != "", req.Image != "", req.Template != ""); err != nil {
		return nil, fmt.Errorf(
			"publish template %s: name a snapshot, an image or a template, and one only: %w",
			req.Name,
			err,
		)
	}
	if req.KeepMemory && req.Snapshot == "" {
		return nil, fmt.Errorf(
			"publish template %s: only a snapshot has a memory to keep: %w",
			req.Name,
			hostapi.ErrInvalid,
		)
	}
	if err := h.machines.CheckDiskSpace("template "+string(req.Name), 0); err != nil {
		return nil, fmt.Errorf("publish: %w", err)
	}
	from, err := h.publishSource(&req)
	if err != nil {
		return nil, err
	}
	return hostapi.NewStream(ctx, func(ctx context.Context, send func(hostapi.PublishProgress) error) error {
		made, err := h.baker.Publish(ctx, req, from, func(step, line string) {
			_ = send(hostapi.PublishProgress{Step: step, Line: line}) // fails only if ctx has ended
		})
		if err != nil {
			return err
		}
		made.Host = h.id
		return send(hostapi.PublishProgress{Template: &made})
	}), nil
}

// publishSource finds the source of a template and completes the request with its sizes.
func (h *Host) publishSource(req *hostapi.Publish) (bake.Source, error) {
	if req.Image != "" {
		image, err := h.images.get(req.Image)
		req.DiskMiB = max(req.DiskMiB, image.SizeMiB)
		return bake.Source{Path: h.images.path(req.Image)}, err
	}
	var snap snapshot.Snapshot
	var err error
	if req.Snapshot != "" {
		var ref snapshot.Ref
		if ref, err = snapshotRef(req.Snapshot); err != nil {
			return bake.Source{}, err
		}
		if snap, err = h.store.Get(ref); errors.Is(err, snapshot.ErrNotFound) {
			err = fmt.Errorf("%w: %w", hostapi.ErrNotFound, err)
		}
	} else {
		snap, err = h.baker.Latest(req.Template)
	}
	if err == nil && snap.RemoteBacked() {
		err = fmt.Errorf("%w: %w", hostapi.ErrWrongState, snapshot.ErrRemoteBacked)
	}
	if err != nil {
		return bake.Source{}, err
	}
	req.VCPUs, req.MemoryMiB = cmp.Or(req.VCPUs, snap.VCPUs), cmp.Or(req.MemoryMiB, snap.MemoryMiB)
	req.DiskMiB = max(req.DiskMiB, snap.DiskMiB)
	if req.KeepMemory {
		req.VCPUs, req.MemoryMiB, req.DiskMiB = snap.VCPUs, snap.MemoryMiB, snap.DiskMiB
		req.User, req.Workdir, req.Env = snap.User, snap.Workdir, snap.Env
	}
	of := req.Template
	if of == "" {
		of = hostapi.TemplateName(snap.Template)
	}
	return bake.Source{Ref: snap.Ref, Of: of}, nil
}

// DeleteTemplate implements hostapi.Host.
func (h *Host) DeleteTemplate(_ context.Context, name hostapi.TemplateName) error {
	return h.baker.Delete(name)
}

// exactlyOne returns ErrInvalid unless exactly one of its arguments is true.
func exactlyOne(set ...bool) error {
	n := 0
	for _, s := range set {
		if s {
			n++
		}
	}
	if n != 1 {
		return hostapi.ErrInvalid
	}
	return nil
}
