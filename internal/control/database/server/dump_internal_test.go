package server

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// TestFeed drops lines of the head of a dump alone, and only whole ones.
func TestFeed(t *testing.T) {
	const drop = "SET transaction_timeout = 0;"
	long := strings.Repeat("x", 200<<10)
	for name, test := range map[string]struct {
		dump, want string
		lines      int
	}{
		"empty":         {"", "", headLines},
		"head":          {"a\n" + drop + "\nb\n", "a\nb\n", headLines},
		"without end":   {"a\n" + drop, "a\n" + drop, headLines},
		"behind head":   {"a\nb\n" + drop + "\n", "a\nb\n" + drop + "\n", 2},
		"part of line":  {long + drop + "\n" + drop + "\n", long + drop + "\n", headLines},
		"whole in long": {long[:64<<10] + drop + "\nb\n", long[:64<<10] + drop + "\nb\n", headLines},
	} {
		var got strings.Builder
		err := feed(&got, iotest.HalfReader(strings.NewReader(test.dump)), filter{test.lines, known})
		if err != nil || got.String() != test.want {
			t.Errorf("%s: got %d bytes %.60q, %v; want %d bytes %.60q", name, got.Len(), got.String(), err,
				len(test.want), test.want)
		}
	}
	cut := errors.New("cut")
	if err := feed(io.Discard, iotest.ErrReader(cut), filter{headLines, known}); !errors.Is(err, cut) {
		t.Errorf("a dump that fails: got %v", err)
	}
}

func TestConnectionValue(t *testing.T) {
	if got := connectionValue(`a'b\c =`); got != `'a\'b\\c ='` {
		t.Errorf("got %s", got)
	}
}
