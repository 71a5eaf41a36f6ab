//go:build root

package uffd_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/host/probe"
	"github.com/pandastack/pandastack/internal/host/probe/probetest"
	"github.com/pandastack/pandastack/internal/os/uffd"
	"github.com/pandastack/pandastack/internal/os/uffd/uffdtest"
)

func TestMain(m *testing.M) {
	uffdtest.Main()
	os.Exit(m.Run())
}

// testProcess is a process whose memory the test serves, with the test's end of the handshake.
type testProcess struct {
	t      *testing.T
	p      *uffdtest.Process
	fd     *uffd.FD
	region uffd.Region
	events *uffd.Reader
	waker  *uffd.Waker
	peer   *uffd.Peer
}

func startProcess(t *testing.T, size int64, page int) *testProcess {
	t.Helper()
	probetest.Need(t, probe.Config{}, probe.Root, probe.Userfaultfd)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := &testProcess{t: t}
	if s.p, err = uffdtest.Start(t.Context(),
		uffdtest.Options{Socket: l.Addr().String(), Bytes: size, PageSize: page}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.p.Kill() })
	if err := l.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	conn, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	fd, regions, err := uffd.Receive(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	if len(regions) != 1 || regions[0].Size != uint64(size) || regions[0].PageSize != uint64(page) {
		t.Fatalf("got regions %+v, want one of %d bytes with pages of %d", regions, size, page)
	}
	s.fd, s.region, s.events = fd, regions[0], fd.Events()
	if s.waker, err = uffd.NewWaker(); err != nil {
		t.Fatal(err)
	}
	if s.peer, err = uffd.PeerOf(conn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _, _ = fd.Close(), s.waker.Close(), s.peer.Close() })
	return s
}

// next waits for events and returns them.
func (s *testProcess) next() []uffd.Event {
	s.t.Helper()
	for {
		w, err := s.fd.Wait(s.waker, s.peer, -1)
		if err != nil || w.PeerClosed {
			s.t.Fatalf("Wait() = %+v, %v; want events", w, err)
		}
		events, err := s.events.Read(nil)
		if err != nil {
			s.t.Fatal(err)
		}
		if len(events) > 0 {
			return events
		}
	}
}

// inBackground runs do, which blocks until a fault is served, and sends its result.
func inBackground(do func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	return done
}

func wantDone(t *testing.T, done <-chan error) {
	t.Helper()
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the process is still blocked after a minute")
	}
}

func TestFaultsOfAnotherProcess(t *testing.T) {
	s := startProcess(t, 64<<10, uffd.Page)
	page := bytes.Repeat([]byte("panda..."), uffd.Page/8)
	var got string
	done := inBackground(func() (err error) { got, err = s.p.Sum(uffd.Page, uffd.Page); return err })
	events := s.next()
	if len(events) != 1 || events[0].Kind != uffd.Fault || events[0].Start&^(uffd.Page-1) != s.region.Base+uffd.Page {
		t.Fatalf("got events %+v, want a fault in page 1 of memory at %x", events, s.region.Base)
	}
	if n, err := s.fd.Copy(s.region.Base+uffd.Page, page); n != uffd.Page || err != nil {
		t.Fatalf("Copy() = %d, %v; want the whole page", n, err)
	}
	wantDone(t, done)
	if want := fmt.Sprintf("%x", sha256.Sum256(page)); got != want {
		t.Errorf("the process read %s, want %s", got, want)
	}
	if _, err := s.fd.Copy(s.region.Base+uffd.Page, page); !errors.Is(err, uffd.ErrExists) {
		t.Errorf("second Copy of a page = %v, want ErrExists", err)
	}
	if n, err := s.fd.Copy(s.region.Base, bytes.Repeat(page, 3)); n != uffd.Page || err != nil {
		t.Errorf("Copy up to a present page = %d, %v; want %d, nil", n, err, uffd.Page)
	}
	if n, err := s.fd.Zero(s.region.Base+2*uffd.Page, 2*uffd.Page); n != 2*uffd.Page || err != nil {
		t.Errorf("Zero() = %d, %v; want %d, nil", n, err, 2*uffd.Page)
	}
	if _, err := s.fd.Copy(s.region.Base+s.region.Size, page); !errors.Is(err, uffd.ErrGone) {
		t.Errorf("Copy beyond the memory = %v, want ErrGone", err)
	}
	if err := s.fd.Wake(s.region.Base, s.region.Size); err != nil {
		t.Error(err)
	}
}

