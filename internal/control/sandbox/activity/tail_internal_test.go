package activity

import (
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// begin is a time to count from.
var begin = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// lines gives each line of a tail with the seconds after begin at which it came.
func lines(text string, at LineTimes) (out []string, seconds []int) {
	for line := range strings.Lines(text) {
		seconds = append(seconds, int(at.Line(len(out), begin.Add(-time.Second)).Sub(begin)/time.Second))
		out = append(out, strings.TrimSpace(line))
	}
	return out, seconds
}

// TestTail: the end of the output is kept with the times of its lines, however it was split, also across a restart
// of the program, and output that two followers read is kept once.
func TestTail(t *testing.T) {
	var tl tail
	say := func(second int, offset int64, text string) {
		tl.add(guestapi.Event{Offset: offset, Data: []byte(text)}, begin.Add(time.Duration(second)*time.Second))
	}
	say(1, 0, "one\ntw")
	say(2, 0, "one\ntw") // another follower
	say(3, 6, "o\nthree\n")
	say(4, 14, "part")
	want := "one@1 two@3 three@3 part@4 "
	tell := func(tl *tail) (s string) {
		all, at := lines(Printable(tl.data), tl.lineTimes())
		for i, line := range all {
			s += line + "@" + string(rune('0'+at[i])) + " "
		}
		return s
	}
	if got := tell(&tl); got != want {
		t.Errorf("lines came %q, want %q", got, want)
	}
	again := loadTail(Printable(tl.data), tl.lineTimes())
	if got := tell(&again); got != want {
		t.Errorf("after a restart %q, want %q", got, want)
	}
	old := loadTail("a\nb\n", nil)
	if _, at := lines("a\nb\n", old.lineTimes()); at[0] != -1 || at[1] != -1 {
		t.Errorf("times of output with unknown times = %v, want none", at)
	}
	offset := int64(18)
	for second := range 500 {
		line := strings.Repeat("x", 50) + "\n"
		say(10+second, offset, line)
		offset += int64(len(line))
	}
	if len(tl.data) > maxTail || len(tl.pieces) > maxPieces {
		t.Errorf("%d bytes and %d pieces are kept", len(tl.data), len(tl.pieces))
	}
	_, at := lines(Printable(tl.data), tl.lineTimes())
	if last := at[len(at)-1]; last != 509 || at[0] < 10 {
		t.Errorf("the kept lines came from %d to %d, want the last at 509", at[0], last)
	}
	sum := 0
	for _, p := range tl.pieces {
		sum += p.bytes
	}
	if sum != len(tl.data) {
		t.Errorf("pieces hold %d bytes of %d", sum, len(tl.data))
	}
}
