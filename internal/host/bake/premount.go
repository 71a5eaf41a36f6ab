package bake

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/lib/cleanup"
)

// PreMountArea is the area of the snapshot store with pre-mount snapshots.
//
// A pre-mount snapshot is a machine that has booted and waits for its root disk; published templates start from one.
// They are a cache: each can be made again.
const PreMountArea = "grounds"

// maxPreMountSnapshots bounds how many machine sizes have one; each takes about 30 MiB of the host's disk.
const maxPreMountSnapshots = 8

// preMountDiskBytes is the size of the placeholder disk, in bytes: smaller than any disk with a root.
const preMountDiskBytes = 1 << 20

// acquirePreMount returns the pre-mount snapshot of a recipe's machine size, which it makes if it is missing.
// The snapshot is held until release is called.
func (b *Baker) acquirePreMount(ctx context.Context, j *job) (_ snapshot.Ref, release func() error, err error) {
	select {
	case b.preMountLock <- struct{}{}:
	case <-ctx.Done():
		return "", nil, context.Cause(ctx)
	}
	defer func() { <-b.preMountLock }()
	platform, err := b.cfg.Platform(ctx)
	if err != nil {
		return "", nil, err
	}
	sum := sha256.Sum256([]byte(platform))
	digest := hex.EncodeToString(sum[:8])
	ref, ok := b.findPreMount(digest, j.recipe)
	if !ok {
		ref = snapshot.Join(
			PreMountArea,
			fmt.Sprintf("%s-%dx%d-%d", digest, j.recipe.VCPUs, j.recipe.MemoryMiB, now().UnixMilli()),
		)
		if err := b.createPreMount(ctx, j, ref, digest); err != nil {
			return "", nil, fmt.Errorf("make a pre-mount snapshot: %w", err)
		}
	}
	if _, err := b.cfg.Store.Acquire(ref); err != nil {
		return "", nil, err
	}
	return ref, func() error { return b.cfg.Store.Release(ref) }, nil
}

// findPreMount returns the newest pre-mount snapshot of a platform for a recipe's machine size.
func (b *Baker) findPreMount(digest string, r Recipe) (snapshot.Ref, bool) {
	for _, snap := range slices.Backward(b.cfg.Store.List(PreMountArea)) {
		if snap.Digest == digest && snap.VCPUs == r.VCPUs && snap.MemoryMiB == r.MemoryMiB {
			return snap.Ref, true
		}
	}
	return "", false
}

// createPreMount boots a machine that waits for its root, and captures it.
func (b *Baker) createPreMount(ctx context.Context, j *job, ref snapshot.Ref, digest string) (err error) {
	var back cleanup.Stack
	defer func() { err = back.Settle(ctx, err) }()
	disk := filepath.Join(b.cfg.Dir, ref.Name()+newSuffix)
	back.Push("remove the disk", func(context.Context) error { return os.RemoveAll(disk) })
	if err := errors.Join(os.WriteFile(disk, nil, 0o600), os.Truncate(disk, preMountDiskBytes)); err != nil {
		return err
	}
	id := hostapi.MachineID("ground" + digest)
	if err := b.cfg.Machines.Destroy(ctx, id, "left by an earlier bake"); err != nil {
		return err
	}
	back.Push(
		"destroy machine",
		func(ctx context.Context) error {
			return b.cfg.Machines.Destroy(ctx, id, "the pre-mount snapshot failed")
		},
	)
	mc, err := b.cfg.Machines.Boot(
		ctx,
		machine.Boot{ID: id, Disk: disk, VCPUs: j.recipe.VCPUs, MemoryMiB: j.recipe.MemoryMiB, WaitForRoot: true},
	)
	if err != nil {
		return err
	}
	j.log(fmt.Sprintf("a machine of this size booted for the first time, in %.1f s", mc.Boot.Seconds()))
	if err := b.stepDone("pre-mount boot"); err != nil {
		return err
	}
	snap, err := b.cfg.Machines.TakeSnapshot(ctx, id, ref, func(s *snapshot.Snapshot) {
		s.Machine, s.Hostname, s.Digest = "", "", digest
	}, b.punchHoles)
	if err != nil {
		return err
	}
	back.Push("delete the snapshot", func(context.Context) error { return b.cfg.Store.Delete(ref) })
	if err := errors.Join(loadPageCache(ctx, snap), b.stepDone("pre-mount")); err != nil {
		return err
	}
	back.Forget()
	return errors.Join(
		b.cfg.Machines.Destroy(ctx, id, "its pre-mount snapshot is taken"),
		os.Remove(disk),
		b.prunePreMount(digest),
	)
}

// punchHoles turns pages of zeros in a draft's memory into holes.
func (b *Baker) punchHoles(ctx context.Context, d *snapshot.Draft) error {
	if b.cfg.PunchPages == nil {
		return nil
	}
	return filepath.WalkDir(d.ImageDir(), func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		_, err = b.cfg.PunchPages(ctx, path)
		return err
	})
}

// prunePreMount deletes the pre-mount snapshots of other platforms, and the oldest above the limit.
func (b *Baker) prunePreMount(digest string) error {
	var all error
	list := b.cfg.Store.List(PreMountArea)
	for i, snap := range list {
		if snap.Digest != digest || len(list)-i > maxPreMountSnapshots {
			all = errors.Join(all, b.deleteIfExists(snap.Ref))
		}
	}
	return all
}

// bootFromPreMount boots the machine of a published template from a pre-mount snapshot; others boot cold. A pre-mount
// snapshot from which a boot failed is deleted, unless the host was short of resources.
func (b *Baker) bootFromPreMount(ctx context.Context, j *job, req machine.Boot) (_ machine.View, err error) {
	if j.recipe.spec == nil || len(req.Data) > 0 { // a pre-mount snapshot has one disk
		return b.cfg.Machines.Boot(ctx, req)
	}
	preMount, release, err := b.acquirePreMount(ctx, j)
	if err != nil {
		return machine.View{}, err
	}
	defer func() { err = errors.Join(err, release()) }()
	req.From = preMount
	mc, err := b.cfg.Machines.Boot(ctx, req)
	if err != nil && ctx.Err() == nil && !errors.Is(err, hostapi.ErrNoCapacity) && !errors.Is(err, hostapi.ErrNoSpace) {
		err = errors.Join(err, b.deleteIfExists(preMount))
	}
	return mc, err
}