func TestRemoveEventBeforeCopy(t *testing.T) {
	s := startProcess(t, 64<<10, uffd.Page)
	page := make([]byte, uffd.Page)
	page[0] = 7
	if _, err := s.fd.Copy(s.region.Base, page); err != nil {
		t.Fatal(err)
	}
	done := inBackground(func() error { return s.p.Drop(0, uffd.Page) })
	w, err := s.fd.Wait(s.waker, s.peer, -1)
	if err != nil || !w.Events {
		t.Fatalf("Wait() = %+v, %v; want events", w, err)
	}
	if _, err := s.fd.Copy(s.region.Base+uffd.Page, page); !errors.Is(err, uffd.ErrAgain) {
		t.Errorf("Copy before the remove event was read = %v, want ErrAgain", err)
	}
	events, err := s.events.Read(nil)
	if err != nil || len(events) != 1 ||
		events[0] != (uffd.Event{Kind: uffd.Remove, Start: s.region.Base, End: s.region.Base + uffd.Page}) {
		t.Fatalf("Read() = %+v, %v; want one remove event", events, err)
	}
	wantDone(t, done)
	if n, err := s.fd.Copy(s.region.Base+uffd.Page, page); n != uffd.Page || err != nil {
		t.Errorf("Copy after the remove event = %d, %v; want %d, nil", n, err, uffd.Page)
	}
}

func TestProcessExit(t *testing.T) {
	s := startProcess(t, 64<<10, uffd.Page)
	if err := s.p.Kill(); err != nil {
		t.Fatal(err)
	}
	for {
		w, err := s.fd.Wait(s.waker, s.peer, -1)
		if err != nil {
			t.Fatal(err)
		}
		if w.PeerClosed {
			break
		}
	}
	if _, err := s.fd.Copy(s.region.Base, make([]byte, uffd.Page)); !errors.Is(err, uffd.ErrGone) {
		t.Errorf("Copy into an exited process = %v, want ErrGone", err)
	}
}

func TestWakerEndsWait(t *testing.T) {
	s := startProcess(t, 64<<10, uffd.Page)
	done := inBackground(func() error {
		w, err := s.fd.Wait(s.waker, s.peer, -1)
		if err == nil && !w.Woken {
			err = fmt.Errorf("wait ended with %+v, want Woken", w)
		}
		return err
	})
	s.waker.Wake()
	wantDone(t, done)
}

func TestHugePages(t *testing.T) {
	probetest.HugePages(t, 4)
	s := startProcess(t, 4<<20, uffd.Huge)
	data := bytes.Repeat([]byte{1, 2, 3, 4}, uffd.Huge/4)
	var got string
	done := inBackground(func() (err error) { got, err = s.p.Sum(uffd.Huge+12345, 8); return err })
	events := s.next()
	if events[0].Start&^(uffd.Huge-1) != s.region.Base+uffd.Huge {
		t.Fatalf("got events %+v, want one fault in page 1", events)
	}
	if n, err := s.fd.Copy(s.region.Base+uffd.Huge, data); n != uffd.Huge || err != nil {
		t.Fatalf("Copy() = %d, %v; want the whole page", n, err)
	}
	wantDone(t, done)
	if want := fmt.Sprintf("%x", sha256.Sum256(data[12345:12353])); got != want {
		t.Errorf("the process read %s, want %s", got, want)
	}
}
