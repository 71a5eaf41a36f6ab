package bake

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/lib/cleanup"
	"github.com/pandastack/pandastack/internal/lib/durable"
)

const (
	workSuffix    = ".work"
	newSuffix     = ".new"
	imageSuffix   = ".ext4"
	dataSeparator = "~" // separates the name of a data disk; never in the name of a template
)

// Timeouts of the guest. Translated code runs about ten times slower than native, and the host may be busy with
// other bakes.
const (
	readyTimeout   = 10 * time.Minute
	commandTimeout = 10 * time.Minute
	readyInterval  = 200 * time.Millisecond
	// startGrace is how long a start command without a ready check must run without failing.
	startGrace = 2 * time.Second
)

// run bakes one job until it ends.
func (b *Baker) run(ctx context.Context, j *job) {
	ctx, cancel := j.start(ctx)
	defer cancel(nil)
	b.cfg.Log.Info("bake started", "template", j.recipe.Name)
	began := now()
	err := b.bake(ctx, j)
	if err != nil && context.Cause(ctx) != nil && !errors.Is(err, context.Cause(ctx)) {
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		b.cfg.Log.Error("bake failed", "template", j.recipe.Name, "took", time.Since(began), "err", err)
	} else {
		b.cfg.Log.Info("bake done", "template", j.recipe.Name, "took", time.Since(began))
	}
	j.finish(err)
}

func (b *Baker) bake(ctx context.Context, j *job) (err error) {
	var back cleanup.Stack
	defer func() { err = back.Settle(ctx, err) }()
	platform, err := b.cfg.Platform(ctx)
	if err != nil {
		return err
	}
	if j.recapture != "" {
		return b.recapture(ctx, j, &back, j.recipe.generation(platform))
	}
	if j.recipe.spec != nil && j.recipe.spec.KeepMemory {
		return b.copySnapshot(ctx, j, &back, j.recipe.generation(platform))
	}
	id := j.recipe.machineID()
	if err := b.bootImage(ctx, j, &back, id); err != nil {
		return err
	}
	if err := b.startPublished(ctx, j, id); err != nil {
		return err
	}
	if err := b.check(ctx, j, id); err != nil {
		return err
	}
	if err := b.warmUp(ctx, j, id); err != nil {
		return err
	}
	if err := b.jitWarmup(ctx, j, id); err != nil {
		return err
	}
	if err := b.capture(ctx, j, &back, id, j.recipe.generation(platform)); err != nil {
		return err
	}
	return b.discardMachine(ctx, j, id, "the template is baked")
}

// discardMachine destroys the machine that a template was captured from. Blocks that both shared then count as the
// template's own.
func (b *Baker) discardMachine(ctx context.Context, j *job, id hostapi.MachineID, why string) error {
	if err := b.cfg.Machines.Destroy(ctx, id, why); err != nil {
		return err
	}
	// A recipe's disk shares blocks with its root image, whose size is not measured.
	if snap, ok := b.newest(j.recipe, ""); ok {
		if err := b.cfg.Store.UpdateSize(snap.Ref, max(snap.Bytes, j.minBytes)); err != nil {
			return err
		}
	}
	return b.stepDone("destroy")
}

func (b *Baker) stepDone(step string) error {
	if b.cfg.OnStep == nil {
		return nil
	}
	return b.cfg.OnStep(step)
}

// bootImage boots copies of the images that the recipe builds, or of the disks that it was published from.
func (b *Baker) bootImage(ctx context.Context, j *job, back *cleanup.Stack, id hostapi.MachineID) error {
	if j.recipe.disk == nil {
		image, err := b.ensureImage(ctx, j)
		if err != nil {
			return err
		}
		return b.boot(ctx, j, back, id, recipeImages(image, j.recipe.Disks))
	}
	from, release, err := j.recipe.disk(ctx)
	if err != nil {
		return err
	}
	return errors.Join(b.boot(ctx, j, back, id, from), release())
}

// ensureImage returns the path of the root image of this digest and builds the image if it does not exist.
func (b *Baker) ensureImage(ctx context.Context, j *job) (string, error) {
	r := j.recipe
	name := fmt.Sprintf("%s-%.16s", r.Name, r.Digest)
	path := b.imagePath(r)
	if _, err := os.Stat(path); err == nil && !j.force {
		j.log("using the existing root image")
		return path, nil
	}
	work, fresh := filepath.Join(b.cfg.Dir, name+workSuffix), path+newSuffix
	if err := errors.Join(os.RemoveAll(work), r.dropImages(fresh)); err != nil {
		return "", err
	}
	err := r.Build(ctx, work, fresh, j.log, j.step)
	if err == nil {
		err = b.stepDone("build")
	}
	if err == nil {
		err = r.rename(fresh, path)
	}
	if err = errors.Join(err, os.RemoveAll(work)); err != nil {
		return "", errors.Join(fmt.Errorf("build the root image: %w", err), r.dropImages(fresh))
	}
	return path, errors.Join(b.dropOldImages(r, path), b.stepDone("image"))
}

// rename gives the images their final names. The root image is last: if it exists, all do.
func (r Recipe) rename(from, to string) error {
	for _, d := range r.Disks {
		if err := durable.Rename(DataImage(from, d.Name), DataImage(to, d.Name)); err != nil {
			return err
		}
	}
	return durable.Rename(from, to)
}

