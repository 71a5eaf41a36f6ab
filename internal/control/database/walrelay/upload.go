package walrelay

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/archive"
	"github.com/pandastack/pandastack/internal/control/database/wal"
)

// uploader brings the spool to the archive. It belongs to one goroutine.
type uploader struct {
	r         *Relay
	partial   map[wal.Segment]int   // bytes of incomplete segments in the archive
	histories map[wal.Timeline]bool // in the archive
}

// uploadLoop uploads until ended is closed and everything is in the archive, or ctx ends. If another node has adopted
// the database, it halts the relay and ends.
func (r *Relay) uploadLoop(ctx context.Context, ended <-chan struct{}, halt func()) {
	u := &uploader{r: r, partial: map[wal.Segment]int{}, histories: map[wal.Timeline]bool{}}
	ticker := time.NewTicker(r.cfg.Partial)
	defer ticker.Stop()
	wait := r.cfg.Retry
	due, last := true, false
	for {
		err := u.pass(ctx, due || last)
		text := ""
		if err != nil {
			text = err.Error()
		}
		if errors.Is(err, archive.ErrFenced) {
			r.cfg.Log.Error("another node has adopted the database of a WAL relay, which stops", "slot", r.cfg.Slot)
			halt()
			r.update(func(s *Status) { s.State, s.UploadError = Fenced, text })
			return
		}
		r.update(func(s *Status) { s.UploadError = text })
		if ctx.Err() != nil || last && err == nil {
			return
		}
		if err != nil {
			r.cfg.Log.Warn("WAL relay cannot upload", "slot", r.cfg.Slot, "err", err)
			pause(ctx, wait)
			wait = min(2*wait, maxRetry)
			due = true
		} else {
			wait, due = r.cfg.Retry, false
		}
		select {
		case <-ended:
			last, ended = true, nil
			continue
		default:
		}
		if err != nil || last {
			continue
		}
		select {
		case <-r.wake:
		case <-ticker.C:
			due = true
		case <-ended:
			last, ended = true, nil
		}
	}
}

// pass uploads what is complete, and the incomplete segment if it is due or a Flush waits for it.
func (u *uploader) pass(ctx context.Context, due bool) error {
	s := u.r.spool
	if due {
		if err := u.r.cfg.Archive.Holds(ctx); err != nil {
			return err
		}
	}
	if err := u.uploadHistories(ctx); err != nil {
		return err
	}
	all, err := s.files()
	if err != nil {
		return err
	}
	reached := s.saved().Next
	for i, f := range all {
		newest := i == len(all)-1
		switch {
		case !f.partial:
			if err = u.complete(ctx, f); err == nil {
				reached = f.segment.End()
			}
		case !newest && u.isOpen(f): // it was completed meanwhile
			u.r.nudge()
			return nil
		case !newest: // its timeline has ended, or the server gave up what follows
			if err = u.upload(ctx, f, true); err == nil {
				err = s.remove(f)
				delete(u.partial, f.segment)
			}
		default:
			err = u.upload(ctx, f, due)
			reached = f.segment.Start() + wal.LSN(u.partial[f.segment])
		}
		if errors.Is(err, fs.ErrNotExist) { // it was completed meanwhile
			u.r.nudge()
			return nil
		}
		if err != nil {
			return err
		}
		u.r.update(func(s *Status) {
			if newest || !f.partial {
				s.Uploaded = reached
			}
		})
	}
	if len(all) == 0 {
		u.r.update(func(s *Status) { s.Uploaded = reached })
	}
	_, err = u.r.hasRoom()
	return err
}

func (u *uploader) uploadHistories(ctx context.Context) error {
	all, err := u.r.spool.histories()
	if err != nil {
		return err
	}
	for _, t := range all {
		if u.histories[t] {
			continue
		}
		data, err := os.ReadFile(u.r.spool.path(wal.HistoryFile(t)))
		if err != nil {
			return err
		}
		if err := u.r.cfg.Archive.PutHistory(ctx, t, data); err != nil {
			return err
		}
		u.histories[t] = true
	}
	return nil
}

// complete uploads a complete segment and removes it from the spool.
func (u *uploader) complete(ctx context.Context, f file) error {
	s, a := u.r.spool, u.r.cfg.Archive
	data, err := s.read(f, wal.SegmentBytes)
	if err != nil {
		return err
	}
	if err := s.step("put-segment"); err != nil {
		return err
	}
	if err := a.PutSegment(ctx, f.segment, data, u.r.covered(f.segment.End())); err != nil {
		return err
	}
	st := s.saved()
	st.Timeline, st.Next = f.segment.Timeline, f.segment.End()
	if err := s.saveState(st); err != nil {
		return err
	}
	if n := u.partial[f.segment]; n > 0 {
		if err := a.RemovePartial(ctx, f.segment, n); err != nil {
			return err
		}
		delete(u.partial, f.segment)
	}
	return s.remove(f)
}

// upload uploads the first bytes of an incomplete segment, if there are more than before.
func (u *uploader) upload(ctx context.Context, f file, due bool) error {
	n, err := u.extent(f)
	if err != nil {
		return err
	}
	before := u.partial[f.segment]
	u.r.mu.Lock()
	urgent := u.r.urgent > f.segment.Start()+wal.LSN(before)
	u.r.mu.Unlock()
	if n <= int64(before) || !due && !urgent {
		return nil
	}
	data, err := u.r.spool.read(f, n)
	if err != nil {
		return err
	}
	if err := u.r.spool.step("put-partial"); err != nil {
		return err
	}
	end := f.segment.Start() + wal.LSN(n)
	if err := u.r.cfg.Archive.PutSegment(ctx, f.segment, data, u.r.covered(end)); err != nil {
		return err
	}
	u.partial[f.segment] = int(n)
	if before == 0 {
		return nil
	}
	return u.r.cfg.Archive.RemovePartial(ctx, f.segment, before)
}

// isOpen reports whether a file is being received.
func (u *uploader) isOpen(f file) bool {
	u.r.mu.Lock()
	defer u.r.mu.Unlock()
	return u.r.active && u.r.open == f.segment
}

// extent returns how many bytes of an incomplete segment to upload: what is durable of the segment that is being
// received, and the records that are whole of others.
func (u *uploader) extent(f file) (int64, error) {
	if u.isOpen(f) {
		return min(int64(u.r.Status().Flushed)-int64(f.segment.Start()), wal.SegmentBytes-1), nil
	}
	end, err := u.r.spool.verify(f)
	return min(int64(end-f.segment.Start()), wal.SegmentBytes-1), err
}
