package replication

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/wal"
)

func words(kind byte, numbers ...uint64) []byte {
	out := []byte{kind}
	for _, n := range numbers {
		out = binary.BigEndian.AppendUint64(out, n)
	}
	return out
}

func TestParseMessage(t *testing.T) {
	sent := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	m, err := parseMessage(append(words('w', 100, 200, uint64(wal.Micros(sent))), "data"...))
	if err != nil || m.Start != 100 || m.ServerEnd != 200 || string(m.Data) != "data" || !m.Sent.Equal(sent) {
		t.Errorf("data: %+v, %v", m, err)
	}
	m, err = parseMessage(append(words('k', 300, uint64(wal.Micros(sent))), 1))
	if err != nil || m.ServerEnd != 300 || !m.Reply || len(m.Data) != 0 {
		t.Errorf("sign of life: %+v, %v", m, err)
	}
	for name, bad := range map[string][]byte{
		"empty": {}, "unknown": words('x', 1, 2, 3), "short": words('w', 1, 2), "short-sign": words('k', 1, 2),
		"overflow": append(words('w', 1<<64-2, 0, 0), "data"...),
	} {
		if _, err := parseMessage(bad); err == nil {
			t.Errorf("%s: got nil, want an error", name)
		}
	}
}

func FuzzMessage(f *testing.F) {
	f.Add(append(words('w', 100, 200, 300), "data"...))
	f.Add(append(words('k', 300, 1), 1))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := parseMessage(data)
		if err == nil && m.Start+wal.LSN(len(m.Data)) < m.Start {
			t.Errorf("data at %v wraps around", m.Start)
		}
	})
}

// received is what a sink got.
type received struct {
	starts            int
	archive, manifest strings.Builder
}

func (r *received) sink() BackupSink {
	return BackupSink{
		Begin:    func(wal.LSN, wal.Timeline) error { r.starts++; return nil },
		Archive:  func(data []byte) error { r.archive.Write(data); return nil },
		Manifest: func(data []byte) error { r.manifest.Write(data); return nil },
	}
}

func row(values ...string) [][]byte {
	var out [][]byte
	for _, v := range values {
		if v == "" {
			out = append(out, nil)
		} else {
			out = append(out, []byte(v))
		}
	}
	return out
}

// A backup consists of a start, one archive, a manifest and an end, and everything else is refused.
func TestBackup(t *testing.T) {
	r := &received{}
	b := backup{sink: r.sink(), result: 1}
	err := b.row(row("0/2000028", "1"))
	b.result, b.rows = 2, 0
	err = errors.Join(err, b.row(row("", "", "100")))
	for _, m := range []string{"nbase.tar\x00\x00", "dab", "p\x00\x00\x00\x00\x00\x00\x00\x01", "dc", "m", "d{}"} {
		err = errors.Join(err, b.data([]byte(m)))
	}
	b.result, b.rows = 3, 0
	err = errors.Join(err, b.row(row("0/2000100", "1")), b.complete())
	complete := r.archive.String() == "abc" && r.manifest.String() == "{}" && r.starts == 1
	if err != nil || !complete || b.stop != 0x2000100 {
		t.Errorf("got %q, %q, stop %v, %v", r.archive.String(), r.manifest.String(), b.stop, err)
	}
	for name, bad := range map[string]func(*backup) error{
		"data-before-the-start": func(b *backup) error { b.begun = false; return b.data([]byte("nbase.tar\x00")) },
		"data-of-no-archive":    func(b *backup) error { return b.data([]byte("dab")) },
		"empty":                 func(b *backup) error { return b.data(nil) },
		"unknown":               func(b *backup) error { return b.data([]byte("z")) },
		"manifest-first":        func(b *backup) error { return b.data([]byte("m")) },
		"other-archive":         func(b *backup) error { return b.data([]byte("n16384.tar\x00/elsewhere\x00")) },
		"tablespace":            func(b *backup) error { b.result = 2; return b.row(row("16384", "/elsewhere", "1")) },
		"bad-position":          func(b *backup) error { b.begun = false; return b.row(row("x", "1")) },
		"no-columns":            func(b *backup) error { return b.row(nil) },
		"second-start":          func(b *backup) error { return b.row(row("0/1", "1")) },
		"early-end":             func(b *backup) error { return b.complete() },
	} {
		b := &backup{sink: r.sink(), result: 1, begun: true}
		if err := bad(b); err == nil {
			t.Errorf("%s: got nil, want an error", name)
		}
	}
}

func FuzzBackup(f *testing.F) {
	f.Add([]byte("nbase.tar\x00\x00"), []byte("dab"))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		r := &received{}
		b := &backup{sink: r.sink(), begun: true, result: 2}
		_ = errors.Join(b.data(first), b.data(second), b.row([][]byte{first, second}))
		if r.archive.Len()+r.manifest.Len() > len(first)+len(second) {
			t.Error("more came out than went in")
		}
	})
}

func TestSlotNames(t *testing.T) {
	for _, bad := range []string{"", "A", "a-b", "a'b", "a b", strings.Repeat("a", 64)} {
		if err := CheckSlotName(bad); err == nil {
			t.Errorf("slot %q: got nil, want an error", bad)
		}
	}
}
