package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/app/applog"
	"github.com/pandastack/pandastack/internal/control/app/program"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// live is what this process knows of an app.
type live struct {
	as    auth.Principal // never changes
	asked atomic.Bool    // deployments were asked for while the lock of the deployments was held

	mu       sync.Mutex
	making   map[string]bool             // replicas that an operation of this process is making
	followed map[string]bool             // replicas whose output is followed
	offsets  map[string]guestapi.Offsets // of output that was read
	crashes  int                         // lately
	crashed  time.Time                   // the last time
	revive   bool                        // a replica is to be made for one that crashed
	surplus  time.Time                   // since when there are more replicas than the load needs; zero: there are not
	began    time.Time                   // of the live deployment
	sleeps   int64
	restarts int64
	wakers   int                     // calls of Wake
	stay     context.CancelCauseFunc // ends an attempt to let the replicas sleep; nil: there is none
	output   *applog.Log             // of its programs; nil: none is followed
}

// of returns what is known of an app.
func (s *Service) of(row *store.App) *live {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.live[api.AppID(row.ID)]
	if l == nil {
		l = &live{as: as(row), making: map[string]bool{}, followed: map[string]bool{},
			offsets: map[string]guestapi.Offsets{}}
		s.live[api.AppID(row.ID)] = l
	}
	return l
}

// forget drops what is known of an app that was removed.
func (s *Service) forget(app api.AppID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.live, app)
}

// make records that a replica is being made, until done is called.
func (l *live) make(id string) (done func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.making[id] = true
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.making, id)
	}
}

func (l *live) isMade(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.making[id]
}

func (l *live) setOffsets(id string, at guestapi.Offsets) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.offsets[id] = at
}

// cutOver forgets the crashes of what was live before.
func (l *live) cutOver() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.crashes, l.revive, l.surplus, l.began = 0, false, time.Time{}, time.Now()
}

// calm is how long a program must run for its earlier crashes to be forgotten.
const calm = 10 * time.Minute

// crash counts a crash.
func (l *live) crash() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.crashed) > calm {
		l.crashes = 0
	}
	l.crashes++
	l.restarts++
	l.crashed, l.revive = time.Now(), true
	return l.crashes
}

// backoff returns how long no replica is made because of crashes.
func (s *Service) backoff(l *live) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.crashes == 0 {
		return 0
	}
	wait := s.cfg.Backoff
	for n := 1; n < l.crashes && wait < s.cfg.MaxBackoff; n++ {
		wait *= 2
	}
	return time.Until(l.crashed.Add(min(wait, s.cfg.MaxBackoff)))
}

// errWanted ends the attempt to let an app sleep for which a request has come.
var errWanted = errors.New("the app is to stay awake")

// want records that an app is to be awake until done is called. Replicas that are about to sleep continue.
func (l *live) want() (done func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wakers++
	if l.stay != nil {
		l.stay(errWanted)
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.wakers--
	}
}

func (l *live) isWanted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.wakers > 0
}

// Wake returns when at least want replicas of the live deployment take requests. Replicas that are about to sleep
// continue instead.
//
// More than the scale of the app allows are not made.
func (s *Service) Wake(ctx context.Context, app api.AppID, want int) error {
	l, err := s.known(ctx, app)
	if err != nil {
		return err
	}
	defer l.want()()
	ctx, release, err := s.locks.Acquire(ctx, string(app))
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.WakeTimeout,
		api.Errorf(api.Unavailable, "the app did not wake within %s", s.cfg.WakeTimeout))
	defer cancel()
	row, err := s.db.Read().App(ctx, string(app))
	if errors.Is(err, store.ErrNotFound) || err == nil && row.State != store.AppActive {
		return notFound(string(app))
	}
	if err != nil {
		return api.AsError(err)
	}
	if err := s.quotas.CheckActive(ctx, api.Workspace(row.Workspace)); err != nil {
		return err
	}
	if err := s.wake(ctx, &row, want); err != nil {
		return api.AsError(err)
	}
	return nil
}

