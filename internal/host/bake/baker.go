package bake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/host/snapshot"
)

// Area of the snapshot store that holds baked templates, by name and generation.
const Area = "templates"

// Machines creates, uses and destroys the machines that templates are captured from.
type Machines interface {
	Boot(ctx context.Context, req machine.Boot) (machine.View, error)
	Guest(ctx context.Context, id hostapi.MachineID) (guestapi.Guest, error)
	TakeSnapshot(ctx context.Context, id hostapi.MachineID, ref snapshot.Ref,
		change func(*snapshot.Snapshot), finish func(context.Context, *snapshot.Draft) error) (snapshot.Snapshot, error)
	Destroy(ctx context.Context, id hostapi.MachineID, cause string) error
	// CreateEphemeral restores a machine that is in no list.
	CreateEphemeral(ctx context.Context, id hostapi.MachineID, from snapshot.Ref) (machine.View, error)
	// Hibernate and Wake move a machine to disk and back. MarkWarmedUp declares that its guest has done what the
	// machines of its next snapshot will do first. They, ExerciseVolume and CreateEphemeral are used only with
	// Config.JITWarmup.
	Hibernate(ctx context.Context, id hostapi.MachineID) error
	Wake(ctx context.Context, id hostapi.MachineID) (machine.View, error)
	MarkWarmedUp(ctx context.Context, id hostapi.MachineID) error
	// ExerciseVolume attaches an empty volume to a machine at a directory of its guest, and detaches it.
	ExerciseVolume(ctx context.Context, id hostapi.MachineID, dir string) error
}

// Config is the configuration of a Baker. All but Log, OnStep, Share and PunchPages is required.
type Config struct {
	// Dir holds finished disk images, on the file system of the snapshots.
	Dir      string
	Recipes  []Recipe
	Machines Machines
	Store    *snapshot.Store
	// Platform identifies the kernel, guest agent and monitor of this host. A template that was baked on another
	// platform is baked again.
	Platform func(ctx context.Context) (string, error)
	// Rewrite copies a disk image into few extents, which makes clones of it cheap.
	Rewrite func(ctx context.Context, src, dst string) error
	// Share makes a file use the blocks of known files with the same content, and PunchPages turns its pages of
	// zeros into holes; each returns the number of bytes. nil: skipped.
	Share      func(ctx context.Context, path string, known []string) (int64, error)
	PunchPages func(ctx context.Context, path string) (int64, error)
	// JITWarmup restores a template's machine once before the capture and lets it do what a restored machine does
	// first. It helps with monitors whose checkpoints keep translated code.
	JITWarmup bool
	// IsWarmedUp reports whether machines of a snapshot start with a JIT warm-up; required with JITWarmup.
	IsWarmedUp func(snapshot.Snapshot) (bool, error)
	// RebakeStale makes Run bake templates again, in the background, that are baked and not current.
	RebakeStale bool
	// QuietPeriod is how long after the last publication its JIT warm-up starts; default 5 s.
	QuietPeriod time.Duration
	// Clone copies a file so that both share its blocks.
	Clone func(src, dst string) error
	Log   *slog.Logger
	// OnStep is called after every step, for tests; an error fails the bake there.
	OnStep func(step string) error
}

// Baker bakes the templates of one host.
type Baker struct {
	cfg     Config
	recipes map[hostapi.TemplateName]Recipe
	aliases map[hostapi.TemplateName]hostapi.TemplateName
	jobs    chan *job

	preMountLock     chan struct{} // holds a token while a pre-mount snapshot is looked up or made
	publicationEnded chan struct{} // receives when a publication has ended

	mu         sync.Mutex
	latest     map[hostapi.TemplateName]*job
	warmupDue  map[hostapi.TemplateName]bool // published and waiting for a JIT warm-up; guarded by mu
	publishing int                           // publications in progress; guarded by mu
}