// dropImages removes the images that exist.
func (r Recipe) dropImages(path string) error {
	err := os.RemoveAll(path)
	for _, d := range r.Disks {
		err = errors.Join(err, os.RemoveAll(DataImage(path, d.Name)))
	}
	return err
}

// imagePath returns the path of the root image of a recipe.
func (b *Baker) imagePath(r Recipe) string {
	return filepath.Join(b.cfg.Dir, fmt.Sprintf("%s-%.16s", r.Name, r.Digest)+imageSuffix)
}

// dropOldImages removes the images of a template's earlier digests.
func (b *Baker) dropOldImages(r Recipe, keep string) error {
	list, err := filepath.Glob(filepath.Join(b.cfg.Dir, string(r.Name)+"-*"))
	if err != nil {
		return err
	}
	for _, path := range list {
		root, _, _ := strings.Cut(path, dataSeparator)
		digest, ok := strings.CutSuffix(strings.TrimPrefix(filepath.Base(root), string(r.Name)+"-"), imageSuffix)
		if ok && root != keep && !strings.Contains(digest, "-") {
			err = errors.Join(err, os.Remove(path))
		}
	}
	return err
}

// boot boots the machine to be captured and waits until it is ready.
func (b *Baker) boot(ctx context.Context, j *job, back *cleanup.Stack, id hostapi.MachineID, from images) error {
	j.step("boot")
	r := j.recipe
	if err := b.cfg.Machines.Destroy(ctx, id, "left by an earlier bake"); err != nil {
		return err
	}
	mc, err := b.bootFromPreMount(ctx, j, machine.Boot{
		ID: id, Template: r.Name, Disk: from.root, Data: from.data, VCPUs: r.VCPUs, MemoryMiB: r.MemoryMiB,
		User: r.User, Workdir: r.Workdir, Env: r.Env, DiskMiB: r.minDiskMiB(),
	})
	if err != nil {
		return err
	}
	back.Push(
		"destroy machine",
		func(ctx context.Context) error { return b.cfg.Machines.Destroy(ctx, id, "the bake failed") },
	)
	j.log(fmt.Sprintf("booted in %s", mc.Boot.Round(time.Millisecond)))
	if err := b.stepDone("boot"); err != nil {
		return err
	}
	if err := b.runStartCommands(ctx, j, id); err != nil {
		return err
	}
	if err := b.waitReady(ctx, j, id); err != nil {
		return err
	}
	return b.stepDone("ready")
}

// warmUp runs the warm-up commands, whose effects every restored machine has in memory.
func (b *Baker) warmUp(ctx context.Context, j *job, id hostapi.MachineID) error {
	if err := b.scrubMemory(ctx, j, id); err != nil {
		return err
	}
	j.step("warm")
	if err := b.warmUpInherited(ctx, j, id); err != nil {
		return err
	}
	for _, command := range j.recipe.Warm {
		j.log("warm: " + command)
		if err := b.exec(ctx, j, id, command, j.recipe.User); err != nil {
			return fmt.Errorf("warm %q: %w", command, err)
		}
	}
	if err := b.checkStartCommands(ctx, j, id); err != nil {
		return err
	}
	return b.stepDone("warm")
}

// capture stores the warmed-up machine as the template's newest generation and deletes the others.
func (b *Baker) capture(
	ctx context.Context,
	j *job,
	back *cleanup.Stack,
	id hostapi.MachineID,
	generation string,
) error {
	j.step("capture")
	r := j.recipe
	old := b.cfg.Store.List(string(snapshot.Join(Area, string(r.Name))))
	ref := snapshot.Join(Area, string(r.Name), fmt.Sprintf("%s-%d", generation, now().UnixMilli()))
	finish := func(ctx context.Context, d *snapshot.Draft) error { return b.compact(ctx, j, d) }
	snap, err := b.cfg.Machines.TakeSnapshot(ctx, id, ref, func(s *snapshot.Snapshot) {
		s.Machine, s.Hostname, s.Env, s.Digest, s.Base = "", "", r.Env, generation, ""
		s.Labels = r.labels()
		if i := slices.IndexFunc(old, func(o snapshot.Snapshot) bool { return o.Ref == j.recapture }); i >= 0 {
			s.Created = old[i].Created // a JIT warm-up changes no content: builds on the template stay valid
		}
	}, finish)
	if err != nil {
		return err
	}
	back.Push("delete the snapshot", func(context.Context) error { return b.cfg.Store.Delete(ref) })
	if err := b.shareImageBlocks(ctx, j, snap); err != nil {
		return err
	}
	if err := loadPageCache(ctx, snap); err != nil {
		return err
	}
	if err := b.stepDone("capture"); err != nil {
		return err
	}
	for _, snap := range old {
		if err := b.deleteIfExists(snap.Ref); err != nil {
			return err
		}
	}
	back.Forget()
	back.Push(
		"destroy machine",
		func(ctx context.Context) error { return b.cfg.Machines.Destroy(ctx, id, "the bake failed") },
	)
	return b.stepDone("replace")
}
