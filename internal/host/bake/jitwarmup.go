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

// jitWarmupRounds is how often a restored guest does what it will do first: what is done once more is then known
// whole, also what follows only from the first time.
const jitWarmupRounds = 3

// typicalCommands are commands that say little of what users run and much of how anything is run.
var typicalCommands = []string{"true", "cd / && ls >/dev/null && echo | cat"}

// jitWarmup lets the machine be restored once, and do what a machine of the template does first. Whoever runs it
// has then met that before. Whoever publishes a template waits for it, so of those it is done by refresh.
func (b *Baker) jitWarmup(ctx context.Context, j *job, id hostapi.MachineID) error {
	if !b.cfg.JITWarmup || j.recipe.spec != nil {
		return nil
	}
	j.step("rehearse")
	if err := b.cfg.Machines.Hibernate(ctx, id); err != nil {
		return fmt.Errorf("rehearse: %w", err)
	}
	mc, err := b.cfg.Machines.Wake(ctx, id)
	if err != nil {
		return fmt.Errorf("rehearse: %w", err)
	}
	j.log(fmt.Sprintf("restored in %s", mc.Boot.Round(time.Millisecond)))
	if err := b.stepDone("restore"); err != nil {
		return err
	}
	return b.runJITWarmup(ctx, j, id)
}

// runJITWarmup lets a restored machine do what it will do first.
func (b *Baker) runJITWarmup(ctx context.Context, j *job, id hostapi.MachineID) error {
	for range jitWarmupRounds {
		if err := b.exerciseGuest(ctx, j, id); err != nil {
			return fmt.Errorf("rehearse: %w", err)
		}
	}
	if err := b.checkStartCommands(ctx, j, id); err != nil {
		return err
	}
	if err := b.cfg.Machines.MarkWarmedUp(ctx, id); err != nil {
		return fmt.Errorf("rehearse: %w", err)
	}
	return b.stepDone("rehearse")
}

// jitWarmupLoop rehearses, one after the other, the templates whose machines begin with nothing learnt: first those that
// were baked before the host was booted, or by an older program, then, until ctx ends, what is published. Until that
// is done their machines are ready later, and that is all.
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
		b.cfg.Log.Warn("templates are not rehearsed", "err", err)
		return
	}
	for _, r := range list {
		if ctx.Err() != nil {
			return
		}
		if err := b.jitWarmupTemplate(ctx, r, platform); err != nil && ctx.Err() == nil {
			b.cfg.Log.Warn(
				"template is not rehearsed: its machines are ready later than they could be",
				"template",
				r.Name,
				"err",
				err,
			)
		}
	}
}

// waitQuietPeriod waits until something was published and, for a while, nothing was: whoever builds again at once is not
// held up. false: ctx has ended.
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
		} // the end of the last publication nudges
	}
}

// beginPublication notes that a publication begins; done, that it ended, and whether there is a template to rehearse.
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
		default: // one waits to be read
		}
	}
}

// allowsJITWarmup tells whether machines of the template may do anything before they are captured: one that holds a
// sandbox's memory is that moment and no other.
func (r Recipe) allowsJITWarmup() bool { return r.spec == nil || !r.spec.KeepMemory }

// jitWarmupTemplate rehearses one template, if it has to be and nobody bakes it.
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

// recapture takes a template's own snapshot anew, of a machine of it that was rehearsed.
func (b *Baker) recapture(ctx context.Context, j *job, back *cleanup.Stack, generation string) error {
	id := j.recipe.machineID()
	j.step("rehearse")
	if err := b.cfg.Machines.Destroy(ctx, id, "left of an earlier bake"); err != nil {
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
	return b.discardMachine(ctx, j, id, "the template is rehearsed")
}

// exerciseGuest does once what guests are asked for first. What a published template has no programs or places for is left
// out: it need not have what ours have.
func (b *Baker) exerciseGuest(ctx context.Context, j *job, id hostapi.MachineID) error {
	user := j.recipe.User
	var deeds []func() error
	for _, argv := range [][]string{{"/bin/true"}, {"/bin/echo", "ready"}} {
		deeds = append(deeds, func() error {
			if err := b.execLogged(ctx, j, id, guestapi.ProcessSpec{Argv: argv, User: user}, j.log); err != nil {
				return fmt.Errorf("%s: %w", argv[0], err)
			}
			return nil
		})
	}
	commands := typicalCommands
	if j.recipe.spec == nil { // what users want warm may not be fit for being done again
		commands = append(slices.Clone(typicalCommands), j.recipe.Warm...)
	}
	for _, command := range commands {
		deeds = append(deeds, func() error {
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
	deeds = append(
		deeds,
		func() error { return b.warmUpInherited(ctx, j, id) },
		func() error { return exerciseFiles(ctx, guest) },
		func() error { return exerciseTerminal(ctx, guest, user) },
	)
	for _, do := range deeds {
		err := do()
		if err != nil && (j.recipe.spec == nil || ctx.Err() != nil || errors.Is(err, guestapi.ErrLost)) {
			return err
		}
	}
	return nil
}

// exerciseFiles writes, finds, reads and removes a file.
func exerciseFiles(ctx context.Context, guest guestapi.Guest) error {
	const path, text = "/tmp/.rehearsal", "a few words"
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

// exerciseTerminal runs a shell in a terminal for a moment.
func exerciseTerminal(ctx context.Context, guest guestapi.Guest, user string) error {
	_, err := guestexec.Stream(ctx, guest, guestexec.Command{Spec: guestapi.ProcessSpec{
		Argv: []string{"/bin/sh", "-c", "true"}, User: user, PTY: &guestapi.Size{Rows: 24, Cols: 80},
		Timeout: commandTimeout,
	}, Overtime: exitGrace}, guestexec.Sink{})
	return err
}
