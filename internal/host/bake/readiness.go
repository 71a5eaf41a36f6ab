package bake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// startPublished runs the start command of a published template and waits until the template is ready.
func (b *Baker) startPublished(ctx context.Context, j *job, id hostapi.MachineID) error {
	spec := j.recipe.spec
	if spec == nil {
		return nil
	}
	if spec.Start == "" {
		return errors.Join(b.waitPublishedReady(ctx, j, id), b.stepDone("serve"))
	}
	j.step("start")
	j.log("start: " + spec.Start)
	guest, start, err := b.prepareExec(ctx, j, id,
		guestapi.ProcessSpec{Shell: spec.Start, User: spec.User, Tag: "start"})
	if err != nil {
		return err
	}
	proc, err := guest.Start(ctx, start)
	if err != nil {
		return err
	}
	defer proc.Close() // the program continues
	// The output is read until the template is ready; a program that fails ends the wait.
	waiting, stop := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		out := logLines(j.log)
		exit, err := guestexec.Follow(waiting, proc, outputTo(out))
		out.Flush()
		if err == nil {
			err = exitError(exit, out)
		}
		if err != nil && waiting.Err() == nil {
			stop(fmt.Errorf("the start command failed: %w", err))
		}
	}()
	err = b.waitPublishedReady(waiting, j, id)
	if err == nil {
		err = b.stepDone("serve")
	}
	if cause := context.Cause(waiting); err == nil && cause != nil {
		err = cause // the command failed although the check succeeded
	}
	stop(nil)
	<-ended
	return err
}

// waitPublishedReady repeats the ready command of a published template until it succeeds. Without one, the start
// command has to run for startGrace.
func (b *Baker) waitPublishedReady(ctx context.Context, j *job, id hostapi.MachineID) error {
	spec := j.recipe.spec
	if spec.Ready == "" && spec.Start == "" {
		return nil
	}
	j.step("ready")
	limit := cmp.Or(spec.ReadyLimit, readyTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the template was not ready within %s", limit))
	defer cancel()
	if spec.Ready == "" {
		pause := time.NewTimer(startGrace)
		defer pause.Stop()
		select {
		case <-pause.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	again := time.NewTicker(readyInterval)
	defer again.Stop()
	log := deduplicate(j.log)
	for {
		err := b.execLogged(ctx, j, id, guestapi.ProcessSpec{Shell: spec.Ready, User: spec.User}, log)
		if err == nil {
			return nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(err, cause) {
				return fmt.Errorf("%w: %w", cause, err)
			}
			return err
		}
	}
}

// waitReady repeats the recipe's ready command until it succeeds.
func (b *Baker) waitReady(ctx context.Context, j *job, id hostapi.MachineID) error {
	if j.recipe.Ready == "" {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(
		ctx,
		readyTimeout,
		fmt.Errorf("the guest was not ready within %s", readyTimeout),
	)
	defer cancel()
	again := time.NewTicker(readyInterval)
	defer again.Stop()
	log := deduplicate(j.log)
	for {
		err := b.execLogged(ctx, j, id, guestapi.ProcessSpec{Shell: j.recipe.Ready, User: "root"}, log)
		if err == nil {
			return nil
		}
		if ended := b.checkStartCommands(ctx, j, id); ended != nil && ctx.Err() == nil {
			return ended // the template cannot become ready any more
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(err, cause) {
				return fmt.Errorf("%w: %w", cause, err)
			}
			return err
		}
	}
}

// deduplicate returns a log that drops repeated lines: a command that is repeated mostly prints the same.
func deduplicate(log func(string)) func(string) {
	seen := map[string]bool{}
	return func(line string) {
		if !seen[line] && len(seen) < 1000 {
			seen[line] = true
			log(line)
		}
	}
}
