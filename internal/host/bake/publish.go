package bake

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/lib/cleanup"
)

// specLabel is the label of a published template's snapshot with its spec as JSON. The template is baked again from
// its own disk when the platform changes.
const specLabel = "publish"

// Source is what a template is published from: a disk image, or a snapshot.
type Source struct {
	Ref  snapshot.Ref // held while it is read; "": Path is a file that must exist until Publish returns
	Path string
	// Of is the template that the content derives from, whose programs run in the published one, too. "": none.
	Of hostapi.TemplateName
}

// Publish makes a template of a disk and waits until it is usable; see hostapi.Builder.
//
// The disk is copied before anything else.
func (b *Baker) Publish(
	ctx context.Context,
	req hostapi.Publish,
	from Source,
	log func(step, line string),
) (hostapi.Template, error) {
	if err := b.checkPublish(req); err != nil {
		return hostapi.Template{}, err
	}
	inheritedCommands, deleted, err := b.inheritedFrom(from.Of)
	if err != nil {
		return hostapi.Template{}, err
	}
	r := recipeFromSpec(spec{Publish: req, Inherited: inheritedCommands})
	r.disk = func(context.Context) (images, func() error, error) { return b.source(from) }
	j := newJob(r, true)
	j.onLog = log
	j.step("boot")
	if deleted {
		j.log("the template that this one derives from was deleted: its programs are not started")
	}
	b.mu.Lock()
	if old := b.latest[r.Name]; old != nil && old.active() {
		b.mu.Unlock()
		return hostapi.Template{}, fmt.Errorf("template %s is being published: %w", r.Name, hostapi.ErrExists)
	}
	b.latest[r.Name] = j
	b.mu.Unlock()
	done := b.beginPublication()
	err = b.submit(ctx, j)
	if err == nil {
		err = b.waitOrCancel(ctx, j)
	}
	done(r, err == nil)
	if err != nil {
		b.mu.Lock()
		delete(b.latest, r.Name)
		b.mu.Unlock()
		return hostapi.Template{}, errors.Join(err, b.deleteGenerations(r.Name)) // it may have failed after the capture
	}
	platform, err := b.cfg.Platform(ctx)
	if err != nil {
		return hostapi.Template{}, err
	}
	return b.describe(r, platform), nil
}

// waitOrCancel waits for a job to end and cancels it if ctx ends.
func (b *Baker) waitOrCancel(ctx context.Context, j *job) error {
	select {
	case <-j.done:
	case <-ctx.Done():
		j.stop(context.Cause(ctx))
		<-j.done
	}
	if j.err == nil {
		return nil
	}
	return &hostapi.PublishError{Step: j.status().Step, Err: j.err}
}

func (b *Baker) checkPublish(req hostapi.Publish) error {
	name := string(req.Name)
	if name == "" || len(name) > 64 || name[0] == '.' ||
		strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789._-") != "" {
		return fmt.Errorf("template name %q: %w", name, hostapi.ErrInvalid)
	}
	if _, err := b.recipe(req.Name); err == nil {
		return fmt.Errorf("template %s: %w", name, hostapi.ErrExists)
	}
	if req.VCPUs < 1 || req.MemoryMiB < 1 {
		return fmt.Errorf(
			"template %s: %d processors and %d MiB: %w",
			name,
			req.VCPUs,
			req.MemoryMiB,
			hostapi.ErrInvalid,
		)
	}
	return nil
}

// source returns the disks of a source, held until release is called.
func (b *Baker) source(from Source) (images, func() error, error) {
	if from.Ref == "" {
		return images{root: from.Path}, func() error { return nil }, nil
	}
	snap, err := b.cfg.Store.Acquire(from.Ref)
	if errors.Is(err, snapshot.ErrNotFound) {
		err = fmt.Errorf("%w: %w", hostapi.ErrNotFound, err)
	}
	if err != nil {
		return images{}, nil, err
	}
	return snapshotImages(snap), func() error { return b.cfg.Store.Release(from.Ref) }, nil
}

// recipeFromSpec returns the recipe of a published template, without its disks.
func recipeFromSpec(req spec) Recipe {
	text, err := json.Marshal(req)
	if err != nil { // a struct of strings and numbers always marshals
		text = []byte(req.Name)
	}
	sum := sha256.Sum256(text)
	r := Recipe{
		Name: req.Name, VCPUs: req.VCPUs, MemoryMiB: req.MemoryMiB, DiskMiB: req.DiskMiB, User: req.User,
		Workdir: req.Workdir, Env: req.Env, Warm: req.Warm,
		Digest: hex.EncodeToString(sum[:]), spec: &req,
	}
	if req.Inherited != nil {
		r.Start, r.Ready = req.Inherited.Start, req.Inherited.Ready
	}
	return r
}

// minDiskMiB returns the size to which the disk of a published template's machine is grown; 0 for a recipe, whose
// image has its size already.
func (r Recipe) minDiskMiB() int {
	if r.spec == nil {
		return 0
	}
	return r.DiskMiB
}

// labels returns the labels of the snapshot of a published template.
func (r Recipe) labels() map[string]string {
	if r.spec == nil {
		return nil
	}
	text, err := json.Marshal(r.spec)
	if err != nil { // a struct of strings and numbers always marshals
		return nil
	}
	return map[string]string{specLabel: string(text)}
}

