package walrelay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/archive"
	"github.com/pandastack/pandastack/internal/control/database/replication"
	"github.com/pandastack/pandastack/internal/control/database/wal"
)

const (
	maxRetry = 30 * time.Second
	// maxCoverage bounds the number of remembered times.
	maxCoverage = 256
)

var errSpoolFull = errors.New("the spool is full, for the archive does not take the log")

// receiveLoop connects and receives until ctx ends or the log has diverged.
func (r *Relay) receiveLoop(ctx context.Context) {
	wait := r.cfg.Retry
	for ctx.Err() == nil {
		began := r.Status().Received
		err := r.connect(ctx)
		if ctx.Err() != nil {
			return
		}
		r.mu.Lock()
		r.active = false
		r.mu.Unlock()
		if r.Status().Received != began {
			wait = r.cfg.Retry
		}
		state := Connecting
		switch {
		case errors.Is(err, errDiverged):
			state = Diverged
		case errors.Is(err, errSpoolFull):
			state = SpoolFull
		}
		r.update(func(s *Status) {
			if s.State != Fenced {
				s.State, s.ConnectError = state, err.Error()
			}
		})
		r.cfg.Log.Warn("WAL relay disconnected", "slot", r.cfg.Slot, "state", string(state), "err", err)
		switch state {
		case Diverged:
			<-ctx.Done()
			return
		case SpoolFull:
			r.waitForRoom(ctx)
		default:
			if !pause(ctx, wait) {
				return
			}
			wait = min(2*wait, maxRetry)
		}
	}
}

