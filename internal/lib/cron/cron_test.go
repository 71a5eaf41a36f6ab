package cron_test

import (
	"errors"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the rules of zones are the same on every machine

	"github.com/pandastack/pandastack/internal/lib/cron"
)

func TestNext(t *testing.T) {
	t.Parallel()
	const newYork, berlin, lordHowe = "America/New_York", "Europe/Berlin", "Australia/Lord_Howe"
	for _, c := range []struct{ expression, zone, after, want string }{
		{"*/5 * * * *", "", "2026-01-01T00:00:00Z", "2026-01-01T00:05:00Z 2026-01-01T00:10:00Z"},
		{"*/5 * * * *", "", "2026-01-01T00:04:59.9Z", "2026-01-01T00:05:00Z"},
		{"30 0 9 * * *", "", "2026-01-01T00:00:00Z", "2026-01-01T09:00:30Z"},
		{"0 9 * * 7", "", "2026-01-01T00:00:00Z", "2026-01-04T09:00:00Z"},
		{"0 9 * * MON-FRI", "", "2026-01-02T09:00:00Z", "2026-01-05T09:00:00Z"},
		{"0 0 13 * 5", "", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z 2026-01-09T00:00:00Z 2026-01-13T00:00:00Z"},
		{"0 0 29 2 *", "", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z"},
		{"0 0 29 2 *", "", "2096-03-01T00:00:00Z", "2104-02-29T00:00:00Z"},
		{"@daily", berlin, "2026-07-01T00:00:00Z", "2026-07-01T22:00:00Z"},
		{"@every 90s", berlin, "2026-07-01T00:00:00Z", "2026-07-01T00:01:30Z 2026-07-01T00:03:00Z"},
		{"@every  1h30m", "", "2026-07-01T00:00:00Z", "2026-07-01T01:30:00Z"},

		// The clock is set forward. New York skips 02:00 to 03:00, and Berlin too; Lord Howe skips half an hour.
		{"30 2 * * *", newYork, "2026-03-08T05:00:00Z", "2026-03-08T07:30:00Z 2026-03-09T06:30:00Z"},
		{"30 2 * * *", newYork, "2026-03-08T07:10:00Z", "2026-03-08T07:30:00Z 2026-03-09T06:30:00Z"},
		{"30 2 * * *", newYork, "2026-03-08T07:30:00Z", "2026-03-09T06:30:00Z"},
		{"0 3 * * *", newYork, "2026-03-08T05:00:00Z", "2026-03-08T07:00:00Z 2026-03-09T07:00:00Z"},
		{"*/30 * * * *", newYork, "2026-03-08T06:00:00Z", "2026-03-08T06:30:00Z 2026-03-08T07:00:00Z"},
		{"*/15 2 * * *", newYork, "2026-03-08T05:00:00Z", "2026-03-09T06:00:00Z"},
		{"30 2 * * *", berlin, "2026-03-28T12:00:00Z", "2026-03-29T01:30:00Z 2026-03-30T00:30:00Z"},
		{"0 * * * *", berlin, "2026-03-29T00:00:00Z", "2026-03-29T01:00:00Z 2026-03-29T02:00:00Z"},
		{"15 2 * * *", lordHowe, "2026-10-03T00:00:00Z", "2026-10-03T15:45:00Z 2026-10-04T15:15:00Z"},
		{"15 * * * *", lordHowe, "2026-10-03T14:00:00Z", "2026-10-03T14:45:00Z 2026-10-03T16:15:00Z"},

		// The clock is set back: an hour is there twice, half an hour at Lord Howe.
		{"30 1 * * *", newYork, "2026-11-01T04:00:00Z", "2026-11-01T05:30:00Z 2026-11-02T06:30:00Z"},
		{"30 1 * * *", newYork, "2026-11-01T05:45:00Z", "2026-11-02T06:30:00Z"},
		{"30 * * * *", newYork, "2026-11-01T05:00:00Z", "2026-11-01T05:30:00Z 2026-11-01T06:30:00Z"},
		{"30 2 * * *", berlin, "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z 2026-10-26T01:30:00Z"},
		{"*/30 2 * * *", berlin, "2026-10-25T00:30:00Z", "2026-10-25T01:00:00Z 2026-10-25T01:30:00Z"},
		{"45 1 * * *", lordHowe, "2026-04-04T12:00:00Z", "2026-04-04T14:45:00Z 2026-04-05T15:15:00Z"},
		{"*/15 1 * * *", lordHowe, "2026-04-04T14:45:00Z", "2026-04-04T15:00:00Z 2026-04-04T15:15:00Z"},

		// A whole day was skipped: Samoa had no 30th of December in 2011.
		{"0 12 30 12 *", "Pacific/Apia", "2011-12-29T00:00:00Z", "2011-12-30T22:00:00Z 2012-12-29T22:00:00Z"},
	} {
		x, err := cron.Parse(c.expression, c.zone)
		if err != nil {
			t.Errorf("%s in %s: %v", c.expression, c.zone, err)
			continue
		}
		after, err := time.Parse(time.RFC3339Nano, c.after)
		if err != nil {
			t.Fatal(err)
		}
		want := strings.Fields(c.want)
		var got []string
		for _, at := range x.Upcoming(after, len(want)) {
			got = append(got, at.UTC().Format(time.RFC3339))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s in %q after %s:\n got %s\nwant %s", c.expression, c.zone, c.after, got, want)
		}
	}
}

func TestLast(t *testing.T) {
	t.Parallel()
	at := func(text string) time.Time {
		t.Helper()
		when, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return when
	}
	for _, c := range []struct{ expression, first, until, want string }{
		{"0 * * * *", "2026-01-01T01:00:00Z", "2026-01-01T01:00:00Z", "01 01:00"},
		{"0 * * * *", "2026-01-01T01:00:00Z", "2026-01-01T00:59:59Z", ""},
		{"0 * * * *", "2026-01-01T01:00:00Z", "2026-01-01T02:59:00Z", "01 01:00, 01 02:00"},
		{"0 * * * *", "2024-01-01T01:00:00Z", "2026-01-01T09:30:00Z", "01 07:00, 01 08:00, 01 09:00"},
		{"* * * * * *", "2024-01-01T01:00:00Z", "2026-01-01T09:30:00Z", "01 09:29, 01 09:29, 01 09:30"},
		{"0 0 1 * *", "2025-01-01T00:00:00Z", "2026-03-31T00:00:00Z", "01 00:00, 01 00:00, 01 00:00"},
		{"@every 7m", "2024-01-01T01:00:00Z", "2024-01-01T01:20:59Z", "01 01:00, 01 01:07, 01 01:14"},
		{"@every 7m", "2024-01-01T01:00:00Z", "2024-01-01T01:21:00Z", "01 01:07, 01 01:14, 01 01:21"},
		{"@every 7m", "2024-01-01T01:00:00Z", "2024-01-01T00:00:00Z", ""},
	} {
		x, err := cron.Parse(c.expression, "")
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, when := range x.Last(at(c.first), at(c.until), 3) {
			got = append(got, when.Format("02 15:04"))
		}
		if text := strings.Join(got, ", "); text != c.want {
			t.Errorf("last moments of %s from %s to %s: %s, want %s", c.expression, c.first, c.until, text, c.want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for expression, want := range map[string]string{
		"":                        "empty",
		"0 0 30 2 *":              "names no moment",
		"0 0 31 4,6 *":            "names no moment",
		"61 * * * *":              "not a cron expression",
		"* * *":                   "not a cron expression",
		"0 0 0 1 1 * 2030":        "not a cron expression",
		"@every 500ms":            "not an interval",
		"@every 0s":               "not an interval",
		"@every -5s":              "not an interval",
		"@every":                  "not an interval",
		"@sometimes":              "not a cron expression",
		"hello":                   "not a cron expression",
		strings.Repeat("1,", 150): "characters",
	} {
		_, err := cron.Parse(expression, "")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want one that says %q", expression, err, want)
		}
	}
	if _, err := cron.Parse("0 0 30 2 *", ""); !errors.Is(err, cron.ErrNever) {
		t.Errorf("error = %v, want ErrNever", err)
	}
	for _, zone := range []string{"Mars/Olympus", "Local", "../../etc/passwd"} {
		if _, err := cron.Parse("* * * * *", zone); err == nil || !strings.Contains(err.Error(), "time zone") {
			t.Errorf("zone %q: %v", zone, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"*/5 * * * *", "0 9 * * 7", "@every 90s", "0 0 L * 5#2", "1-59/3 0 15W 1,2 MON"} {
		f.Add(text)
	}
	after := time.Date(2026, 3, 8, 5, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, text string) {
		x, err := cron.Parse(text, "America/New_York")
		if err != nil {
			return
		}
		last := after
		for _, at := range x.Upcoming(after, 3) {
			if !at.After(last) {
				t.Fatalf("%q: %v is not after %v", text, at, last)
			}
			last = at
		}
	})
}
