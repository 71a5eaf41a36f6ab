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

// exitGrace is how long a guest may take to report the end of a command whose timeout has passed. Translated code
// runs about ten times slower than native.
const exitGrace = time.Minute

// exec runs a shell command in the guest and logs its output. A command that fails is an error.
func (b *Baker) exec(ctx context.Context, j *job, id hostapi.MachineID, command, user string) error {
	return b.execLogged(ctx, j, id, guestapi.ProcessSpec{Shell: command, User: user}, j.log)
}

// execLogged runs a program in the guest and calls log with each line of its output. A program that fails is an
// error.
func (b *Baker) execLogged(
	ctx context.Context,
	j *job,
	id hostapi.MachineID,
	spec guestapi.ProcessSpec,
	log func(string),
) error {
	guest, spec, err := b.prepareExec(ctx, j, id, spec)
	if err != nil {
		return err
	}
	spec.Timeout = commandTimeout
	out := logLines(log)
	st, err := guestexec.Stream(ctx, guest, guestexec.Command{Spec: spec, Overtime: exitGrace}, outputTo(out))
	out.Flush()
	if err != nil {
		return err
	}
	return exitError(st.Exit, out)
}

// prepareExec returns the guest that is to run a program. In a published template the program runs in the working
// directory, as a user's programs do.
func (b *Baker) prepareExec(
	ctx context.Context,
	j *job,
	id hostapi.MachineID,
	spec guestapi.ProcessSpec,
) (guestapi.Guest, guestapi.ProcessSpec, error) {
	if j.recipe.spec != nil {
		spec.Dir = j.recipe.Workdir
	}
	guest, err := b.cfg.Machines.Guest(ctx, id)
	return guest, spec, err
}

// exitError returns how a program failed, with the last line of its output; nil if it succeeded.
func exitError(exit guestapi.Exit, out *guestexec.Lines) error {
	switch {
	case exit.Error != "":
		return errors.New(exit.Error)
	case exit.Code == 0:
		return nil
	}
	last := ""
	if lines := out.Last(); len(lines) > 0 {
		last = lines[0]
	}
	return fmt.Errorf("the command exited with status %d: %s", exit.Code, last)
}

// maxLine bounds a line of a guest's output, in bytes.
const maxLine = 1000

// logLines returns a splitter of a guest's output into lines for a log.
func logLines(log func(string)) *guestexec.Lines {
	return &guestexec.Lines{Max: maxLine, Keep: 1, Emit: log}
}

// outputTo adds all output of a program to lines.
func outputTo(lines *guestexec.Lines) guestexec.Sink {
	return guestexec.Sink{Output: func(e guestapi.Event) error {
		lines.Add(e.Data)
		return nil
	}}
}
