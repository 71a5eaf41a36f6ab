package vmmproc

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/lib/proc"
	"github.com/pandastack/pandastack/internal/vmm"
)

func TestHashCPU(t *testing.T) {
	one := "processor\t: 0\nvendor_id\t: A\nflags\t: fpu sse\ncpu MHz\t: 1\n\nprocessor\t: 1\nflags\t: none\n"
	if hashCPU(one) != hashCPU(strings.ReplaceAll(one, "MHz\t: 1", "MHz\t: 2")) {
		t.Error("hashCPU depends on the current clock rate")
	}
	if hashCPU(one) == hashCPU(strings.ReplaceAll(one, "sse", "avx")) {
		t.Error("hashCPU does not depend on the feature flags")
	}
}

func TestRecord(t *testing.T) {
	dir := t.TempDir()
	if ok, err := ReadRecord(dir, &struct{}{}); ok || err != nil {
		t.Errorf("ReadRecord() without a record = %v, %v; want false, nil", ok, err)
	}
	type record struct {
		Process proc.Identity `json:"process"`
		Disks   []int64       `json:"disks"`
	}
	want := record{proc.Identity{PID: 1, Start: 2, Boot: "3"}, []int64{4}}
	var got record
	if err := WriteRecord(dir, want); err != nil {
		t.Fatal(err)
	}
	ok, err := ReadRecord(dir, &got)
	if !ok || err != nil || got.Process != want.Process || !slices.Equal(got.Disks, want.Disks) {
		t.Errorf("ReadRecord() = %+v, %v, %v; want %+v", got, ok, err, want)
	}
	if id, ok, err := recordedProcess(dir); id != want.Process || !ok || err != nil {
		t.Errorf("recordedProcess() = %+v, %v, %v; want %+v", id, ok, err, want.Process)
	}
	// A crash of the host may leave an unsynced file empty.
	if err := os.Truncate(filepath.Join(dir, RecordFile), 0); err != nil {
		t.Fatal(err)
	}
	if ok, err := ReadRecord(dir, &got); ok || err != nil {
		t.Errorf("ReadRecord() of an empty file = %v, %v; want false, nil", ok, err)
	}
}

// TestConnectFollowsNoLink checks that a monitor cannot redirect Connect to a socket of the host.
func TestConnectFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "host.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Symlink(filepath.Join(dir, "host.sock"), filepath.Join(dir, "guest.sock")); err != nil {
		t.Fatal(err)
	}
	if c, err := Connect(t.Context(), dir, "guest.sock"); err == nil {
		t.Error("Connect followed a symbolic link", c.Close())
	}
	c, err := Connect(t.Context(), dir, "host.sock")
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}