// waitForRoom waits until the spool has room for a segment.
func (r *Relay) waitForRoom(ctx context.Context) {
	for {
		r.mu.Lock()
		changed := r.changed
		r.mu.Unlock()
		if ok, err := r.hasRoom(); ok || err != nil {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// hasRoom reports whether the spool has room for a segment.
func (r *Relay) hasRoom() (bool, error) {
	all, err := r.spool.files()
	if err != nil {
		return false, err
	}
	var used int64
	for _, f := range all {
		used += f.bytes
	}
	r.mu.Lock()
	r.status.SpoolBytes = used
	r.mu.Unlock()
	return used+wal.SegmentBytes <= r.cfg.SpoolBytes, nil
}

// connect connects once, and receives until that ends.
func (r *Relay) connect(ctx context.Context) error {
	conn, err := replication.Dial(ctx, r.cfg.Server)
	if err != nil {
		return err
	}
	defer conn.Close()
	system, err := conn.Identify()
	if err != nil {
		return err
	}
	if err := conn.CheckSegments(); err != nil {
		return err
	}
	if known := r.spool.saved().System; known != 0 && known != system.ID {
		return fmt.Errorf("the server is the cluster %d, not %d: %w", system.ID, known, errDiverged)
	}
	slot, err := r.prepareSlot(conn)
	if err != nil {
		return err
	}
	for {
		at, err := r.findStart(ctx, conn, system, slot)
		if err != nil {
			return err
		}
		stream, err := conn.Start(r.cfg.Slot, at.at, at.timeline, r.cfg.Idle)
		if err == nil {
			r.update(func(s *Status) { s.stream(at) })
			err = r.receive(stream, at)
		}
		end, ok := errors.AsType[*replication.TimelineEnd](err)
		if !ok {
			err = errors.Join(err, r.spool.close())
			if replication.IsMissing(err) {
				err = errors.Join(err, r.skip(at, slot))
			}
			return err
		}
		if err := r.endTimeline(conn, end); err != nil {
			return err
		}
		if system, err = conn.Identify(); err != nil {
			return err
		}
	}
}

// stream enters the state Streaming. On another timeline, positions may be lower than before.
func (s *Status) stream(at position) {
	if s.Timeline != at.timeline {
		s.Timeline, s.Received, s.Flushed, s.Uploaded = at.timeline, at.at, at.at, min(s.Uploaded, at.at)
	}
	if s.State != Fenced {
		s.State, s.ConnectError = Streaming, ""
	}
}

// prepareSlot makes the slot if it is missing or lost.
func (r *Relay) prepareSlot(conn *replication.Conn) (replication.Slot, error) {
	slot, err := conn.Slot(r.cfg.Slot)
	if err != nil {
		return slot, err
	}
	if slot.Lost() || slot.Exists && r.useless {
		r.cfg.Log.Warn("replication slot lost; making a new one", "slot", r.cfg.Slot)
		if err := conn.DropSlot(r.cfg.Slot); err != nil {
			return slot, err
		}
		slot.Exists = false
	}
	if slot.Exists {
		return slot, nil
	}
	if err := conn.CreateSlot(r.cfg.Slot); err != nil {
		return slot, err
	}
	r.useless = false
	slot, err = conn.Slot(r.cfg.Slot)
	if err == nil && (!slot.Exists || slot.Lost()) {
		err = errors.New("the server has lost the replication slot that it just made")
	}
	return slot, err
}

// findStart returns where to start: where the spool ends, else where the archive does, else where the slot does. It is
// the beginning of a segment.
func (r *Relay) findStart(ctx context.Context, conn *replication.Conn, system replication.System,
	slot replication.Slot) (position, error) {
	path, err := r.fetchPath(conn, system.Timeline)
	if err != nil {
		return position{}, err
	}
	at, err := r.spool.position()
	if err != nil {
		return position{}, err
	}
	if at.at == 0 {
		if at, err = r.startFromArchive(ctx); err != nil {
			return position{}, err
		}
	}
	if at.at == 0 {
		start := wal.SegmentAt(slot.Timeline, slot.Restart).Start()
		at = position{slot.Timeline, start, start}
	}
	if r.spool.saved().System == 0 {
		st := state{System: system.ID, Timeline: at.timeline, Next: at.at}
		if err := r.spool.saveState(st); err != nil {
			return position{}, err
		}
	}
	end, ok := path.End(at.timeline)
	switch {
	case !ok:
		return position{}, fmt.Errorf("the server is on timeline %d, which does not descend from timeline %d: %w",
			system.Timeline, at.timeline, errDiverged)
	case end == 0 && system.Flushed < at.verified:
		return position{}, fmt.Errorf("the server has the log up to %v and had it up to %v: %w", system.Flushed,
			at.verified, errDiverged)
	case end == 0 || at.at < wal.SegmentAt(at.timeline, end).Start():
		return at, nil
	}
	// The first segment of the next timeline repeats what its parent has of it.
	for _, one := range path {
		if begin, _ := path.Begin(one.Timeline); one.Timeline > at.timeline {
			start := wal.SegmentAt(one.Timeline, begin).Start()
			if one.End == 0 || start < wal.SegmentAt(one.Timeline, one.End).Start() {
				return position{one.Timeline, start, start}, nil
			}
		}
	}
	return position{}, fmt.Errorf("the history of timeline %d has no end: %w", system.Timeline, errDiverged)
}

// startFromArchive continues after the complete segments of the archive, for a host that has no spool.
func (r *Relay) startFromArchive(ctx context.Context) (position, error) {
	c, err := r.cfg.Archive.Catalog(ctx)
	if err != nil {
		return position{}, err
	}
	var last wal.Segment
	for s, e := range c.Segments {
		if e.Partial() && s.Number > 0 { // it is received again
			s.Number--
		}
		if s.Timeline > last.Timeline || s.Timeline == last.Timeline && s.Number > last.Number {
			last = s
		}
	}
	if last.Timeline == 0 {
		return position{}, nil
	}
	return position{last.Timeline, last.End(), last.End()}, nil
}

// fetchPath returns the path of the server's timeline, and keeps its history.
func (r *Relay) fetchPath(conn *replication.Conn, t wal.Timeline) (wal.Path, error) {
	data, err := os.ReadFile(r.spool.path(wal.HistoryFile(t)))
	if err != nil && t > 1 {
		if data, err = conn.History(t); err != nil {
			return nil, err
		}
		if err := r.spool.saveHistory(t, data); err != nil {
			return nil, err
		}
		r.nudge()
	}
	return wal.ParseHistory(t, data)
}

// skip gives up the log between a position and what the server has.
func (r *Relay) skip(at position, slot replication.Slot) error {
	start := wal.SegmentAt(slot.Timeline, slot.Restart).Start()
	if start <= at.at {
		r.useless = true // the slot keeps the position, and the server does not have it
		return nil
	}
	hole := archive.Hole{Timeline: at.timeline, From: at.verified, To: start}
	r.cfg.Log.Error("the server has given up a part of the log; a new base backup is necessary", "slot", r.cfg.Slot,
		"from", hole.From.String(), "to", hole.To.String())
	if err := r.spool.begin(slot.Timeline, start); err != nil {
		return err
	}
	r.update(func(s *Status) { s.Hole = &hole })
	return r.spool.close()
}

// endTimeline prepares for the next timeline. What was received of the last stays in the spool.
func (r *Relay) endTimeline(conn *replication.Conn, end *replication.TimelineEnd) error {
	if err := errors.Join(r.spool.sync(), r.spool.close()); err != nil {
		return err
	}
	r.mu.Lock()
	r.active = false // the uploader takes it for complete
	r.mu.Unlock()
	if _, err := r.fetchPath(conn, end.Next); err != nil {
		return err
	}
	return r.spool.begin(end.Next, wal.SegmentAt(end.Next, end.At).Start())
}

// observe remembers the end of the server's log, and that it was this or less at a time, unless that is zero.
func (r *Relay) observe(end wal.LSN, at time.Time) {
	received := r.spool.received()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.Server = end
	if end > received || at.IsZero() {
		return
	}
	if last := len(r.cover) - 1; last >= 0 && r.cover[last].at == received {
		r.cover[last].time = at
		return
	}
	if len(r.cover) == maxCoverage {
		r.cover = append(r.cover[:0], r.cover[maxCoverage/2:]...)
	}
	r.cover = append(r.cover, coverage{received, at})
}

// covered returns the newest time at which the server's log ended at a position or before.
func (r *Relay) covered(at wal.LSN) archive.Coverage {
	r.mu.Lock()
	defer r.mu.Unlock()
	var c archive.Coverage
	for _, one := range r.cover {
		if one.at <= at {
			c.At = one.time
		}
	}
	return c
}

// take writes bytes to the spool.
func (r *Relay) take(data []byte) error {
	for len(data) > 0 {
		n, err := r.spool.write(data)
		if err != nil {
			return err
		}
		data = data[n:]
		if !r.spool.full() {
			continue
		}
		if err := r.endSegment(); err != nil {
			return err
		}
	}
	return nil
}

// beginSegment begins a segment if the spool has room.
func (r *Relay) beginSegment(t wal.Timeline, at wal.LSN) error {
	if _, err := os.Stat(r.spool.path(file{wal.SegmentAt(t, at), true, 0}.name())); err != nil {
		if ok, err := r.hasRoom(); err != nil || !ok {
			return errors.Join(err, errSpoolFull)
		}
	}
	if err := r.spool.begin(t, at); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open, r.active = r.spool.segment, true
	return nil
}

// endSegment completes the current segment and begins the next.
func (r *Relay) endSegment() error {
	if err := r.spool.sync(); err != nil {
		return err
	}
	if err := r.spool.complete(); err != nil {
		return err
	}
	end := r.spool.segment.End()
	r.update(func(s *Status) { s.Flushed, s.Received = max(s.Flushed, end), max(s.Received, end) })
	r.nudge()
	return r.beginSegment(r.spool.segment.Timeline, end)
}
