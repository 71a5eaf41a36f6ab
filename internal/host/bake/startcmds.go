package bake

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// lastOutputTimeout bounds the wait for the output of a program that exited.
const lastOutputTimeout = 10 * time.Second

// runStartCommands starts the programs that keep running in the template.
func (b *Baker) runStartCommands(ctx context.Context, j *job, id hostapi.MachineID) error {
	for _, s := range j.recipe.Start {
		j.log("start: " + s.Name)
		guest, err := b.cfg.Machines.Guest(ctx, id)
		if err != nil {
			return err
		}
		proc, err := guest.Start(ctx, s.Spec)
		if err == nil {
			err = proc.Close()
		}
		if err != nil {
			return fmt.Errorf("start %s: %w", s.Name, err)
		}
	}
	return b.stepDone("start")
}

// checkStartCommands returns an error with the last line of output if a program of the template has exited: a
// snapshot without it would be another template.
func (b *Baker) checkStartCommands(ctx context.Context, j *job, id hostapi.MachineID) error {
	for _, s := range j.recipe.Start {
		if s.Spec.Tag == "" {
			continue
		}
		guest, err := b.cfg.Machines.Guest(ctx, id)
		if err != nil {
			return err
		}
		list, err := guest.Processes(ctx)
		if err != nil {
			return err
		}
		if !isRunning(list, s.Spec.Tag) {
			return fmt.Errorf("%s has ended%s", s.Name, lastOutputLine(ctx, guest, s.Spec.Tag))
		}
	}
	return nil
}

func isRunning(list []guestapi.ProcessInfo, tag string) bool {
	for _, p := range list {
		if p.Tag == tag && p.Exit == nil {
			return true
		}
	}
	return false
}

// lastOutputLine returns the last line of a program that exited, as the end of a sentence; "" if there is none.
func lastOutputLine(ctx context.Context, guest guestapi.Guest, tag string) string {
	ctx, cancel := context.WithTimeoutCause(ctx, lastOutputTimeout, errors.New("the program's output took too long"))
	defer cancel()
	out := logLines(nil)
	_, err := guestexec.Attach(ctx, guest, guestapi.ProcessRef{Tag: tag}, guestapi.Offsets{}, outputTo(out))
	out.Flush()
	if err != nil || len(out.Last()) == 0 {
		return ""
	}
	return ": " + out.Last()[0]
}

// check runs the recipe's check of the finished template.
func (b *Baker) check(ctx context.Context, j *job, id hostapi.MachineID) error {
	if j.recipe.Check != "" {
		j.step("check")
		if err := b.exec(ctx, j, id, j.recipe.Check, j.recipe.User); err != nil {
			return fmt.Errorf("check of the template: %w", err)
		}
	}
	return b.stepDone("check")
}