// wake makes replicas of the live deployment ready. The lock is held.
func (s *Service) wake(ctx context.Context, row *store.App, want int) error {
	set, err := settingsOf(row)
	if err != nil {
		return err
	}
	switch {
	case row.Deployment == "":
		return api.Errorf(api.WrongState, "app %s has no live deployment: deploy it first", row.Name)
	case set.Scale.Max == 0:
		return api.Errorf(api.WrongState, "app %s is stopped: set scale.max above 0", row.Name)
	}
	d, err := s.db.Read().Deployment(ctx, row.Deployment)
	if err != nil {
		return err
	}
	made, err := decode(&d)
	if err != nil || !made.hasProgram() {
		return err
	}
	all, err := s.replicasOf(ctx, row)
	if err != nil {
		return err
	}
	ready := 0
	for _, r := range all {
		if r.State == store.ReplicaReady {
			ready++
		}
	}
	want = min(max(want, 1), set.Scale.Max)
	if ready < want {
		if wait := s.backoff(s.of(row)); wait > 0 {
			return api.Errorf(api.Unavailable, "the app crashed and is started again in %s: %s",
				wait.Round(time.Second), row.Error)
		}
	}
	for i := range all {
		if r := &all[i]; ready < want && (r.State == store.ReplicaAsleep || r.State == store.ReplicaSleeping) {
			if err := s.wakeReplica(ctx, row, &made, r); err != nil {
				s.log.Warn("a replica could not be woken; another is made", "app", row.Name, "err", err)
				if err := s.removeReplica(ctx, row, r); err != nil {
					return err
				}
				continue
			}
			ready++
		}
	}
	for ; ready < want; ready++ {
		if err := s.addReplica(ctx, row, &d, &made); err != nil {
			return err
		}
	}
	return nil
}

// replicasOf reads the replicas of the live deployment.
func (s *Service) replicasOf(ctx context.Context, row *store.App) ([]store.Replica, error) {
	all, err := s.db.Read().Replicas(ctx, row.ID)
	out := all[:0]
	for _, r := range all {
		if r.Deployment == row.Deployment {
			out = append(out, r)
		}
	}
	return out, err
}

// setReplica writes the state of a replica.
func (s *Service) setReplica(ctx context.Context, row *store.App, r *store.Replica, to string) error {
	was := r.State
	r.State, r.Changed = to, store.Micros(time.Now())
	err := s.db.Write(ctx, "app replica "+to, func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateReplica(ctx, r, was)
	})
	if err != nil {
		r.State = was
		return err
	}
	s.changed(ctx, row, nil)
	return nil
}

// wakeReplica makes a replica that sleeps ready.
func (s *Service) wakeReplica(ctx context.Context, row *store.App, made *deployed, r *store.Replica) error {
	box, err := s.boxes.Get(ctx, as(row), api.SandboxID(r.Sandbox))
	if err != nil {
		return err
	}
	if box.Status != api.Running {
		if box, err = s.boxes.Wake(ctx, as(row), box.ID); err != nil {
			return err
		}
		if box.BootMode == bootCold {
			return errors.New("its machine was booted: its program does not run")
		}
	}
	if err := s.welcome(ctx, row, made, r); err != nil {
		return err
	}
	return s.setReplica(ctx, row, r, store.ReplicaReady)
}

// bootCold is the boot mode of a machine without the memory that it had.
const bootCold = "cold"

// welcome tells the program of a replica that it was restored, and checks that its port accepts connections.
func (s *Service) welcome(ctx context.Context, row *store.App, made *deployed, r *store.Replica) error {
	g, _, err := s.boxes.GuestAndSandbox(ctx, as(row), api.SandboxID(r.Sandbox))
	if err != nil {
		return err
	}
	if err := program.Restored(ctx, g, made.port(), made.set.RestoreHook); err != nil {
		s.log.Warn("the hook of an app failed after a restore", "app", row.Name, "err", err)
	}
	return program.Await(ctx, g, made.port(), api.AppHealth{}, s.cfg.StartTimeout, nil)
}

