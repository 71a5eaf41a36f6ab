package walrelay

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/pandastack/pandastack/internal/control/database/wal"
	"github.com/pandastack/pandastack/internal/lib/durable"
)

const (
	partialSuffix = ".partial"
	historySuffix = ".history"
	stateFile     = "state.json"
)

// state is what the spool knows beyond its files.
type state struct {
	System uint64 `json:"system,string"` // identifier of the cluster
	// Next is the position from which the log is needed if the spool has no segment: all before is in the archive.
	Timeline wal.Timeline `json:"timeline"`
	Next     wal.LSN      `json:"next"`
}

// spool keeps segments of the log on this host's disk until they are in the archive: files with the names and the
// content that the server gives them. One goroutine receives, another removes what is in the archive.
type spool struct {
	dir  string
	step func(name string) error // called between the steps of operations; for tests

	mu    sync.Mutex
	state state // guarded by mu

	current  *os.File // the segment that is being received, or nil
	segment  wal.Segment
	length   int64 // of current
	verified int64 // bytes of current that were the server's at the time they were received
	checked  int64 // bytes of current that this stream has sent
	dirty    bool  // current has bytes that were not synced
	suspect  bool  // a sync failed: the kernel may take for written what is not
}

// file is a segment in the spool.
type file struct {
	segment wal.Segment
	partial bool
	bytes   int64
}

func (f file) name() string {
	if f.partial {
		return f.segment.String() + partialSuffix
	}
	return f.segment.String()
}

// openSpool opens a spool, which it makes if it does not exist.
func openSpool(dir string, step func(string) error) (*spool, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	s := &spool{dir: dir, step: step}
	if err := durable.Sweep(dir); err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	if err := durable.ReadJSON(s.path(stateFile), &s.state); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("spool: %w", err)
	}
	return s, nil
}

func (s *spool) path(name string) string { return filepath.Join(s.dir, name) }

// files lists the segments, in the order of the log. Of a segment that has both files, as a kill can leave it, the
// complete one counts.
func (s *spool) files() ([]file, error) {
	list, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	var all []file
	for _, e := range list {
		name, partial := strings.CutSuffix(e.Name(), partialSuffix)
		segment, err := wal.ParseSegment(name)
		if err != nil {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // uploaded meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("spool: %w", err)
		}
		all = append(all, file{segment, partial, info.Size()})
	}
	slices.SortFunc(all, func(x, y file) int {
		return cmp.Or(cmp.Compare(x.segment.Timeline, y.segment.Timeline),
			cmp.Compare(x.segment.Number, y.segment.Number), cmp.Compare(x.name(), y.name()))
	})
	return all, nil
}

// histories lists the timelines whose history files are in the spool.
func (s *spool) histories() ([]wal.Timeline, error) {
	list, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	var all []wal.Timeline
	for _, e := range list {
		text, ok := strings.CutSuffix(e.Name(), historySuffix)
		if t, err := wal.ParseTimeline(text); ok && err == nil {
			all = append(all, t)
		}
	}
	return all, nil
}

// saveHistory keeps a history file.
func (s *spool) saveHistory(t wal.Timeline, data []byte) error {
	if err := s.step("save-history"); err != nil {
		return err
	}
	return durable.WriteFile(s.path(wal.HistoryFile(t)), data, 0o600)
}

// saveState makes the state durable.
func (s *spool) saveState(st state) error {
	if err := s.step("save-state"); err != nil {
		return err
	}
	if err := durable.WriteJSON(s.path(stateFile), st); err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = st
	return nil
}

