package backup

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/restore"
	"github.com/pandastack/pandastack/internal/control/database/wal"
)

const (
	// readyFirst and readyMost bound the time between looks at a server that recovers. Every look makes a process in
	// its machine, which takes from the recovery: it is a tenth of the time that the recovery has taken.
	readyFirst = 50 * time.Millisecond
	readyMost  = time.Second
	// settleLimit bounds the wait for the log of a server that responds to get into the archive.
	settleLimit = 2 * time.Minute
)

// Server is a server whose data directory can be replaced.
type Server interface {
	// Replace stops the server, empties its data directory, calls write with a sink for the new content, makes that
	// durable and starts the server on it.
	Replace(ctx context.Context, write func(restore.Sink) error) error
	// Dial connects to the server's socket.
	Dial(ctx context.Context) (net.Conn, error)
	// Check returns an error if the server does not run any more, with the end of its log.
	Check(ctx context.Context) error
}

// RestoreRequest says what to restore and where to.
type RestoreRequest struct {
	From   string // database
	Target restore.Target
	Into   Server
	// User and Password are as in Primary.
	User, Password string
}

// Restored is what a restore has made.
type Restored struct {
	Base     string       `json:"base"` // the base backup that it began with
	Stop     wal.LSN      `json:"stop"` // the position before which the recovery ended; 0: the end of the log
	End      wal.LSN      `json:"end"`  // of the log that was used
	Timeline wal.Timeline `json:"timeline"`
	Bytes    int64        `json:"bytes"`
	Took     time.Duration
}

// Restore replaces the content of a server by a moment of a database.
//
// It returns when the server has finished its recovery and takes writes. Errors about the target wrap those of package
// restore, and come before anything is written.
func (k *Keeper) Restore(ctx context.Context, req RestoreRequest) (Restored, error) {
	plan, err := k.Plan(ctx, req.From, req.Target)
	if err != nil {
		return Restored{}, err
	}
	return k.restorePlan(ctx, plan, req)
}

func (k *Keeper) restorePlan(ctx context.Context, plan *restore.Plan, req RestoreRequest) (Restored, error) {
	began := k.cfg.Now()
	err := req.Into.Replace(ctx, func(sink restore.Sink) error {
		return plan.Write(ctx, sink, restore.Options{})
	})
	if err != nil {
		return Restored{}, fmt.Errorf("restore %s: %w", req.From, err)
	}
	into := Primary{Dial: req.Into.Dial, User: req.User, Password: req.Password}
	if err := waitFor(ctx, req.Into, into, promoted); err != nil {
		return Restored{}, fmt.Errorf("restore %s: %w", req.From, err)
	}
	return Restored{
		Base: plan.Base.ID, Stop: plan.Stop, End: plan.End, Timeline: plan.Timeline(), Bytes: plan.Bytes(),
		Took: k.cfg.Now().Sub(began),
	}, nil
}

// Plan brings all of a database's log that this host can have into the archive, and resolves a target.
func (k *Keeper) Plan(ctx context.Context, id string, target restore.Target) (*restore.Plan, error) {
	covered, err := k.settle(ctx, id)
	if err != nil {
		return nil, err
	}
	if covered.After(target.CoveredUntil) {
		target.CoveredUntil = covered
	}
	a, err := k.archive(ctx, id)
	if err != nil {
		return nil, err
	}
	return restore.Find(ctx, a, target)
}

// CompleteRequest says which standby lacks a part of the log.
type CompleteRequest struct {
	Database string
	From     Position // the end of the log that it has
	Into     Standby
}

// Standby is a server to whose data directory files can be added.
type Standby interface {
	// Amend stops the server, calls write with a sink for files that are added to its data directory or that replace
	// others of it, makes that durable and starts the server.
	Amend(ctx context.Context, write func(restore.Sink) error) error
	// Dial and Check are as of a Server.
	Dial(ctx context.Context) (net.Conn, error)
	Check(ctx context.Context) error
}

