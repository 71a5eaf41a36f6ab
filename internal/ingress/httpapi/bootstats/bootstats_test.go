package bootstats

import (
	"fmt"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
)

func TestStats(t *testing.T) {
	since := time.Unix(1000, 0)
	b := New(since)
	if s := b.Stats(); !s.Since.Equal(since) || s.Boots == nil || len(s.Boots) != 0 {
		t.Errorf("Stats of a new recorder = %+v, want none", s)
	}
	for i := range 100 {
		b.Record("snapshot", float64(100-i))
	}
	b.Record("cold", 7)
	b.Record("", 9)
	want := []api.BootMode{
		{BootMode: "cold", Count: 1, P50MS: 7, P95MS: 7, P99MS: 7, MaxMS: 7, LastMS: 7},
		{BootMode: "snapshot", Count: 100, P50MS: 50, P95MS: 95, P99MS: 99, MaxMS: 100, LastMS: 1},
	}
	if s := b.Stats(); fmt.Sprint(s.Boots) != fmt.Sprint(want) {
		t.Errorf("got %+v, want %+v", s.Boots, want)
	}
}

func TestBookIsBounded(t *testing.T) {
	b := New(time.Unix(0, 0))
	for i := range 3 * kept {
		b.Record("fork", float64(i))
	}
	for i := range 2 * modes {
		b.Record(fmt.Sprint("way", i), 1)
	}
	s := b.Stats()
	if len(s.Boots) != modes || len(b.ways["fork"].times) != kept {
		t.Errorf("got %d ways and %d times, want them bounded", len(s.Boots), len(b.ways["fork"].times))
	}
	// The oldest times were replaced by the newest.
	if f := s.Boots[0]; f.BootMode != "fork" || f.Count != 3*kept || f.MaxMS != 3*kept-1 || f.P50MS < 2*kept {
		t.Errorf("got %+v, want the statistics of the newest times", f)
	}
}