// addReplica makes a replica of the live deployment. The lock is held.
func (s *Service) addReplica(ctx context.Context, row *store.App, d *store.Deployment, made *deployed) error {
	r, done, err := s.newReplica(ctx, row, d)
	if err != nil {
		return err
	}
	defer done()
	if err := s.restore(ctx, row, d, made, r); err != nil {
		final, cancel := detached(ctx)
		defer cancel()
		return errors.Join(err, s.removeReplica(final, row, r))
	}
	return s.setReplica(ctx, row, r, store.ReplicaReady)
}

// restore makes the machine of a replica from the capture of the running program.
func (s *Service) restore(
	ctx context.Context,
	row *store.App,
	d *store.Deployment,
	made *deployed,
	r *store.Replica,
) error {
	box, err := s.boxes.Create(ctx, as(row), api.CreateRequest{
		FromSnapshot: api.SnapshotID(d.Ready), Persistent: true, Network: made.set.Network,
		Metadata: map[string]string{RoleKey: roleReplica, replicaKey: r.ID},
	})
	if err != nil {
		return err
	}
	if err := s.setMachine(ctx, r, box.ID); err != nil {
		return err
	}
	return s.welcome(ctx, row, made, r)
}

// removeReplica removes a replica with its machine.
func (s *Service) removeReplica(ctx context.Context, row *store.App, r *store.Replica) error {
	ids := []api.SandboxID{api.SandboxID(r.Sandbox)}
	if r.Sandbox == "" { // it may have been made
		page, err := s.boxes.List(ctx, as(row), api.SandboxFilter{Metadata: map[string]string{replicaKey: r.ID}})
		if err != nil {
			return err
		}
		ids = ids[:0]
		for _, box := range page.Sandboxes {
			ids = append(ids, box.ID)
		}
	}
	for _, id := range ids {
		if err := s.boxes.Delete(ctx, as(row), id); err != nil && !ended(err) {
			return err
		}
	}
	err := s.db.Write(ctx, "app replica removed", func(ctx context.Context, tx *store.Tx) error {
		return tx.DeleteReplica(ctx, r.ID)
	})
	if err == nil {
		l := s.of(row)
		l.mu.Lock()
		delete(l.offsets, r.ID)
		l.mu.Unlock()
		s.changed(ctx, row, nil)
	}
	return err
}

// ended reports whether an error says that a sandbox has ended or never was.
func ended(err error) bool {
	code := api.CodeOf(err)
	return code == api.NotFound || code == api.Gone
}

// sleep lets replicas of an app sleep, unless requests come meanwhile. The lock is held.
func (s *Service) sleep(ctx context.Context, row *store.App, all []store.Replica) error {
	l := s.of(row)
	sleeping, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l.setStay(cancel)
	defer l.setStay(nil)
	for i := range all {
		if err := s.setReplica(ctx, row, &all[i], store.ReplicaSleeping); err != nil {
			return err
		}
	}
	if l.isWanted() || s.requests().InFlight(api.AppID(row.ID)) > 0 { // it came before the edge saw that they sleep
		for i := range all {
			if err := s.setReplica(ctx, row, &all[i], store.ReplicaReady); err != nil {
				return err
			}
		}
		return nil
	}
	for i := range all {
		_, err := s.boxes.Hibernate(sleeping, as(row), api.SandboxID(all[i].Sandbox))
		if errors.Is(context.Cause(sleeping), errWanted) { // some may sleep, the others run
			return s.settle(ctx, row)
		}
		if err != nil {
			return err
		}
		if err := s.setReplica(ctx, row, &all[i], store.ReplicaAsleep); err != nil {
			return err
		}
	}
	l.mu.Lock()
	l.sleeps++
	l.mu.Unlock()
	return nil
}

// setStay sets what stayAwake calls.
func (l *live) setStay(f context.CancelCauseFunc) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stay = f
}

// crashed removes a replica whose program or machine has ended. Another one takes its place after a while.
func (s *Service) crashed(ctx context.Context, app, replica, why string) error {
	ctx, release, err := s.locks.Acquire(ctx, app)
	if err != nil {
		return err
	}
	defer release()
	row, err := s.db.Read().App(ctx, app)
	if errors.Is(err, store.ErrNotFound) || err == nil && row.State != store.AppActive {
		return nil
	}
	if err != nil {
		return err
	}
	all, err := s.db.Read().Replicas(ctx, app)
	if err != nil {
		return err
	}
	for i := range all {
		if all[i].ID == replica && all[i].State == store.ReplicaReady {
			return s.replace(ctx, &row, &all[i], why)
		}
	}
	return nil
}