// New returns a baker. It touches no file.
func New(cfg Config) (*Baker, error) {
	if cfg.Dir == "" || cfg.Machines == nil || cfg.Store == nil || cfg.Platform == nil || cfg.Rewrite == nil ||
		cfg.Clone == nil {
		return nil, errors.New("bake: directory, machines, store, platform, rewrite and clone are required")
	}
	if cfg.JITWarmup && cfg.IsWarmedUp == nil {
		return nil, errors.New("bake: JITWarmup requires IsWarmedUp")
	}
	cfg.QuietPeriod = cmp.Or(cfg.QuietPeriod, 5*time.Second)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	b := &Baker{cfg: cfg, recipes: map[hostapi.TemplateName]Recipe{},
		aliases: map[hostapi.TemplateName]hostapi.TemplateName{}, jobs: make(chan *job),
		latest: map[hostapi.TemplateName]*job{}, preMountLock: make(chan struct{}, 1),
		publicationEnded: make(chan struct{}, 1), warmupDue: map[hostapi.TemplateName]bool{}}
	for _, r := range cfg.Recipes {
		b.recipes[r.Name] = r
		for _, alias := range r.Aliases {
			b.aliases[hostapi.TemplateName(alias)] = r.Name
		}
	}
	return b, nil
}

// Run runs the bakes that are started until ctx ends, which cancels them. It returns when they have ended.
func (b *Baker) Run(ctx context.Context) error {
	if err := b.sweep(); err != nil {
		return fmt.Errorf("bake: %w", err)
	}
	var work sync.WaitGroup
	defer work.Wait()
	if b.cfg.JITWarmup {
		work.Go(func() { b.jitWarmupLoop(ctx) })
	}
	if b.cfg.RebakeStale {
		work.Go(func() { b.rebakeStale(ctx) })
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case j := <-b.jobs:
			work.Go(func() { b.run(ctx, j) })
		}
	}
}

// sweep removes files of bakes that were killed.
func (b *Baker) sweep() error {
	if err := os.MkdirAll(b.cfg.Dir, 0o711); err != nil {
		return err
	}
	list, err := os.ReadDir(b.cfg.Dir)
	if err != nil {
		return err
	}
	for _, e := range list {
		root, _, _ := strings.Cut(e.Name(), dataSeparator)
		if strings.HasSuffix(root, workSuffix) || strings.HasSuffix(root, newSuffix) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(b.cfg.Dir, e.Name())))
		}
	}
	// A generation that was captured again, whose older snapshot was not deleted yet.
	type generation struct{ of, digest string }
	seen := map[generation]bool{}
	for _, snap := range slices.Backward(b.cfg.Store.List(Area)) {
		g := generation{filepath.Dir(string(snap.Ref)), snap.Digest}
		if seen[g] {
			err = errors.Join(err, b.deleteIfExists(snap.Ref))
		}
		seen[g] = true
	}
	return err
}

// deleteIfExists deletes a snapshot; one that does not exist is no error.
func (b *Baker) deleteIfExists(ref snapshot.Ref) error {
	if err := b.cfg.Store.Delete(ref); !errors.Is(err, snapshot.ErrNotFound) {
		return err
	}
	return nil
}

func (b *Baker) recipe(name hostapi.TemplateName) (Recipe, error) {
	if real, ok := b.aliases[name]; ok {
		name = real
	}
	if r, ok := b.recipes[name]; ok {
		return r, nil
	}
	return b.published(name)
}

// Current returns the snapshot of a template as it would be baked now, and whether it exists.
func (b *Baker) Current(ctx context.Context, name hostapi.TemplateName) (snapshot.Snapshot, bool, error) {
	r, err := b.recipe(name)
	if err != nil {
		return snapshot.Snapshot{}, false, err
	}
	platform, err := b.cfg.Platform(ctx)
	if err != nil {
		return snapshot.Snapshot{}, false, fmt.Errorf("template %s: %w", name, err)
	}
	snap, ok := b.newest(r, r.generation(platform))
	return snap, ok, nil
}

// newest returns the newest snapshot of a generation; "" is any generation.
func (b *Baker) newest(r Recipe, generation string) (snapshot.Snapshot, bool) {
	list := b.cfg.Store.List(string(snapshot.Join(Area, string(r.Name))))
	for _, snap := range slices.Backward(list) {
		if generation == "" || snap.Digest == generation {
			return snap, true
		}
	}
	return snapshot.Snapshot{}, false
}

