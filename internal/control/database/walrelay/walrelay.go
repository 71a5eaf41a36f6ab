// Package walrelay receives the write-ahead log of a database and brings it to the archive.
//
// A Relay is a streaming-replication client with a physical slot. It writes the log to segment files in a spool
// directory on this host, and acknowledges what is durable there. So with the relay's application name in
// synchronous_standby_names, and Config.Synchronous, a commit returns when it is on this host's disk. Complete segments
// go to the archive, and the incomplete one every few seconds if it has changed.
//
// # Guarantees
//
// What was acknowledged is in the spool or in the archive. A kill at any moment leaves a spool from which the next
// Relay continues: it streams the last segment again from its beginning and compares the records that it has with those
// of the server. If they differ, or the server has less than it had, the relay stops with the state Diverged and keeps
// everything.
//
// If the archive is unreachable, the spool grows to its limit. Then the relay disconnects, with the state SpoolFull,
// until there is room; the server keeps the log for the slot, up to its max_slot_wal_keep_size. If the server has given
// up the log that the relay needs, the relay makes a new slot, continues from there, and reports the hole: the database
// needs a new base backup.
//
// # Concurrency
//
// A spool has one Relay, and a Relay is run once. Status and Flush may be called at any time.
package walrelay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/archive"
	"github.com/pandastack/pandastack/internal/control/database/replication"
	"github.com/pandastack/pandastack/internal/control/database/wal"
)

// MinSpool is the smallest limit of a spool: two segments.
const MinSpool = 2 * wal.SegmentBytes

// Server says how to reach a server.
type Server = replication.Config

// CheckSlotName returns an error unless a name can be that of a slot.
func CheckSlotName(name string) error { return replication.CheckSlotName(name) }

// Config of a relay. Server, Archive, Slot and Dir are required.
type Config struct {
	Server  Server // Application defaults to the name of the slot
	Archive *archive.Archive
	Slot    string // name of the physical slot, made if it does not exist
	Dir     string // directory of the spool
	// Synchronous makes durable at once what arrives, for a server whose commits wait for the relay. Otherwise that
	// happens 200 ms later, which takes less from the disk.
	Synchronous bool
	// SpoolBytes is the limit of the spool; default 1 GiB, MinSpool at least.
	SpoolBytes int64
	// Partial is the time after which an incomplete segment is brought to the archive if it has changed; default 5 s.
	Partial time.Duration
	// Idle is the time without a sign of life after which the connection is given up; default 2 min. It must be longer
	// than half of the server's wal_sender_timeout.
	Idle time.Duration
	// Retry is the time before the first attempt after a failure; it doubles up to 30 s. Default 500 ms.
	Retry time.Duration
	// StopLimit bounds the last upload when Run ends; default 10 s.
	StopLimit time.Duration
	Log       *slog.Logger
	Now       func() time.Time // default time.Now
}