// published returns the recipe of a published template by name.
func (b *Baker) published(name hostapi.TemplateName) (Recipe, error) {
	list := b.cfg.Store.List(string(snapshot.Join(Area, string(name))))
	if len(list) > 0 && name != "" && !strings.Contains(string(name), "/") {
		if r, ok := b.recipeFromSnapshot(list[len(list)-1]); ok && r.Name == name {
			return r, nil
		}
	}
	return Recipe{}, fmt.Errorf("template %q: %w", string(name), hostapi.ErrNotFound)
}

// recipeFromSnapshot returns the recipe of a published template, which boots the disks of its snapshot.
func (b *Baker) recipeFromSnapshot(snap snapshot.Snapshot) (Recipe, bool) {
	var from spec
	if snap.Labels[specLabel] == "" || json.Unmarshal([]byte(snap.Labels[specLabel]), &from) != nil {
		return Recipe{}, false
	}
	r := recipeFromSpec(from)
	r.disk = func(context.Context) (images, func() error, error) { return b.source(Source{Ref: snap.Ref}) }
	return r, true
}

// allPublished returns the recipes of the published templates.
func (b *Baker) allPublished() []Recipe {
	var out []Recipe
	seen := map[hostapi.TemplateName]bool{}
	for _, snap := range b.cfg.Store.List(Area) {
		if r, ok := b.recipeFromSnapshot(snap); ok && !seen[r.Name] {
			seen[r.Name] = true
			out = append(out, r)
		}
	}
	return out
}

// Delete deletes a published template; see hostapi.Builder.
func (b *Baker) Delete(name hostapi.TemplateName) error {
	r, err := b.recipe(name)
	if err != nil {
		return err
	}
	if r.spec == nil {
		return fmt.Errorf("template %s is a recipe of this host: %w", name, hostapi.ErrUnsupported)
	}
	b.mu.Lock()
	j := b.latest[r.Name]
	if j != nil && j.active() && j.recapture == "" {
		b.mu.Unlock()
		return fmt.Errorf("template %s is being baked: %w", name, hostapi.ErrInUse)
	}
	delete(b.latest, r.Name)
	delete(b.warmupDue, r.Name)
	b.mu.Unlock()
	if j != nil && j.active() { // a JIT warm-up does not keep it
		j.stop(errors.New("the template is deleted"))
		<-j.done
	}
	return b.deleteGenerations(r.Name)
}

// deleteGenerations deletes all snapshots of a template.
func (b *Baker) deleteGenerations(name hostapi.TemplateName) (err error) {
	for _, snap := range b.cfg.Store.List(string(snapshot.Join(Area, string(name)))) {
		err = errors.Join(err, b.deleteIfExists(snap.Ref))
	}
	return err
}

// copySnapshot makes a template of a snapshot with its memory, sharing its blocks.
func (b *Baker) copySnapshot(ctx context.Context, j *job, back *cleanup.Stack, generation string) error {
	j.step("capture")
	spec := j.recipe.spec
	from := snapshot.Join("snapshots", string(spec.Snapshot))
	snap, err := b.cfg.Store.Acquire(from)
	if errors.Is(err, snapshot.ErrNotFound) {
		return fmt.Errorf(
			"template %s holds the memory of snapshot %s, which this host cannot restore: build the template again: %w",
			spec.Name,
			spec.Snapshot,
			hostapi.ErrNotFound,
		)
	}
	if err != nil {
		return err
	}
	back.Push("release the snapshot", func(context.Context) error { return b.cfg.Store.Release(from) })
	draft, err := b.cfg.Store.Draft()
	if err != nil {
		return err
	}
	back.Push("discard draft", func(context.Context) error { return draft.Discard() })
	for _, f := range snap.Manifest.Files {
		src, dst := filepath.Join(snap.Image().Dir, f.Name), filepath.Join(draft.ImageDir(), f.Name)
		if err := b.copyFile(src, dst); err != nil {
			return fmt.Errorf("copy the memory: %w", err)
		}
	}
	to := draft.DiskPaths(snap.Data)
	for i, path := range snap.DiskPaths() {
		if err := b.cfg.Clone(path, to[i]); err != nil {
			return fmt.Errorf("copy the disk: %w", err)
		}
	}
	if err := b.stepDone("copy"); err != nil {
		return err
	}
	made := snap
	made.Ref = snapshot.Join(Area, string(spec.Name), fmt.Sprintf("%s-%d", generation, now().UnixMilli()))
	made.Machine, made.Hostname, made.Digest, made.Created = "", "", generation, now()
	made.Template, made.Labels = string(spec.Name), j.recipe.labels()
	if made, err = draft.Commit(made); err != nil {
		return err
	}
	back.Push("delete the template", func(context.Context) error { return b.cfg.Store.Delete(made.Ref) })
	if err := errors.Join(b.cfg.Store.Release(made.Ref), b.stepDone("capture")); err != nil {
		return err
	}
	back.Forget()
	return b.cfg.Store.Release(from)
}

// copyFile copies a file with its mode: monitors of other users read it.
func (b *Baker) copyFile(src, dst string) error {
	info, err := os.Stat(src)
	if err != nil {
		return err
	}
	if err := b.cfg.Clone(src, dst); err != nil {
		return err
	}
	return os.Chmod(dst, info.Mode().Perm())
}

// Latest returns the newest snapshot of a template, for whatever platform it was baked.
func (b *Baker) Latest(name hostapi.TemplateName) (snapshot.Snapshot, error) {
	r, err := b.recipe(name)
	if err != nil {
		return snapshot.Snapshot{}, err
	}
	snap, ok := b.newest(r, "")
	if !ok {
		return snapshot.Snapshot{}, fmt.Errorf("template %s is not baked: %w", name, hostapi.ErrNotFound)
	}
	return snap, nil
}