// Complete gives a standby all of a database's log that this host can have, and returns its end: From if there is no
// more. The standby has to be able to accept connections; it does again when it has applied the log or a part of it.
func (k *Keeper) Complete(ctx context.Context, req CompleteRequest) (Position, error) {
	if _, err := k.settle(ctx, req.Database); err != nil {
		return 0, err
	}
	a, err := k.archive(ctx, req.Database)
	if err != nil {
		return 0, err
	}
	log, err := restore.FindLog(ctx, a, req.From)
	if err != nil {
		return 0, fmt.Errorf("complete the log of a standby of %s: %w", req.Database, err)
	}
	if log.End <= req.From {
		return req.From, nil
	}
	err = req.Into.Amend(ctx, func(sink restore.Sink) error { return log.Write(ctx, sink) })
	if err != nil {
		return 0, fmt.Errorf("complete the log of a standby of %s: %w", req.Database, err)
	}
	return log.End, waitFor(ctx, req.Into, Primary{Dial: req.Into.Dial}, accepting)
}

// accepting returns nil if a server accepts connections.
func accepting(ctx context.Context, p Primary) error {
	conn, err := p.connect(ctx, "postgres")
	if err == nil {
		conn.close(ctx)
	}
	return err
}

// settle brings what a server that responds has confirmed, or what the spool of one that is gone has, into the archive.
// It returns a time up to which nothing is missing, if it knows one.
func (k *Keeper) settle(ctx context.Context, id string) (time.Time, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, settleLimit, errors.New("it took too long"))
	defer cancel()
	m := k.member(id)
	if m == nil {
		return k.drain(ctx, id)
	}
	covered, err := m.flush(ctx)
	if err == nil {
		return covered, nil
	}
	// The server does not respond, or does not give its log: what was confirmed in synchronous mode is in the spool.
	status := m.relay.Status()
	if err := m.relay.Flush(ctx, status.Flushed); err != nil {
		return time.Time{}, err
	}
	return status.Covered, nil
}

// drain brings what the spool of a database without a relay has into the archive.
func (k *Keeper) drain(ctx context.Context, id string) (time.Time, error) {
	op, release, err := k.locks.Acquire(ctx, id)
	if err != nil {
		return time.Time{}, err
	}
	defer release()
	if k.member(id) != nil {
		return time.Time{}, fmt.Errorf("the relay of %s has just begun; try again", id)
	}
	if _, err := os.Stat(k.spool(id)); errors.Is(err, os.ErrNotExist) {
		return time.Time{}, nil
	}
	m, err := k.newMember(ctx, Primary{Database: id, Dial: func(context.Context) (net.Conn, error) {
		return nil, errors.New("the spool is being emptied")
	}})
	if err != nil {
		return time.Time{}, err
	}
	m.run(k.cfg.Log)
	defer m.end()
	if err := m.relay.Flush(op, 0); err != nil {
		return time.Time{}, fmt.Errorf("bring the spool of %s to the archive: %w", id, err)
	}
	return time.Time{}, nil
}

// checker says whether a server has ended.
type checker interface {
	Check(ctx context.Context) error
}

// waitFor waits until check has no error.
func waitFor(ctx context.Context, server checker, p Primary, check func(context.Context, Primary) error) error {
	began := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for {
		err := check(ctx, p)
		if err == nil {
			return nil
		}
		if failed := server.Check(ctx); failed != nil {
			return fmt.Errorf("the restored server has ended: %w", failed)
		}
		timer.Reset(min(max(time.Since(began)/10, readyFirst), readyMost))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return fmt.Errorf("the restored server is not ready: %w: %w", context.Cause(ctx), err)
		}
	}
}

var errRecovering = errors.New("it is in recovery")

// promoted returns nil if a server takes writes.
func promoted(ctx context.Context, p Primary) error {
	conn, err := p.connect(ctx, "postgres")
	if err != nil {
		return err
	}
	defer conn.close(ctx)
	var recovering bool
	if err := conn.QueryRow(ctx, "select pg_is_in_recovery()").Scan(&recovering); err != nil {
		return err
	}
	if recovering {
		return errRecovering
	}
	return nil
}
