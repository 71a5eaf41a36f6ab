package firecracker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/lib/proc"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/firecracker/fcapi"
)

func TestCheckRelease(t *testing.T) {
	for text, usable := range map[string]bool{
		"1.12.1": false, "1.13.1": false, "1.14.4": false, "1.15.0": false, "1.15.1": true, "1.15.3": true,
		"1.16.0": false, "1.16.1": false, "1.16.2": false, "1.17.0": true, "1.18.0": true, "2.0.0": false,
	} {
		v, err := fcapi.ParseVersion(text)
		if err != nil {
			t.Fatal(err)
		}
		err = CheckRelease(v)
		var faulty *RefusedReleaseError
		if usable != (err == nil) || err != nil && (!errors.As(err, &faulty) || faulty.Version != v) {
			t.Errorf("CheckRelease(%s) = %v, want it usable: %v", text, err, usable)
		}
	}
	if f := Advisories(fcapi.Version{Major: 1, Minor: 15, Patch: 1}); len(f) == 0 || f[0].Severity == Refused {
		t.Errorf("Advisories(1.15.1) = %v, want only ones that do not refuse it", f)
	}
	for _, f := range Advisories(fcapi.Version{Major: 1, Minor: 17}) {
		t.Errorf("Advisories(1.17.0) has %+v, want none", f)
	}
}

func TestCheckJailerRelease(t *testing.T) {
	for text, faulty := range map[string]bool{"1.13.1": true, "1.13.2": false, "1.14.0": true, "1.14.1": false,
		"1.15.1": false, "1.17.0": false} {
		v, err := fcapi.ParseVersion(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := checkJailerRelease(v); faulty != (err != nil) {
			t.Errorf("checkJailerRelease(%s) = %v, want an error: %v", text, err, faulty)
		}
	}
}

func TestDescribeExit(t *testing.T) {
	for code, want := range map[int]string{148: "system call", 149: "bus error", 0: "the guest", 77: "status 77"} {
		if got := describeExit(proc.Exit{Known: true, Code: code}); !strings.Contains(got, want) {
			t.Errorf("describeExit(%d) = %q, want %q in it", code, got, want)
		}
	}
	if got := describeExit(proc.Exit{Known: true, Signal: 9}); !strings.Contains(got, "out of memory") {
		t.Errorf("describeExit(SIGKILL) = %q, want a hint at the OOM killer", got)
	}
}

// pipe returns a channel's connection and the guest's end of it.
func pipe(t *testing.T) (ours, theirs net.Conn) {
	t.Helper()
	ours, theirs = net.Pipe()
	t.Cleanup(func() { _, _ = ours.Close(), theirs.Close() })
	return ours, theirs
}

func TestChannelSendsPendingWrites(t *testing.T) {
	c := newChannel(t.Context())
	defer c.Close()
	for _, part := range []string{"one ", "two "} {
		if n, err := c.Write([]byte(part)); err != nil || n != len(part) {
			t.Fatalf("Write() = %d, %v; want %d, nil", n, err, len(part))
		}
	}
	ours, theirs := pipe(t)
	attached := make(chan error, 1)
	go func() { attached <- c.attach(ours) }()
	got := make([]byte, 8)
	if _, err := io.ReadFull(theirs, got); err != nil || string(got) != "one two " {
		t.Fatalf("the guest received %q, %v; want \"one two \"", got, err)
	}
	if err := <-attached; err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = theirs.Write([]byte("hello")) }()
	answer := make([]byte, 5)
	if _, err := io.ReadFull(c, answer); err != nil || string(answer) != "hello" {
		t.Errorf("Read() = %q, %v; want \"hello\"", answer, err)
	}
}

