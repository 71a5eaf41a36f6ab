package applog_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/app/applog"
	"github.com/pandastack/pandastack/internal/control/store"
)

func newLogs(t *testing.T) *applog.Logs {
	t.Helper()
	db, err := store.Open(t.Context(), store.Config{DSN: filepath.Join(t.TempDir(), "control.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return applog.New(db)
}

// read returns the lines of a log as they are now.
func read(t *testing.T, l *applog.Logs, key string) (lines []string) {
	t.Helper()
	err := l.Read(t.Context(), key, 0, nil, func(line store.AppLogLine) error {
		lines = append(lines, line.Line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// TestMask adds lines with secrets: none is kept anywhere, also not the lines of one that has several.
func TestMask(t *testing.T) {
	logs := newLogs(t)
	masked := []string{"hunter2", "hunter22", "abc", "first\nsecond"}
	g, err := logs.Open(t.Context(), "dpl1", applog.Options{Masked: masked})
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"a hunter22 b hunter2", "abc", "has second", "\x00null\xff"} {
		g.Append(applog.Info, "build", line)
	}
	want := []string{"a " + api.MaskedValue + " b " + api.MaskedValue, "abc", "has " + api.MaskedValue, "null?"}
	for _, when := range []string{"in memory", "closed"} {
		if got := read(t, logs, "dpl1"); strings.Join(got, "|") != strings.Join(want, "|") {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
		if err := g.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFollow reads a log while it is written: every line comes once, in order, also those around the end.
func TestFollow(t *testing.T) {
	logs := newLogs(t)
	const n = 2000
	ended := make(chan struct{})
	g, err := logs.Open(t.Context(), "dpl1", applog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		defer close(ended)
		for i := range n {
			g.Append(applog.Info, "build", fmt.Sprint(i))
			if i%100 == 0 {
				if err := g.Flush(context.WithoutCancel(t.Context())); err != nil {
					done <- err
					return
				}
			}
		}
		done <- g.Close(context.WithoutCancel(t.Context()))
	}()
	i := 0
	err = logs.Read(t.Context(), "dpl1", 0, func(context.Context) (bool, error) {
		select {
		case <-ended:
			return true, nil
		default:
			return false, nil
		}
	}, func(l store.AppLogLine) error {
		if l.Line != fmt.Sprint(i) || l.Number != int64(i+1) {
			return fmt.Errorf("line %d is %+v", i, l)
		}
		i++
		return nil
	})
	if err := errors.Join(err, <-done); err != nil || i != n {
		t.Errorf("%d lines, %v", i, err)
	}
	if tail, err := logs.Tail(t.Context(), "dpl1", 3); err != nil || len(tail) != 3 || tail[0].Number != n-2 {
		t.Errorf("%+v, %v", tail, err)
	}
}

// TestBounds adds more than a log holds: one is full, one keeps the newest, one leaves out what comes too fast.
func TestBounds(t *testing.T) {
	logs := newLogs(t)
	long := strings.Repeat("x", applog.MaxLine*10)
	full, err := logs.Open(t.Context(), "full", applog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for range applog.MaxBytes / len(long) * 2 {
		full.Append(applog.Info, "build", long)
	}
	full.Append(applog.Error, "build", "the last word")
	if err := full.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := read(t, logs, "full")
	if n := len(got); n*applog.MaxLine > applog.MaxBytes*3/2 || got[n-1] != "the last word" ||
		!strings.Contains(got[n-2], "is full") {
		t.Errorf("%d lines, ending with %.60q", n, got[n-1])
	}
	short, err := logs.Open(t.Context(), "short", applog.Options{Keep: 10})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1200 {
		short.Append(applog.Info, "", fmt.Sprint(i))
	}
	if err := short.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := read(t, logs, "short"); len(got) > 600 || got[len(got)-1] != "1199" {
		t.Errorf("%d lines are kept", len(got))
	}
	fast, err := logs.Open(t.Context(), "fast", applog.Options{Rate: 1, Keep: 10})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		fast.Append(applog.Info, "", fmt.Sprint(i))
	}
	if err := fast.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := read(t, logs, "fast"); len(got) > 100 {
		t.Errorf("%d lines were not left out", len(got))
	}
}
