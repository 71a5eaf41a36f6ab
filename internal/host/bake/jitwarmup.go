package bake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/lib/cleanup"
)

// jitWarmupRounds is how often a restored guest does what it will do first. Later rounds translate code that runs
// only the second time.
const jitWarmupRounds = 3

// typicalCommands exercise what running any command takes, whatever users run.
var typicalCommands = []string{"true", "cd / && ls >/dev/null && echo | cat"}

// jitWarmup restores the machine once and lets it do what a machine of the template does first, so that the monitor
// has translated that code already. Published templates get theirs from jitWarmupLoop, since their users wait for
// the bake.
func (b *Baker) jitWarmup(ctx context.Context, j *job, id hostapi.MachineID) error {
	if !b.cfg.JITWarmup || j.recipe.spec != nil {
		return nil
	}
	j.step("jit-warmup")
	if err := b.cfg.Machines.Hibernate(ctx, id); err != nil {
		return fmt.Errorf("JIT warm-up: %w", err)
	}
	mc, err := b.cfg.Machines.Wake(ctx, id)
	if err != nil {
		return fmt.Errorf("JIT warm-up: %w", err)
	}
	j.log(fmt.Sprintf("restored in %s", mc.Boot.Round(time.Millisecond)))
	if err := b.stepDone("restore"); err != nil {
		return err
	}
	return b.runJITWarmup(ctx, j, id)
}

// runJITWarmup lets a restored machine do what it will do first, and marks it as warmed up.
func (b *Baker) runJITWarmup(ctx context.Context, j *job, id hostapi.MachineID) error {
	for range jitWarmupRounds {
		if err := b.exerciseGuest(ctx, j, id); err != nil {
			return fmt.Errorf("JIT warm-up: %w", err)
		}
	}
	if err := b.checkStartCommands(ctx, j, id); err != nil {
		return err
	}
	if err := b.cfg.Machines.MarkWarmedUp(ctx, id); err != nil {
		return fmt.Errorf("JIT warm-up: %w", err)
	}
	return b.stepDone("jit-warmup")
}

// jitWarmupLoop warms up, one after the other, the templates that have no JIT warm-up: first those that were baked
// before the host booted or by an older program, then, until ctx ends, those that are published. Until then their
// machines only become ready later.
func (b *Baker) jitWarmupLoop(ctx context.Context) {
	b.jitWarmupTemplates(ctx, append(slices.Collect(maps.Values(b.recipes)), b.allPublished()...))
	for b.waitQuietPeriod(ctx) {
		b.mu.Lock()
		due := b.warmupDue
		b.warmupDue = map[hostapi.TemplateName]bool{}
		b.mu.Unlock()
		var list []Recipe
		for name := range due {
			if r, err := b.recipe(name); err == nil { // else it was deleted
				list = append(list, r)
			}
		}
		b.jitWarmupTemplates(ctx, list)
	}
}

func (b *Baker) jitWarmupTemplates(ctx context.Context, list []Recipe) {
	platform, err := b.cfg.Platform(ctx)
	if err != nil {
		b.cfg.Log.Warn("templates have no JIT warm-up", "err", err)
		return
	}
	for _, r := range list {
		if ctx.Err() != nil {
			return
		}
		if err := b.jitWarmupTemplate(ctx, r, platform); err != nil && ctx.Err() == nil {
			b.cfg.Log.Warn(
				"template has no JIT warm-up: its machines become ready later",
				"template",
				r.Name,
				"err",
				err,
			)
		}
	}
}

// waitQuietPeriod waits until a template was published and then none for a while, so that a build right after another
// is not delayed. It returns false if ctx has ended.
func (b *Baker) waitQuietPeriod(ctx context.Context) bool {
	pause := time.NewTimer(b.cfg.QuietPeriod)
	defer pause.Stop()
	for {
		select {
		case <-b.publicationEnded:
			pause.Reset(b.cfg.QuietPeriod)
			continue
		case <-pause.C:
		case <-ctx.Done():
			return false
		}
		b.mu.Lock()
		ready := b.publishing == 0 && len(b.warmupDue) > 0
		b.mu.Unlock()
		if ready {
			return true
		} // otherwise the end of the last publication wakes this loop
	}
}

// beginPublication registers a publication; done registers its end, and whether it made a template to warm up.
func (b *Baker) beginPublication() (done func(r Recipe, made bool)) {
	b.mu.Lock()
	b.publishing++
	b.mu.Unlock()
	return func(r Recipe, made bool) {
		b.mu.Lock()
		b.publishing--
		if made && b.cfg.JITWarmup && r.allowsJITWarmup() {
			b.warmupDue[r.Name] = true
		}
		b.mu.Unlock()
		select {
		case b.publicationEnded <- struct{}{}:
		default: // a notification is pending already
		}
	}
}

// allowsJITWarmup reports whether machines of the template may run before they are captured. A template of a
// sandbox's memory must stay as it is.
func (r Recipe) allowsJITWarmup() bool { return r.spec == nil || !r.spec.KeepMemory }