// TestSocketInLongDirectory checks that directories may be longer than a socket address (107
// bytes).
func TestSocketInLongDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 50))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second round replaces the socket of the first
		l, err := Listen(dir, "api.sock")
		if err != nil {
			t.Fatal(err)
		}
		c, err := Connect(t.Context(), dir, "api.sock")
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(c.Close(), l.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRefCount checks that a capture is freed once, after Close and after its last use.
func TestRefCount(t *testing.T) {
	freed := 0
	var u RefCount
	u.OnFree(func() error { freed++; return nil })
	if err := errors.Join(u.Acquire(), u.Acquire(), u.Release(), u.Close()); err != nil || freed != 0 {
		t.Fatalf("freed %d times while in use (%v), want 0", freed, err)
	}
	if u.Acquire() == nil {
		t.Error("Acquire after Close succeeded, want an error")
	}
	if err := errors.Join(u.Release(), u.Close()); err != nil || freed != 1 {
		t.Errorf("freed %d times (%v), want 1", freed, err)
	}
}

func TestImageFiles(t *testing.T) {
	dir := t.TempDir()
	image, err := WriteImage(dir, vmm.Manifest{Driver: "x"}, 4096, Part{StateName, []byte("state")}, Part{"more", nil})
	if err != nil {
		t.Fatal(err)
	}
	if f, ok := FileOf(image.Manifest, MemoryName); !ok || f.Bytes != 4096 || f.SHA256 != "" {
		t.Errorf("FileOf(memory) = %+v, %v; want 4096 bytes without hash", f, ok)
	}
	if data, err := ReadChecked(image, StateName, 5); err != nil || string(data) != "state" {
		t.Errorf("ReadChecked() = %q, %v; want \"state\"", data, err)
	}
	if _, err := ReadChecked(image, StateName, 4); err == nil {
		t.Error("ReadChecked of more than the limit succeeded, want an error")
	}
	path := filepath.Join(dir, StateName)
	if err := errors.Join(os.Chmod(path, 0o600), os.WriteFile(path, []byte("other"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadChecked(image, StateName, 5); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("ReadChecked() of changed content = %v, want an error that it is damaged", err)
	}
}

var errClosed = errors.New("connection closed")

// newTestProcess starts a shell script as the monitor of a machine.
func newTestProcess(t *testing.T, s *Registry, dir, script string) (*Process, *int) {
	t.Helper()
	mark, err := Marker(dir)
	if err != nil {
		t.Fatal(err)
	}
	p, err := proc.Start(proc.Command{Path: "/bin/sh", Args: []string{"-c", script}, Env: []string{mark}})
	if err != nil {
		t.Fatal(err)
	}
	if err := WriteRecord(dir, map[string]any{"process": p.Identity()}); err != nil {
		t.Fatal(err)
	}
	return watchTestProcess(t, s, dir, p)
}

func watchTestProcess(t *testing.T, s *Registry, dir string, p *proc.Process) (*Process, *int) {
	t.Helper()
	hung := new(int)
	l := s.New(vmm.Spec{ID: "m1", Dir: dir}, Hooks{
		Disconnect:   func() { *hung++ },
		DescribeExit: func(e proc.Exit) string { return "the program " + e.String() },
		ErrClosed:    errClosed,
		OnGuestExit:  func(_ context.Context, data string) string { return "guest exit: " + data },
	})
	l.Watch(t.Context(), p)
	return l, hung
}

func await(t *testing.T, l *Process) {
	t.Helper()
	select {
	case <-l.Done():
	case <-time.After(time.Minute):
		t.Fatal("the monitor has not exited after a minute")
	}
}

func newTestRegistry() *Registry {
	return NewRegistry(time.Minute, func(dir string) error { return Remove(dir) })
}

// nothingLeft checks the state after a monitor has exited.
func nothingLeft(t *testing.T, s *Registry, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 {
		t.Errorf("got leftover files %v, %v; want none", left, err)
	}
	if s.find(dir) != nil {
		t.Error("the registry still has the process")
	}
	if ids, err := findMonitors(dir); err != nil || len(ids) != 0 {
		t.Errorf("got leftover processes %v, %v; want none", ids, err)
	}
}

func TestProcessExit(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		end    func(*Process) error
		want   string
	}{
		"by_itself": {"echo words >&2; exit 3", func(*Process) error { return nil },
			"the program exited with status 3: words"},
		"killed":    {"exec sleep 1000", func(l *Process) error { return l.Kill(t.Context()) }, ""},
		"discarded": {"exec sleep 1000", func(l *Process) error { return l.Discard(t.Context()) }, ""},
		"failed": {"exec sleep 1000", func(l *Process) error { l.Fail("no memory"); l.Fail("later"); return nil },
			"no memory"},
		"guest": {"exec sleep 1000", func(l *Process) error {
			l.GuestExited("reset")
			l.GuestExited("later")
			return nil
		}, "guest exit: reset"},
	} {
		t.Run(name, func(t *testing.T) {
			s, dir := newTestRegistry(), t.TempDir()
			l, hung := newTestProcess(t, s, dir, c.script)
			if err := c.end(l); err != nil {
				t.Fatal(err)
			}
			await(t, l)
			got := ""
			if err := l.Err(); err != nil {
				got = err.Error()
			}
			if got != c.want || *hung != 1 {
				t.Errorf("got exit reason %q after %d calls of Disconnect, want %q after 1", got, *hung, c.want)
			}
			nothingLeft(t, s, dir)
			if err := errors.Join(l.Kill(t.Context()), l.Discard(t.Context())); err != nil {
				t.Errorf("Kill of an exited process = %v, want nil", err)
			}
			if _, err := l.Usage(); !errors.Is(err, vmm.ErrGone) {
				t.Errorf("Usage of an exited process = %v, want ErrGone", err)
			}
			if _, err := s.Adopt(dir, &struct{}{}); !errors.Is(err, vmm.ErrGone) {
				t.Errorf("Adopt of an exited process = %v, want ErrGone", err)
			}
		})
	}
}

func TestWithExitReason(t *testing.T) {
	s, dir := newTestRegistry(), t.TempDir()
	l, _ := newTestProcess(t, s, dir, "read x; exit 3")
	await(t, l) // the script reads from empty input
	other := errors.New("refused")
	for _, err := range []error{errClosed, vmm.ErrGone, other} {
		if got := l.WithExitReason(t.Context(), err); !errors.Is(got, vmm.ErrGone) ||
			!strings.Contains(got.Error(), "status 3") ||
			errors.Is(got, other) != (err == other) {
			t.Errorf("WithExitReason(%v) = %v, want ErrGone with the reason", err, got)
		}
	}
	if l.WithExitReason(t.Context(), nil) != nil {
		t.Error("WithExitReason(nil) is not nil")
	}
	m, _ := newTestProcess(t, s, dir, "exec sleep 1000")
	if got := m.WithExitReason(t.Context(), other); got != other {
		t.Errorf("WithExitReason() of a running process = %v, want the error itself", got)
	}
	if err := m.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestAdopt releases a monitor, adopts it in a second registry, and kills it from a third, which
// does not know it.
func TestAdopt(t *testing.T) {
	one, two, three, dir := newTestRegistry(), newTestRegistry(), newTestRegistry(), t.TempDir()
	l, hung := newTestProcess(t, one, dir, "exec sleep 1000")
	if err := one.Close(); err != nil || *hung != 1 || one.find(dir) != nil {
		t.Fatalf("Close() = %v with %d calls of Disconnect, want nil with 1 and no process left", err, *hung)
	}
	l.Release()
	var r struct {
		Process proc.Identity `json:"process"`
	}
	p, err := two.Adopt(dir, &r)
	if err != nil || r.Process != p.Identity() {
		t.Fatalf("Adopt() read record %+v, %v; want that of the process", r, err)
	}
	m, _ := watchTestProcess(t, two, dir, p)
	if m.PID() != l.PID() || m.Phase() != Prepared || m.SetPhase(Running) != Prepared || m.Phase() != Running {
		t.Errorf("got process %d in phase %v, want process %d in phase %v", m.PID(), m.Phase(), l.PID(), Running)
	}
	if err := three.Kill(t.Context(), vmm.Spec{ID: "m1", Dir: dir}); err != nil {
		t.Fatal(err)
	}
	await(t, m)
	nothingLeft(t, two, dir)
	if err := three.Kill(t.Context(), vmm.Spec{ID: "m1", Dir: dir}); err != nil {
		t.Error(err)
	}
}