func (c *Config) fill() error {
	if c.Archive == nil || c.Dir == "" || c.Server.Dial == nil || c.Log == nil {
		return errors.New("relay: want a server, an archive, a spool directory and a log")
	}
	if err := replication.CheckSlotName(c.Slot); err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	if c.SpoolBytes == 0 {
		c.SpoolBytes = 1 << 30
	}
	if c.SpoolBytes < MinSpool {
		return fmt.Errorf("relay: a spool of %d bytes is too small; want %d or more", c.SpoolBytes, int64(MinSpool))
	}
	if c.Server.Application == "" {
		c.Server.Application = c.Slot
	}
	for _, d := range []struct {
		value    *time.Duration
		standard time.Duration
	}{{&c.Partial, 5 * time.Second}, {&c.Idle, 2 * time.Minute}, {&c.Retry, 500 * time.Millisecond},
		{&c.StopLimit, 10 * time.Second}} {
		if *d.value <= 0 {
			*d.value = d.standard
		}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return nil
}

// State is what a relay is doing.
type State string

// States of a relay.
const (
	Connecting State = "connecting" // or waiting for the next attempt
	Streaming  State = "streaming"
	SpoolFull  State = "spool_full" // the archive does not take the log; nothing is acknowledged
	Diverged   State = "diverged"   // the server has another log than it had; the relay has stopped
	Fenced     State = "fenced"     // another node has adopted the database; the relay has stopped
	Stopped    State = "stopped"
)

// Status describes a relay.
type Status struct {
	State    State        `json:"state"`
	Timeline wal.Timeline `json:"timeline"`
	Server   wal.LSN      `json:"server"`   // end of the log on the server's disk, as the server said last
	Received wal.LSN      `json:"received"` // end of the log in the spool
	Flushed  wal.LSN      `json:"flushed"`  // end of the log that survives a crash of this host
	Uploaded wal.LSN      `json:"uploaded"` // end of the log in the archive
	// Covered is a time of the server up to which every confirmed transaction is durable in the spool.
	Covered    time.Time `json:"covered,omitzero"`
	SpoolBytes int64     `json:"spool_bytes"`
	// Hole is the latest part of the log that was lost, because the server had given it up. The database needs a new
	// base backup that begins after it.
	Hole *archive.Hole `json:"hole,omitempty"`
	// ConnectError and UploadError are empty after a success.
	ConnectError string `json:"connect_error,omitempty"`
	UploadError  string `json:"upload_error,omitempty"`
}

// Lag returns the number of bytes that the server has and the spool does not.
func (s Status) Lag() int64 { return max(0, int64(s.Server)-int64(s.Flushed)) }

// UploadLag returns the number of bytes that are in the spool and not in the archive.
func (s Status) UploadLag() int64 { return max(0, int64(s.Flushed)-int64(s.Uploaded)) }

// Relay is the relay of one database.
type Relay struct {
	cfg   Config
	spool *spool // of the goroutine that receives, but for files that are complete
	// useless is set if the slot does not keep what it should. It belongs to the goroutine that receives.
	useless bool

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when status changes; guarded by mu
	status  Status        // guarded by mu
	open    wal.Segment   // the segment that is being received; guarded by mu
	active  bool          // there is one; guarded by mu
	cover   []coverage    // oldest first; guarded by mu
	urgent  wal.LSN       // a Flush waits until this is in the archive; guarded by mu

	wake chan struct{} // the uploader has something to do; capacity 1
}

// coverage is an end of the server's log and the time at which it was that.
type coverage struct {
	at   wal.LSN
	time time.Time
}

// New makes a relay and opens its spool.
func New(cfg Config) (*Relay, error) {
	return newRelay(cfg, func(string) error { return nil })
}

func newRelay(cfg Config, step func(string) error) (*Relay, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	s, err := openSpool(cfg.Dir, step)
	if err != nil {
		return nil, err
	}
	r := &Relay{cfg: cfg, spool: s, changed: make(chan struct{}), wake: make(chan struct{}, 1)}
	at, err := s.position()
	if err != nil {
		return nil, err
	}
	r.status = Status{
		State: Connecting, Timeline: at.timeline, Received: at.verified, Flushed: at.verified, Uploaded: s.saved().Next,
	}
	return r, nil
}

// Status returns the state of the relay.
func (r *Relay) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

// update changes the status.
func (r *Relay) update(change func(*Status)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.status)
	close(r.changed)
	r.changed = make(chan struct{})
}

// Flush waits until the log up to a position is in the archive. Position 0 stands for what is in the spool now.
func (r *Relay) Flush(ctx context.Context, at wal.LSN) error {
	r.mu.Lock()
	if at == 0 {
		at = r.status.Flushed
	}
	r.urgent = max(r.urgent, at)
	r.mu.Unlock()
	for {
		r.mu.Lock()
		status, changed := r.status, r.changed
		r.mu.Unlock()
		switch {
		case status.Uploaded >= at:
			return nil
		case status.State == Stopped:
			return fmt.Errorf("the relay has stopped at %v, before %v", status.Uploaded, at)
		case status.State == Fenced:
			return fmt.Errorf("the log up to %v is not in the archive: %w", at, archive.ErrFenced)
		case status.State == Diverged && status.Flushed < at:
			return fmt.Errorf("the relay cannot receive the log up to %v: %s", at, status.ConnectError)
		}
		r.nudge()
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("the log up to %v is not in the archive, which has it up to %v: %w (%s %s)", at,
				status.Uploaded, context.Cause(ctx), status.ConnectError, status.UploadError)
		}
	}
}

// Wait waits until ok accepts the status, and returns that.
func (r *Relay) Wait(ctx context.Context, ok func(Status) bool) (Status, error) {
	for {
		r.mu.Lock()
		status, changed := r.status, r.changed
		r.mu.Unlock()
		if ok(status) {
			return status, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return status, context.Cause(ctx)
		}
	}
}

// nudge wakes the uploader.
func (r *Relay) nudge() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run relays until ctx ends, and returns when everything that it started has ended. Failures are retried and shown in
// the status.
func (r *Relay) Run(ctx context.Context) error {
	var uploads sync.WaitGroup
	uploadCtx, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	ended := make(chan struct{})
	receiving, halt := context.WithCancel(ctx)
	defer halt()
	uploads.Go(func() { r.uploadLoop(uploadCtx, ended, halt) })
	r.receiveLoop(receiving)
	err := r.spool.close()
	// The uploader has StopLimit to bring the log that is in the spool to the archive.
	timer := time.AfterFunc(r.cfg.StopLimit, func() { stop(errStopped) })
	close(ended)
	uploads.Wait()
	timer.Stop()
	r.update(func(s *Status) {
		if s.State != Fenced {
			s.State = Stopped
		}
	})
	return err
}

var errStopped = errors.New("the relay is stopping")

// pause waits, and reports whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