// jitWarmupTemplate warms up one template, unless it is warmed up or being baked.
func (b *Baker) jitWarmupTemplate(ctx context.Context, r Recipe, platform string) error {
	snap, ok := b.newest(r, r.generation(platform))
	if !ok || snap.RemoteBacked() || !r.allowsJITWarmup() {
		return nil
	}
	if known, err := b.cfg.IsWarmedUp(snap); err != nil || known {
		return err
	}
	j := newJob(r, false)
	j.recapture, j.minBytes = snap.Ref, snap.Bytes
	b.mu.Lock()
	if old := b.latest[r.Name]; old != nil && old.active() {
		b.mu.Unlock()
		return nil
	}
	b.latest[r.Name] = j
	b.mu.Unlock()
	b.run(ctx, j)
	return j.wait(ctx)
}

// recapture replaces a template's snapshot by one of a machine that was restored from it and warmed up.
func (b *Baker) recapture(ctx context.Context, j *job, back *cleanup.Stack, generation string) error {
	id := j.recipe.machineID()
	j.step("jit-warmup")
	if err := b.cfg.Machines.Destroy(ctx, id, "left by an earlier bake"); err != nil {
		return err
	}
	if _, err := b.cfg.Machines.CreateEphemeral(ctx, id, j.recapture); err != nil {
		return err
	}
	back.Push(
		"destroy machine",
		func(ctx context.Context) error { return b.cfg.Machines.Destroy(ctx, id, "the bake failed") },
	)
	if err := b.stepDone("restore"); err != nil {
		return err
	}
	if err := b.runJITWarmup(ctx, j, id); err != nil {
		return err
	}
	if err := b.capture(ctx, j, back, id, generation); err != nil {
		return err
	}
	return b.discardMachine(ctx, j, id, "the template is warmed up")
}

// exerciseGuest makes the first requests of a typical client once. In a published template those that fail are
// skipped: it may lack the programs and directories of the bundled ones.
func (b *Baker) exerciseGuest(ctx context.Context, j *job, id hostapi.MachineID) error {
	user := j.recipe.User
	var steps []func() error
	for _, argv := range [][]string{{"/bin/true"}, {"/bin/echo", "ready"}} {
		steps = append(steps, func() error {
			if err := b.execLogged(ctx, j, id, guestapi.ProcessSpec{Argv: argv, User: user}, j.log); err != nil {
				return fmt.Errorf("%s: %w", argv[0], err)
			}
			return nil
		})
	}
	commands := typicalCommands
	if j.recipe.spec == nil { // users' warm-up commands may not be repeatable
		commands = append(slices.Clone(typicalCommands), j.recipe.Warm...)
	}
	for _, command := range commands {
		steps = append(steps, func() error {
			if err := b.exec(ctx, j, id, command, user); err != nil {
				return fmt.Errorf("%q: %w", command, err)
			}
			return nil
		})
	}
	guest, err := b.cfg.Machines.Guest(ctx, id)
	if err != nil {
		return err
	}
	steps = append(
		steps,
		func() error { return b.warmUpInherited(ctx, j, id) },
		func() error { return exerciseFiles(ctx, guest) },
		func() error { return b.exerciseVolume(ctx, guest, id) },
		func() error { return exerciseTerminal(ctx, guest, user) },
	)
	for _, do := range steps {
		err := do()
		if err != nil && (j.recipe.spec == nil || ctx.Err() != nil || errors.Is(err, guestapi.ErrLost)) {
			return err
		}
	}
	return nil
}

// exerciseFiles writes, finds, reads and removes a file.
func exerciseFiles(ctx context.Context, guest guestapi.Guest) error {
	const path, text = "/tmp/.jit-warmup", "a few words"
	if _, err := guest.Write(ctx, path, guestapi.WriteOptions{}, strings.NewReader(text)); err != nil {
		return err
	}
	if _, err := guest.Stat(ctx, path, ""); err != nil {
		return err
	}
	_, r, err := guest.Read(ctx, path, "", 0, -1)
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, r); err != nil {
		return errors.Join(err, r.Close())
	}
	if err := r.Close(); err != nil {
		return err
	}
	if _, err := guest.List(ctx, "/tmp", "", 1); err != nil {
		return err
	}
	return guest.Remove(ctx, path, "", false)
}

// exerciseVolume mounts and unmounts a volume.
func (b *Baker) exerciseVolume(ctx context.Context, guest guestapi.Guest, id hostapi.MachineID) error {
	const dir = "/tmp/.jit-warmup-volume"
	if err := b.cfg.Machines.ExerciseVolume(ctx, id, dir); err != nil {
		return err
	}
	if err := guest.Remove(ctx, dir, "root", false); !errors.Is(err, guestapi.ErrNotFound) {
		return err
	}
	return nil // the host has no volumes
}

// exerciseTerminal runs a shell in a terminal until it exits.
func exerciseTerminal(ctx context.Context, guest guestapi.Guest, user string) error {
	_, err := guestexec.Stream(ctx, guest, guestexec.Command{Spec: guestapi.ProcessSpec{
		Argv: []string{"/bin/sh", "-c", "true"}, User: user, PTY: &guestapi.Size{Rows: 24, Cols: 80},
		Timeout: commandTimeout,
	}, Overtime: exitGrace}, guestexec.Sink{})
	return err
}