// saved returns the state.
func (s *spool) saved() state {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// position is where the log continues that the spool has.
type position struct {
	timeline wal.Timeline
	at       wal.LSN // the start of a segment, or 0 if the spool has nothing
	verified wal.LSN // end of the records that are in the last segment as a whole, or at
}

// position finds out where to continue: at the start of the last segment, if that is incomplete. What it has is
// compared with what the server sends then.
func (s *spool) position() (position, error) {
	all, err := s.files()
	if err != nil {
		return position{}, err
	}
	if len(all) == 0 {
		st := s.saved()
		return position{st.Timeline, st.Next, st.Next}, nil
	}
	last := all[len(all)-1]
	if !last.partial {
		return position{last.segment.Timeline, last.segment.End(), last.segment.End()}, nil
	}
	end, err := s.verify(last)
	return position{last.segment.Timeline, last.segment.Start(), end}, err
}

// verify returns the end of the records that a file has as a whole.
func (s *spool) verify(f file) (wal.LSN, error) {
	data, err := s.read(f, f.bytes)
	if err != nil {
		return 0, err
	}
	var scan wal.Scanner
	if err := scan.Scan(f.segment, data, func(wal.Record) error { return nil }); errors.Is(err, wal.ErrCorrupt) {
		return f.segment.Start(), nil
	} else if err != nil {
		return 0, err
	}
	// After a switch of segments, the log ends with the segment, and the file need not have the empty rest.
	return min(max(scan.End(), f.segment.Start()), f.segment.Start()+wal.LSN(len(data))), nil
}

// read returns the first bytes of a segment.
func (s *spool) read(f file, n int64) ([]byte, error) {
	r, err := os.Open(s.path(f.name()))
	if err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	data := make([]byte, min(n, wal.SegmentBytes))
	_, err = io.ReadFull(r, data)
	if err := errors.Join(err, r.Close()); err != nil {
		return nil, fmt.Errorf("spool: %s: %w", f.name(), err)
	}
	return data, nil
}

// begin opens the segment that starts at a position, to receive it from its first byte.
func (s *spool) begin(t wal.Timeline, at wal.LSN) error {
	if err := s.close(); err != nil {
		return err
	}
	if err := s.step("begin-segment"); err != nil {
		return err
	}
	f := file{segment: wal.SegmentAt(t, at), partial: true}
	if at != f.segment.Start() {
		return fmt.Errorf("spool: %v is not the start of a segment", at)
	}
	if err := s.rewrite(f); err != nil {
		return err
	}
	opened, err := os.OpenFile(s.path(f.name()), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	info, err := opened.Stat()
	if err == nil {
		err = durable.SyncDir(s.dir)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("spool: %w", err), opened.Close())
	}
	f.bytes = info.Size()
	end, err := s.verify(f)
	if err != nil {
		return errors.Join(err, opened.Close())
	}
	s.current, s.segment, s.length = opened, f.segment, info.Size()
	s.verified, s.checked, s.dirty = int64(end-f.segment.Start()), 0, true // it may have been written before a kill
	return nil
}

// rewrite writes a segment to a new file after a failed sync.
func (s *spool) rewrite(f file) error {
	if !s.suspect {
		return nil
	}
	data, err := os.ReadFile(s.path(f.name()))
	if err == nil {
		err = durable.WriteFile(s.path(f.name()), data, 0o600)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("spool: %w", err)
	}
	s.suspect = false
	return nil
}

// errDiverged means that the server sends other bytes than it has sent before.
var errDiverged = errors.New("the log of the server is not the one that was received before; restore the database, " +
	"or give it a new archive")

// write takes the bytes that follow in the current segment, and returns how many it took. It compares those that the
// spool has already.
func (s *spool) write(data []byte) (int, error) {
	data = data[:min(int64(len(data)), wal.SegmentBytes-s.checked)]
	if known := min(s.verified-s.checked, int64(len(data))); known > 0 {
		have := make([]byte, known)
		if _, err := s.current.ReadAt(have, s.checked); err != nil {
			return 0, fmt.Errorf("spool: %w", err)
		}
		if !bytes.Equal(have, data[:known]) {
			return 0, fmt.Errorf("segment %v: %w", s.segment, errDiverged)
		}
		s.checked += known
		return int(known), nil
	}
	if err := s.step("write"); err != nil {
		return 0, err
	}
	n, err := s.current.WriteAt(data, s.checked)
	s.checked += int64(n)
	s.length = max(s.length, s.checked)
	s.dirty = true
	if err != nil {
		return n, fmt.Errorf("spool: %w", err)
	}
	return n, nil
}

// received returns the position after the last byte of this stream.
func (s *spool) received() wal.LSN { return s.segment.Start() + wal.LSN(s.checked) }

// full reports whether the current segment is complete.
func (s *spool) full() bool { return s.checked == wal.SegmentBytes }

// sync makes durable what was written. After an error, the segment must begin again.
func (s *spool) sync() error {
	if s.current == nil || !s.dirty {
		return nil
	}
	if err := errors.Join(s.step("sync"), s.current.Sync()); err != nil {
		s.suspect = true
		return fmt.Errorf("spool: %w", err)
	}
	s.dirty = false
	return nil
}

// complete gives the current segment its final name, after sync.
func (s *spool) complete() error {
	from := s.current.Name()
	if err := s.close(); err != nil {
		return err
	}
	if err := s.step("complete-segment"); err != nil {
		return err
	}
	if err := durable.Rename(from, s.path(s.segment.String())); err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	return nil
}

// close closes the current segment. Its content stays.
func (s *spool) close() error {
	if s.current == nil {
		return nil
	}
	err := s.current.Close()
	s.current = nil
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	return nil
}

// remove removes a file whose content is in the archive.
func (s *spool) remove(f file) error {
	if err := s.step("remove"); err != nil {
		return err
	}
	if err := os.Remove(s.path(f.name())); err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	return nil
}
