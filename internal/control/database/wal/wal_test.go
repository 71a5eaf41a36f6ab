package wal_test

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/wal"
	"github.com/pandastack/pandastack/internal/control/database/wal/waltest"
)

func TestNames(t *testing.T) {
	at, err := wal.ParseLSN("16/B374D848")
	if err != nil || at != 0x16_B374_D848 || at.String() != "16/B374D848" {
		t.Errorf("ParseLSN = %v, %v", at, err)
	}
	s := wal.SegmentAt(3, at)
	if got := s.String(); got != "0000000300000016000000B3" {
		t.Errorf("segment = %s", got)
	}
	if got, err := wal.ParseSegment("0000000300000016000000b3"); err != nil || got != s {
		t.Errorf("ParseSegment = %v, %v; want %v", got, err, s)
	}
	if s.Start() != 0x16_B300_0000 || s.End() != 0x16_B400_0000 || s.Next().Start() != s.End() {
		t.Errorf("segment from %v to %v, then %v", s.Start(), s.End(), s.Next())
	}
	for _, bad := range []string{"", "1", "1/", "/1", "1/2/3", "g/1", "123456789/1", "1/123456789"} {
		if _, err := wal.ParseLSN(bad); err == nil {
			t.Errorf("ParseLSN(%q): got nil, want an error", bad)
		}
	}
	for _, bad := range []string{
		"", "000000000000000000000001", "000000010000000000000100", "0000000100000000000000010",
		"00000001000000000000000g",
	} {
		if _, err := wal.ParseSegment(bad); err == nil {
			t.Errorf("ParseSegment(%q): got nil, want an error", bad)
		}
	}
	if _, err := wal.ParseTimeline("00000000"); err == nil {
		t.Error("ParseTimeline of 0: got nil, want an error")
	}
}

func TestHistory(t *testing.T) {
	text := "# comment\n1\t0/3000158\tno recovery target\n\n2\t0/5000000\tbefore 2000\n"
	path, err := wal.ParseHistory(3, []byte(text))
	want := wal.Path{{Timeline: 1, End: 0x3000158}, {Timeline: 2, End: 0x5000000}, {Timeline: 3}}
	if err != nil || !reflect.DeepEqual(path, want) {
		t.Fatalf("ParseHistory = %v, %v; want %v", path, err, want)
	}
	for at, want := range map[wal.LSN]wal.Timeline{0: 1, 0x3000157: 1, 0x3000158: 2, 0x5000000: 3, 1 << 40: 3} {
		if got := path.At(at); got != want {
			t.Errorf("At(%v) = %v, want %v", at, got, want)
		}
	}
	if begin, ok := path.Begin(2); begin != 0x3000158 || !ok {
		t.Errorf("Begin(2) = %v, %v", begin, ok)
	}
	if end, ok := path.End(3); end != 0 || !ok {
		t.Errorf("End(3) = %v, %v", end, ok)
	}
	if _, ok := path.End(4); ok || path.Last() != 3 {
		t.Errorf("timeline 4 is on the path, or %v is not the last", path.Last())
	}
	for name, bad := range map[string]string{
		"itself": "3\t0/1\n", "later": "4\t0/1\n", "order": "2\t0/1\n1\t0/2\n", "back": "1\t0/2\n2\t0/1\n",
		"no-position": "1\n", "no-number": "x 0/1\n", "zero": "0 0/1\n", "at-zero": "1 0/0\n",
		"long": string(make([]byte, wal.MaxHistoryBytes+1)),
	} {
		if _, err := wal.ParseHistory(3, []byte(bad)); err == nil {
			t.Errorf("%s: got nil, want an error", name)
		}
	}
}

var noon = time.Date(2026, 11, 23, 12, 0, 0, 123_000, time.UTC)

// sample is a log with records of all kinds over three segments.
func sample() (*waltest.Log, []wal.Record) {
	l := waltest.New(7, 2)
	var want []wal.Record
	add := func(start wal.LSN, r wal.Record) {
		r.Start, r.End = start, l.End()
		want = append(want, r)
	}
	add(l.Data(100), wal.Record{})
	add(l.Commit(11, noon), wal.Record{Kind: wal.Commit, XID: 11, Time: noon})
	add(l.Data(100_000), wal.Record{}) // over pages
	add(l.Abort(12, noon), wal.Record{Kind: wal.Abort, XID: 12, Time: noon})
	add(l.RestorePoint("here", noon), wal.Record{Kind: wal.RestorePoint, Name: "here", Time: noon})
	add(l.Switch(), wal.Record{})
	add(l.Data(17<<20), wal.Record{}) // over segments
	add(l.Commit(13, noon.Add(time.Hour)), wal.Record{Kind: wal.Commit, XID: 13, Time: noon.Add(time.Hour)})
	return l, want
}