// replace removes a replica that crashed and says why. The lock is held.
func (s *Service) replace(ctx context.Context, row *store.App, r *store.Replica, why string) error {
	l := s.of(row)
	n := l.crash()
	s.print(l, applog.Error, r.Sandbox, why)
	row.Error = fmt.Sprintf("%s (%d times lately)", why, n)
	if n == 1 {
		row.Error = why
	}
	err := s.db.Write(ctx, "app crash", func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateApp(ctx, row, store.AppActive, "error")
	})
	return errors.Join(err, s.removeReplica(ctx, row, r))
}

// Bounds of the output of an app's programs.
const (
	keptOutput = 10_000 // lines
	outputRate = 200    // lines per second
)

// print adds a line to the output of an app, if that is followed.
func (s *Service) print(l *live, level, sandbox, text string) {
	l.mu.Lock()
	out := l.output
	l.mu.Unlock()
	if out != nil {
		out.Append(level, sandbox, text)
	}
}

// follow reads the output of a replica's program until the replica is no longer ready. It returns at once if another
// call does so.
func (s *Service) follow(ctx context.Context, row *store.App, r store.Replica) error {
	l := s.of(row)
	l.mu.Lock()
	if l.followed[r.ID] {
		l.mu.Unlock()
		return nil
	}
	l.followed[r.ID] = true
	from, known := l.offsets[r.ID]
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.followed, r.ID)
		if _, there := l.offsets[r.ID]; there || known {
			l.offsets[r.ID] = from
		}
	}()
	if !known {
		from = program.FromNow
	}
	if err := s.openOutput(ctx, row, l); err != nil {
		return err
	}
	for {
		box, err := s.boxes.Get(ctx, l.as, api.SandboxID(r.Sandbox))
		if err != nil || box.Status != api.Running || !s.isServing(ctx, &r) {
			return nil // what became of it is settled elsewhere
		}
		g, _, err := s.boxes.GuestAndSandbox(ctx, l.as, box.ID)
		if err != nil {
			return err
		}
		exit, err := program.Lines(ctx, g, program.Ref, &from, func(stream guestapi.Stream, text string) {
			level := applog.Info
			if stream == guestapi.StreamStderr {
				level = applog.Warn
			}
			s.print(l, level, r.Sandbox, text)
		})
		switch {
		case err == nil:
			return s.crashed(ctx, row.ID, r.ID, program.Exited(exit).Message)
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, guestapi.ErrNotFound):
			return s.crashed(ctx, row.ID, r.ID, "the start command has ended")
		}
		select { // the channel to the guest was lost
		case <-ctx.Done():
			return nil
		case <-time.After(followPause):
		}
	}
}

// followPause is the time until a guest whose channel was lost is tried again.
const followPause = 200 * time.Millisecond

// isServing reports whether a replica is still ready, or drains.
func (s *Service) isServing(ctx context.Context, r *store.Replica) bool {
	all, err := s.db.Read().Replicas(ctx, r.App)
	for _, now := range all {
		if now.ID == r.ID {
			return now.State == store.ReplicaReady || now.State == store.ReplicaDraining
		}
	}
	return err != nil
}

// openOutput opens the log of what the programs of an app print.
func (s *Service) openOutput(ctx context.Context, row *store.App, l *live) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.output != nil {
		return nil
	}
	out, err := s.logs.Open(ctx, row.ID, applog.Options{Keep: keptOutput, Rate: outputRate})
	l.output = out
	return err
}

// closeOutput closes the log of what the programs of an app print, unless it is used.
func (s *Service) closeOutput(ctx context.Context, l *live, used bool) error {
	l.mu.Lock()
	out := l.output
	if used || len(l.followed) > 0 {
		out = nil
	} else {
		l.output = nil
	}
	l.mu.Unlock()
	if out == nil {
		return nil
	}
	return out.Close(ctx)
}