// TestChannelSendsAgain checks that a connection which ends before the guest's first byte is replaced,
// that everything written is sent again, and that this ends with the first byte.
func TestChannelSendsAgain(t *testing.T) {
	c := newChannel(t.Context())
	defer c.Close()
	first, guest1 := pipe(t)
	if err := c.attach(first); err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 2)
	go func() {
		buf := make([]byte, 3)
		_, _ = io.ReadFull(guest1, buf) // shows in what is compared below
		got <- string(buf)
		_ = guest1.Close()
	}()
	if _, err := c.Write([]byte("one")); err != nil {
		t.Fatal(err)
	}
	if first := <-got; first != "one" {
		t.Fatalf("the first connection received %q, want \"one\"", first)
	}
	read := make(chan error, 1)
	answer := make([]byte, 2)
	go func() {
		_, err := io.ReadFull(c, answer)
		read <- err
	}()
	select {
	case <-c.lost:
	case err := <-read:
		t.Fatalf("Read of a dead connection = %v, want it to wait for another one", err)
	}
	if n, err := c.Write([]byte("two")); err != nil || n != 3 {
		t.Fatalf("Write between connections = %d, %v; want 3, nil", n, err)
	}
	second, guest2 := pipe(t)
	attached := make(chan error, 1)
	go func() { attached <- c.attach(second) }()
	whole := make([]byte, 6)
	if _, err := io.ReadFull(guest2, whole); err != nil || string(whole) != "onetwo" {
		t.Fatalf("the second connection received %q, %v; want \"onetwo\"", whole, err)
	}
	if err := <-attached; err != nil {
		t.Fatal(err)
	}
	if _, err := guest2.Write([]byte("ok")); err != nil {
		t.Fatal(err)
	}
	if err := <-read; err != nil || string(answer) != "ok" {
		t.Fatalf("Read() = %q, %v; want \"ok\"", answer, err)
	}
	if len(c.kept) != 0 {
		t.Errorf("%d bytes are still kept after the guest's first byte, want none", len(c.kept))
	}
	_ = guest2.Close()
	if _, err := c.Read(answer); !errors.Is(err, io.EOF) {
		t.Errorf("Read of the last connection = %v, want io.EOF", err)
	}
	if _, err := c.Write([]byte("x")); err == nil {
		t.Error("Write to the last connection succeeded after its end, want an error")
	}
}

// TestChannelKeepsNoMore checks that a connection on which more was written than is kept is the last
// one.
func TestChannelKeepsNoMore(t *testing.T) {
	c := newChannel(t.Context())
	defer c.Close()
	ours, theirs := pipe(t)
	if err := c.attach(ours); err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _ = io.CopyN(io.Discard, theirs, maxKept+1)
		_ = theirs.Close()
	}()
	if _, err := c.Write(make([]byte, maxKept)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("Read() = %v, want io.EOF", err)
	}
}

