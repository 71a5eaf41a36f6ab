package walrelay

import (
	"errors"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/replication"
	"github.com/pandastack/pandastack/internal/control/database/wal"
)

// script is a stream of given messages.
type script struct {
	messages []replication.Message
	after    func(n int) // is called when message n was taken
	n        int
}

// Next implements source.
func (s *script) Next() (replication.Message, error) {
	if s.n > 0 {
		s.after(s.n - 1)
	}
	if s.n == len(s.messages) {
		return replication.Message{}, errEnd
	}
	s.n++
	return s.messages[s.n-1], nil
}

// Buffered implements source.
func (s *script) Buffered() bool { return false }

// Acknowledge implements source.
func (s *script) Acknowledge(wal.LSN, wal.LSN, time.Time) error { return nil }

// TestCovered checks the time up to which the relay says that it has everything: a commit that the server confirmed
// between the moment at which it read the end of its log and the one at which it read its clock is not covered.
func TestCovered(t *testing.T) {
	g, l := newRig(t), sampleLog()
	r := g.relay()
	start := l.Start()
	at := func(n int) wal.LSN { return start + wal.LSN(n*1000) }
	second := func(n int) time.Time {
		if n < 0 {
			return time.Time{}
		}
		return noon.Add(time.Duration(n) * time.Second)
	}
	data := func(from, to, end, sent int) replication.Message {
		return replication.Message{
			Start: at(from), Data: l.Bytes(at(from), at(to)), ServerEnd: at(end), Sent: second(sent),
		}
	}
	sign := func(end, sent int, asks bool) replication.Message {
		return replication.Message{ServerEnd: at(end), Sent: second(sent), Reply: asks}
	}
	s := &script{}
	var want []int
	for _, step := range []struct {
		replication.Message
		covered int // seconds; -1: none
	}{
		{data(0, 1, 1, 1), -1}, // a commit at 1.000 s may have been confirmed since the end was read
		{data(1, 2, 2, 2), 1},
		{sign(2, 3, true), 1}, // names what was sent, and the server may have more
		{sign(2, 4, true), 3}, // looked for more after the last sign was acknowledged
		{sign(2, 5, false), 3},
		{sign(2, 6, true), 3},  // the last one did not wait for an acknowledgement
		{data(2, 3, 5, 7), 3},  // the server has more
		{data(3, 4, 5, 8), 3},  //
		{data(4, 5, 5, 9), 8},  //
		{sign(5, 10, true), 8}, //
	} {
		s.messages, want = append(s.messages, step.Message), append(want, step.covered)
	}
	s.after = func(n int) {
		if got := r.Status().Covered; !got.Equal(second(want[n])) {
			t.Errorf("after message %d: covered until %v, want %v", n, got, second(want[n]))
		}
		c := r.covered(r.spool.received()).At
		if !c.Equal(second(want[n])) && n != 6 && n != 7 { // of these two positions nothing is known
			t.Errorf("after message %d: coverage of the segment %v, want %v", n, c, second(want[n]))
		}
	}
	if err := r.receive(s, position{1, start, start}); !errors.Is(err, errEnd) {
		t.Fatal(err)
	}
}