// Start starts to bake a template that is not baked, or any template if force is set. It joins a bake in progress
// and does not wait for it.
func (b *Baker) Start(ctx context.Context, name hostapi.TemplateName, force bool) error {
	_, err := b.start(ctx, name, force)
	return err
}

func (b *Baker) start(ctx context.Context, name hostapi.TemplateName, force bool) (*job, error) {
	r, err := b.recipe(name)
	if err != nil {
		return nil, err
	}
	if _, ok, err := b.Current(ctx, name); err != nil || ok && !force {
		return nil, err
	}
	b.mu.Lock()
	j := b.latest[r.Name]
	if j != nil && j.active() {
		b.mu.Unlock()
		return j, nil
	}
	j = newJob(r, force)
	b.latest[r.Name] = j
	b.mu.Unlock()
	return j, b.submit(ctx, j)
}

// submit hands a job to Run.
func (b *Baker) submit(ctx context.Context, j *job) error {
	select {
	case b.jobs <- j:
		return nil
	case <-ctx.Done():
		err := fmt.Errorf("bake template %s: %w", j.recipe.Name, context.Cause(ctx))
		j.finish(err)
		return err
	}
}

// Ensure returns a template's snapshot and bakes it first if needed; cold is set if it had to.
func (b *Baker) Ensure(ctx context.Context, name hostapi.TemplateName) (_ snapshot.Snapshot, cold bool, err error) {
	for {
		snap, ok, err := b.Current(ctx, name)
		if err != nil || ok {
			return snap, cold, err
		}
		j, err := b.start(ctx, name, false)
		if err != nil {
			return snapshot.Snapshot{}, false, err
		}
		cold = true
		if j == nil {
			continue // another caller baked it in between
		}
		if err := j.wait(ctx); err != nil {
			return snapshot.Snapshot{}, true, fmt.Errorf("bake template %s: %w", name, err)
		}
	}
}

// Cancel cancels the bake of a template, if there is one.
func (b *Baker) Cancel(name hostapi.TemplateName) {
	b.mu.Lock()
	j := b.latest[name]
	b.mu.Unlock()
	if j != nil {
		j.stop(errors.New("the bake was cancelled"))
	}
}

// Templates lists the templates of this host by name, hidden ones too, with the state of their bakes.
func (b *Baker) Templates(ctx context.Context) ([]hostapi.Template, error) {
	platform, err := b.cfg.Platform(ctx)
	if err != nil {
		platform = "" // no template can be baked now, but they can be listed
	}
	out := make([]hostapi.Template, 0, len(b.recipes))
	for _, r := range b.recipes {
		out = append(out, b.describe(r, platform))
	}
	for _, r := range b.allPublished() {
		out = append(out, b.describe(r, platform))
	}
	slices.SortFunc(out, func(a, b hostapi.Template) int { return strings.Compare(string(a.Name), string(b.Name)) })
	return out, nil
}

func dataDisks(all []snapshot.DataDisk) []hostapi.DataDisk {
	var out []hostapi.DataDisk
	for _, d := range all {
		out = append(out, hostapi.DataDisk{Name: d.Name, SizeMiB: d.MiB, Mount: d.Mount})
	}
	return out
}

// describe returns what is known about a template.
func (b *Baker) describe(r Recipe, platform string) hostapi.Template {
	t := hostapi.Template{
		Name: r.Name, Description: r.Description, Base: r.Base, VCPUs: r.VCPUs, MemoryMiB: r.MemoryMiB,
		DiskMiB: r.DiskMiB, Disks: dataDisks(r.Disks), User: r.User, Workdir: r.Workdir, Tools: r.Tools,
		Hidden: r.Hidden, Limits: r.Limits,
	}
	if r.spec != nil {
		t.Published, t.Labels = true, r.spec.Labels
	}
	if snap, ok := b.newest(r, r.generation(platform)); ok {
		t.Baked, t.BakedAt, t.Bytes, t.DiskMiB = true, snap.Created, snap.Bytes, snap.DiskMiB
		t.Disks = dataDisks(snap.Data)
		t.ApparentBytes = apparentBytes(snap)
	}
	b.mu.Lock()
	j := b.latest[r.Name]
	b.mu.Unlock()
	if j != nil {
		t.Bake = j.status()
	}
	return t
}