func TestChannelBounds(t *testing.T) {
	c := newChannel(t.Context())
	if _, err := c.Write(make([]byte, maxKept)); err != nil {
		t.Fatal(err)
	}
	if err := c.SetDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Write beyond maxKept = %v, want ErrDeadlineExceeded", err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Read() = %v, want ErrDeadlineExceeded", err)
	}
	if err := c.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		_, err := c.Read(make([]byte, 1))
		read <- err
	}()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-read; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Read of a closed channel = %v, want net.ErrClosed", err)
	}
	if _, err := c.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Write to a closed channel = %v, want net.ErrClosed", err)
	}
	ours, _ := pipe(t)
	if c.attach(ours) == nil {
		t.Error("attach to a closed channel succeeded, want an error")
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// TestChannelClosesWithoutGuest checks that a guest which accepts a connection but never reads
// blocks only its own attempt.
func TestChannelClosesWithoutGuest(t *testing.T) {
	lifetime, end := context.WithCancel(t.Context())
	c := newChannel(lifetime)
	if _, err := c.Write([]byte("never read")); err != nil {
		t.Fatal(err)
	}
	ours, _ := pipe(t)
	stop := context.AfterFunc(c.ctx, func() { _ = ours.Close() })
	defer stop()
	attached := make(chan error, 1)
	go func() { attached <- c.attach(ours) }()
	end()
	if err := <-attached; err == nil {
		t.Error("attach succeeded without a reader, want an error")
	}
}

// response is a connection to a monitor that sends a fixed response to any request.
type response struct {
	net.Conn
	r io.Reader
}

func (a response) Read(p []byte) (int, error) { return a.r.Read(p) }
func (response) Write(p []byte) (int, error)  { return len(p), nil }
func (response) SetDeadline(time.Time) error  { return nil }

func TestConnectPort(t *testing.T) {
	rest := strings.NewReader("OK 1073741824\nfirst bytes")
	if err := connectPort(response{r: rest}, 5252); err != nil {
		t.Fatal(err)
	}
	if left, _ := io.ReadAll(rest); string(left) != "first bytes" {
		t.Errorf("got %q from the guest, want \"first bytes\"", left)
	}
	for _, said := range []string{"", "OK\n", "OK x\n", "NO 1\n", "OK 99999999999\n", strings.Repeat("O", 1000),
		"OK 1"} {
		if connectPort(response{r: strings.NewReader(said)}, 5252) == nil {
			t.Errorf("connectPort accepted the response %q", said)
		}
	}
}

func FuzzConnectPort(f *testing.F) {
	f.Add([]byte("OK 1073741824\nx"))
	f.Add([]byte("OK "))
	f.Fuzz(func(t *testing.T, said []byte) {
		r := bytes.NewReader(said)
		err := connectPort(response{r: r}, 1)
		if used := len(said) - r.Len(); used > maxResponse {
			t.Errorf("connectPort read %d bytes, want at most %d", used, maxResponse)
		}
		if err == nil && !bytes.HasPrefix(said, []byte("OK ")) {
			t.Errorf("connectPort accepted the response %q", said)
		}
	})
}

func TestOpenRegular(t *testing.T) {
	dir := t.TempDir()
	secret, link := filepath.Join(dir, "secret"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(secret, []byte("x"), 0o600), os.Symlink(secret, link)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, dir, filepath.Join(dir, "none")} {
		if f, err := openRegular(path); err == nil {
			t.Errorf("openRegular(%s) succeeded, want an error", path)
			_ = f.Close()
		}
	}
	f, err := openRegular(secret)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
}

func TestShapeValidation(t *testing.T) {
	good := shape{BaseMiB: 64, HotplugMiB: 128, ReadOnly: []bool{false, false}}
	m := vmm.Manifest{MemoryMiB: 64, MaxMemoryMiB: 192, Disks: 1, MaxDisks: 2}
	spec := vmm.Spec{Disks: []vmm.Disk{{}}}
	if err := good.check(spec, m); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*shape){
		"no_memory":   func(s *shape) { s.BaseMiB = 0 },
		"too_large":   func(s *shape) { s.BaseMiB = 1 << 40 },
		"negative":    func(s *shape) { s.HotplugMiB = -1 },
		"less":        func(s *shape) { s.HotplugMiB = 0 },
		"base":        func(s *shape) { s.BaseMiB = 65 },
		"few_drives":  func(s *shape) { s.ReadOnly = nil },
		"many_drives": func(s *shape) { s.ReadOnly = make([]bool, 1000) },
		"read_only":   func(s *shape) { s.ReadOnly = []bool{true, false} },
	} {
		s := good
		change(&s)
		if s.check(spec, m) == nil {
			t.Errorf("%s: check() = nil, want an error", name)
		}
	}
}

// FuzzShape checks arbitrary shapes: an accepted one has room for the machine, and not more drives
// than Firecracker supports.
func FuzzShape(f *testing.F) {
	f.Add([]byte(`{"base_mib":64,"more_mib":128,"read_only":[false,false],"device":"tap0","huge":true}`))
	f.Add([]byte(`{"base_mib":-1,"more_mib":9223372036854775807,"read_only":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var s shape
		if json.Unmarshal(data, &s) != nil {
			return
		}
		m := vmm.Manifest{MemoryMiB: 64, MaxMemoryMiB: 192, Disks: 1, MaxDisks: 2}
		if s.check(vmm.Spec{Disks: []vmm.Disk{{}}}, m) != nil {
			return
		}
		if n := len(s.ReadOnly); n < m.MaxDisks || n > maxDrives || s.memoryBytes() < 192<<20 ||
			s.memoryBytes() > 1<<46 {
			t.Errorf("check accepted %+v with %d bytes", s, s.memoryBytes())
		}
	})
}
