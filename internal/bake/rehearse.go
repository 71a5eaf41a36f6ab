package bake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/guestapi"
	"github.com/pandastack/pandastack/internal/hostapi"
)

// rehearsals is how often a restored guest does what it will do first: what is done once more is then known
// whole, also what follows only from the first time.
const rehearsals = 3

// first are commands that say little of what users run and much of how anything is run.
var first = []string{"true", "cd / && ls >/dev/null && echo | cat"}

// rehearse lets the machine be restored once, and do what a machine of the template does first. Whoever runs it
// has then met that before.
func (b *Baker) rehearse(ctx context.Context, j *job, id hostapi.MachineID) error {
	if !b.cfg.Rehearse {
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
	if err := b.did("restore"); err != nil {
		return err
	}
	for range rehearsals {
		if err := b.act(ctx, j, id); err != nil {
			return fmt.Errorf("rehearse: %w", err)
		}
	}
	if err := b.alive(ctx, j, id); err != nil {
		return err
	}
	if err := b.cfg.Machines.Rehearsed(ctx, id); err != nil {
		return fmt.Errorf("rehearse: %w", err)
	}
	return b.did("rehearse")
}

// act does once what guests are asked for first.
func (b *Baker) act(ctx context.Context, j *job, id hostapi.MachineID) error {
	user := j.recipe.User
	for _, argv := range [][]string{{"/bin/true"}, {"/bin/echo", "ready"}} {
		proc, err := b.begin(ctx, j, id, guestapi.ProcessSpec{Argv: argv, User: user, Timeout: warmLimit})
		if err != nil {
			return err
		}
		if err := errors.Join(follow(ctx, j, proc), proc.Close()); err != nil {
			return fmt.Errorf("%s: %w", argv[0], err)
		}
	}
	for _, command := range append(first, j.recipe.Warm...) {
		if err := b.exec(ctx, j, id, command, user); err != nil {
			return fmt.Errorf("%q: %w", command, err)
		}
	}
	guest, err := b.cfg.Machines.Guest(ctx, id)
	if err != nil {
		return err
	}
	return errors.Join(files(ctx, guest), terminal(ctx, guest, user))
}

// files writes, finds, reads and removes a file.
func files(ctx context.Context, guest guestapi.Guest) error {
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

// terminal runs a shell in a terminal for a moment.
func terminal(ctx context.Context, guest guestapi.Guest, user string) error {
	proc, err := guest.Start(ctx, guestapi.ProcessSpec{
		Argv: []string{"/bin/sh", "-c", "true"}, User: user, PTY: &guestapi.Size{Rows: 24, Cols: 80}, Timeout: warmLimit,
	})
	if err != nil {
		return err
	}
	defer proc.Close()
	for {
		ev, err := proc.Next(ctx)
		if err != nil || ev.Exit != nil {
			return err
		}
	}
}