// scan scans the log from a segment on.
func scan(t *testing.T, l *waltest.Log, first uint64) (*wal.Scanner, []wal.Record) {
	t.Helper()
	s := &wal.Scanner{}
	var got []wal.Record
	for n := first; (wal.Segment{Timeline: 1, Number: n}).Start() < l.End(); n++ {
		err := s.Scan(wal.Segment{Timeline: 1, Number: n}, l.Segment(n), func(r wal.Record) error {
			got = append(got, r)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return s, got
}

// The scanner finds every record, whatever pages and segments it spans, and begins in the middle of the log as well.
func TestScanner(t *testing.T) {
	l, want := sample()
	s, got := scan(t, l, 2)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("records:\n%v\nwant\n%v", got, want)
	}
	if s.End() != l.End() || s.Ended() || s.System() != 7 {
		t.Errorf("End = %v (ended %v) of system %d, want %v of 7", s.End(), s.Ended(), s.System(), l.End())
	}
	if _, got := scan(t, l, 4); !reflect.DeepEqual(got, want[len(want)-1:]) {
		t.Errorf("records from the middle: %v, want %v", got, want[len(want)-1:])
	}
}

// The log ends before the first record with a damaged byte, and before a record of which bytes are missing.
func TestScannerEndsAtDamage(t *testing.T) {
	l, want := sample()
	s := wal.Segment{Timeline: 1, Number: 2}
	full := l.Segment(2)[:256<<10]
	for i, r := range want[:5] {
		for _, at := range []wal.LSN{r.Start, r.Start + 17, (r.Start + r.End) / 2} {
			data := slices.Clone(full)
			data[at-s.Start()] ^= 0x40
			checkEnd(t, s, data, want[:i])
			checkEnd(t, s, full[:at-s.Start()], want[:i])
		}
	}
	var two wal.Scanner
	keep := func(wal.Record) error { return nil }
	if err := two.Scan(s, l.Segment(2), keep); err != nil {
		t.Fatal(err)
	}
	if err := two.Scan(wal.Segment{Timeline: 1, Number: 4}, l.Segment(4), keep); err == nil {
		t.Error("a segment is left out: got nil, want an error")
	}
	other := waltest.New(8, 3)
	other.Data(10)
	if err := two.Scan(wal.Segment{Timeline: 1, Number: 3}, other.Segment(3), keep); !errors.Is(err, wal.ErrCorrupt) {
		t.Errorf("a segment of another system: got %v, want ErrCorrupt", err)
	}
}

func checkEnd(t *testing.T, segment wal.Segment, data []byte, want []wal.Record) {
	t.Helper()
	var s wal.Scanner
	n := 0
	if err := s.Scan(segment, data, func(wal.Record) error { n++; return nil }); err != nil {
		t.Fatal(err)
	}
	end := wal.LSN(0)
	if len(want) > 0 {
		end = want[len(want)-1].End
	}
	if n != len(want) || s.End() != end {
		t.Errorf("%d records up to %v, want %d up to %v", n, s.End(), len(want), end)
	}
}

func TestTime(t *testing.T) {
	if got := wal.Time(wal.Micros(noon)); !got.Equal(noon) {
		t.Errorf("Time(Micros) = %v, want %v", got, noon)
	}
	for _, n := range []int64{-1 << 63, 1<<63 - 1} {
		if _, err := wal.Time(n).MarshalText(); err != nil {
			t.Errorf("Time(%d): %v", n, err)
		}
	}
}

// Whatever the bytes are, the scanner ends, and reports positions inside the segment.
func FuzzScanner(f *testing.F) {
	l, _ := sample()
	f.Add(l.Segment(2)[:16384])
	f.Add(l.Segment(4)[:16384])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		segment := wal.Segment{Timeline: 1, Number: 2}
		var s wal.Scanner
		_ = s.Scan(segment, data[:min(len(data), wal.SegmentBytes)], func(r wal.Record) error { // it may be damaged
			if r.Start < segment.Start() || r.End > segment.End() || r.End <= r.Start || len(r.Name) > 64 {
				t.Errorf("record %+v", r)
			}
			return nil
		})
	})
}

func FuzzHistory(f *testing.F) {
	f.Add([]byte("1\t0/3000158\tno recovery target\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		path, err := wal.ParseHistory(9, data)
		if err == nil && path.Last() != 9 {
			t.Errorf("the path ends with %v", path.Last())
		}
	})
}
