package mux

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func channel(t *testing.T) (host, guest net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "channel")
		if ends[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		t.Cleanup(func() { _ = ends[i].Close() })
	}
	return ends[0], ends[1]
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// echo is a handler that sends back every message until the end, and records the greetings.
type echo struct {
	ctx    context.Context
	wg     sync.WaitGroup
	mu     sync.Mutex
	hellos []Hello
	ended  []error
}

func (e *echo) Hello(h Hello) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hellos = append(e.hellos, h)
}

func (e *echo) Stream(st *Stream, first []byte) {
	first = append([]byte(nil), first...)
	e.wg.Go(func() {
		err := st.Send(e.ctx, first)
		for err == nil {
			var b []byte
			if b, err = st.Recv(e.ctx); err == nil {
				err = st.Send(e.ctx, b)
			}
		}
		if err == io.EOF {
			err = st.SendFin(e.ctx, nil)
		}
		e.mu.Lock()
		e.ended = append(e.ended, err)
		e.mu.Unlock()
		st.Drop()
	})
}

// serve runs a guest end that echoes, until the test ends.
func serve(t *testing.T, conn net.Conn) (*echo, *Guest) {
	t.Helper()
	e := &echo{ctx: t.Context()}
	g := NewGuest(conn)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Serve(e)
		e.wg.Wait()
	}()
	t.Cleanup(func() {
		_ = conn.Close()
		<-done
	})
	return e, g
}

func greet(t *testing.T, conn net.Conn, nonce byte, resync bool) *Host {
	t.Helper()
	h := NewHost(conn, Hello{Generation: 5, Nonce: [16]byte{nonce}}, resync)
	t.Cleanup(func() { _ = h.Close() })
	return h
}

func exchange(t *testing.T, h *Host, message []byte) {
	t.Helper()
	ctx := within(t)
	st, err := h.Open(ctx, message, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := st.Recv(ctx)
	if err != nil || !bytes.Equal(got, message) {
		t.Fatalf("got %d bytes, %v, want %d", len(got), err, len(message))
	}
	if _, err := st.Recv(ctx); err != io.EOF {
		t.Fatalf("Recv after the last message: got error %v, want EOF", err)
	}
	st.Drop()
}

func TestMessagesOfAllSizes(t *testing.T) {
	host, guest := channel(t)
	e, _ := serve(t, guest)
	h := greet(t, host, 1, false)
	for _, n := range []int{0, 1, 7, 4096, 65000, MaxMessage} {
		exchange(t, h, bytes.Repeat([]byte{byte(n)}, n))
	}
	if err := h.Greeted(within(t)); err != nil {
		t.Fatal(err)
	}
	if len(e.hellos) != 1 || e.hellos[0].Generation != 5 {
		t.Errorf("got greetings %+v", e.hellos)
	}
	if _, err := h.Open(within(t), make([]byte, MaxMessage+1), true, nil); err == nil {
		t.Error("Send of a message that is too long: got no error")
	}
}

// TestManyStreamsKeepTheirOrder sends more than all windows through many streams at once.
func TestManyStreamsKeepTheirOrder(t *testing.T) {
	host, guest := channel(t)
	serve(t, guest)
	h := greet(t, host, 1, false)
	ctx := within(t)
	var wg sync.WaitGroup
	defer wg.Wait()
	for range 8 {
		st, err := h.Open(ctx, binary.BigEndian.AppendUint32(nil, 0), false, nil)
		if err != nil {
			t.Fatal(err)
		}
		const count = 60
		wg.Go(func() {
			for i := uint32(1); i < count; i++ {
				if err := st.Send(ctx, binary.BigEndian.AppendUint32(make([]byte, 20_000), i)); err != nil {
					t.Errorf("send: %v", err)
					return
				}
			}
			if err := st.SendFin(ctx, nil); err != nil {
				t.Errorf("end: %v", err)
			}
		})
		wg.Go(func() {
			for i := uint32(0); i < count; i++ {
				b, err := st.Recv(ctx)
				if err != nil || binary.BigEndian.Uint32(b[len(b)-4:]) != i {
					t.Errorf("message %d: got %d bytes, %v", i, len(b), err)
					return
				}
			}
			if _, err := st.Recv(ctx); err != io.EOF {
				t.Errorf("Recv at the end: got error %v", err)
			}
		})
	}
}

// TestSlowReaderHoldsOnlyItsWindow checks that a stream without a receiver stops its sender, and no other.
func TestSlowReaderHoldsOnlyItsWindow(t *testing.T) {
	host, guest := channel(t)
	serve(t, guest)
	h := greet(t, host, 1, false)
	slow, err := h.Open(within(t), []byte("x"), false, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Reset(0, "")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	sent := 0
	for err == nil {
		if err = slow.Send(ctx, make([]byte, 32<<10)); err == nil {
			sent += 32 << 10
		}
	}
	if !errors.Is(err, context.DeadlineExceeded) || sent > 4*Window {
		t.Errorf("Send without a receiver: sent %d bytes, error %v", sent, err)
	}
	exchange(t, h, []byte("others go on"))
}

func TestResetEndsBothSides(t *testing.T) {
	host, guest := channel(t)
	e, _ := serve(t, guest)
	h := greet(t, host, 1, false)
	ctx := within(t)
	st, err := h.Open(ctx, []byte("x"), false, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.Recv(ctx); err != nil {
		t.Fatal(err)
	}
	st.Reset(9, "enough")
	if err := st.Send(ctx, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("Send after a reset: got error %v", err)
	}
	exchange(t, h, []byte("y")) // the reset is read before this message
	e.wg.Wait()
	var reset *ResetError
	for _, err := range e.ended {
		if errors.As(err, &reset) {
			break
		}
	}
	if reset == nil || reset.Code != 9 || reset.Text != "enough" {
		t.Errorf("the guest's stream ended with %v", e.ended)
	}
}

// TestHelloEndsTheSessionBefore covers the state after a restore, when the guest end has a session that the new host
// end does not know.
func TestHelloEndsTheSessionBefore(t *testing.T) {
	host, guest := channel(t)
	e, _ := serve(t, guest)
	old := NewHost(keepOpen{host}, Hello{Nonce: [16]byte{1}}, false)
	ctx := within(t)
	st, err := old.Open(ctx, []byte("x"), false, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.Recv(ctx); err != nil { // the guest has the stream
		t.Fatal(err)
	}
	if err := old.Greeted(ctx); err != nil {
		t.Fatal(err)
	}
	_ = host.SetReadDeadline(time.Unix(1, 0)) // ends the old host end's reader, not the channel
	_ = old.Close()
	_ = host.SetReadDeadline(time.Time{})
	h := greet(t, host, 2, false)
	exchange(t, h, []byte("new"))
	e.wg.Wait()
	if len(e.hellos) != 2 || !errors.Is(errors.Join(e.ended...), ErrLost) {
		t.Errorf("got greetings %+v, streams ended by %v", e.hellos, e.ended)
	}
}

type keepOpen struct{ net.Conn }

func (keepOpen) Close() error { return nil }

// TestResyncFindsTheGuest leaves every part of a frame of an earlier host in the channel.
func TestResyncFindsTheGuest(t *testing.T) {
	var whole []byte
	whole = appendGreeting(whole, helloMagic, Hello{Version: Version, Nonce: [16]byte{1}})
	whole = appendHeader(whole, typeOpen, 0, 5, 1)
	whole = append(whole, "first"...)
	whole = appendHeader(whole, typeData, 0, MaxMessage, 1)
	whole = append(whole, make([]byte, 300)...)
	for cut := 0; cut <= len(whole); cut += 1 + cut/80 {
		host, guest := channel(t)
		serve(t, guest)
		if _, err := host.Write(whole[:cut]); err != nil {
			t.Fatal(err)
		}
		h := greet(t, host, 2, true)
		exchange(t, h, []byte("found"))
		_ = h.Close()
	}
}

// TestLeftoversAreSkipped checks that frames of an earlier guest end do not reach the new host end.
func TestLeftoversAreSkipped(t *testing.T) {
	host, guest := channel(t)
	left := appendGreeting(nil, ackMagic, Hello{Version: Version, Nonce: [16]byte{1}})
	left = appendHeader(left, typeData, 0, 3, 1)
	left = append(left, "old"...)
	left = append(left, ackMagic[:]...)
	if _, err := guest.Write(left); err != nil {
		t.Fatal(err)
	}
	serve(t, guest)
	exchange(t, greet(t, host, 2, false), []byte("new"))
}

// TestQuiet checks that an end writes nothing after a last message until its release, and then everything.
func TestQuiet(t *testing.T) {
	host, guest := channel(t)
	e := &echo{ctx: t.Context()}
	var last *Stream
	opened := make(chan *Stream, 2)
	g := NewGuest(guest)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Serve(handlerFunc(func(st *Stream, _ []byte) { opened <- st }))
	}()
	defer func() { _ = guest.Close(); <-done }()
	h := greet(t, host, 1, false)
	ctx := within(t)
	other, err := h.Open(ctx, []byte("other"), false, nil)
	if err != nil {
		t.Fatal(err)
	}
	far := <-opened
	st, err := h.OpenLast(ctx, []byte("freeze"))
	if err != nil {
		t.Fatal(err)
	}
	last = <-opened
	if err := other.Send(ctx, []byte("held")); err != nil {
		t.Fatal(err)
	}
	if err := last.SendLast(ctx, []byte("frozen")); err != nil {
		t.Fatal(err)
	}
	if err := far.Send(ctx, []byte("held too")); err != nil {
		t.Fatal(err)
	}
	if b, err := st.Recv(ctx); string(b) != "frozen" || err != nil {
		t.Fatalf("got %q, %v", b, err)
	}
	soon, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if b, err := other.Recv(soon); err == nil {
		t.Errorf("the guest wrote %q while quiet", b)
	}
	if b, err := far.Recv(soon); err == nil {
		t.Errorf("the host wrote %q while quiet", b)
	}
	h.Release()
	if b, err := far.Recv(ctx); string(b) != "held" || err != nil {
		t.Errorf("after release the guest got %q, %v", b, err)
	}
	g.Release()
	if b, err := other.Recv(ctx); string(b) != "held too" || err != nil {
		t.Errorf("after release the host got %q, %v", b, err)
	}
	_ = e
}

type handlerFunc func(*Stream, []byte)

func (handlerFunc) Hello(Hello)                   {}
func (f handlerFunc) Stream(st *Stream, b []byte) { f(st, b) }

// TestHostileGuests checks that the host end soon ends the session with ErrLost, whatever a guest sends.
func TestHostileGuests(t *testing.T) {
	flood := appendHeader(nil, typeData, 0, 60_000, 1)
	flood = append(flood, make([]byte, 60_000)...)
	for name, attack := range map[string][]byte{
		"stream never opened": appendHeader(nil, typeData, 0, 0, 99),
		"opens a stream":      appendHeader(nil, typeOpen, 0, 0, 1),
		"unknown type":        appendHeader(nil, 77, 0, 0, 1),
		"too much data":       bytes.Repeat(flood, 6),
		"too many messages":   bytes.Repeat(appendHeader(nil, typeData, 0, 0, 1), Window/overhead+1),
		"too much credit":     append(appendHeader(nil, typeCredit, 0, 4, 1), 0xFF, 0xFF, 0xFF, 0xFF),
		"short credit":        appendHeader(nil, typeCredit, 0, 0, 1),
		"message after the end": append(appendHeader(nil, typeData, flagFin, 0, 1),
			appendHeader(nil, typeData, 0, 0, 1)...),
		"acks twice": appendGreeting(nil, ackMagic, Hello{Version: Version, Nonce: [16]byte{1}}),
	} {
		t.Run(name, func(t *testing.T) {
			host, guest := channel(t)
			h := greet(t, host, 1, false)
			ctx := within(t)
			if _, err := h.Open(ctx, nil, false, nil); err != nil {
				t.Fatal(err)
			}
			ack := appendGreeting(nil, ackMagic, Hello{Version: Version, Nonce: [16]byte{1}})
			go func() { _, _ = guest.Write(append(ack, attack...)) }() // fails when the host has seen enough
			select {
			case <-h.Done():
			case <-ctx.Done():
				t.Fatal("the session has not ended")
			}
			if !errors.Is(h.Err(), ErrLost) {
				t.Errorf("session ended with %v, want ErrLost", h.Err())
			}
		})
	}
}

// FuzzHost checks that no bytes from a guest make the host end panic or hang.
func FuzzHost(f *testing.F) {
	f.Add(appendHeader(nil, typeData, flagFin, 0, 1))
	f.Add(append(appendHeader(nil, typeReset, 0, 4, 1), 0, 1, 'h', 'i'))
	f.Add(append(appendHeader(nil, typeCredit, 0, 4, 1), 0, 0, 0, 32))
	f.Fuzz(func(t *testing.T, b []byte) {
		ack := appendGreeting(nil, ackMagic, Hello{Version: Version, Nonce: [16]byte{1}})
		h := NewHost(&script{r: bytes.NewReader(append(ack, b...))}, Hello{Nonce: [16]byte{1}}, false)
		if st, err := h.Open(t.Context(), []byte("x"), false, nil); err == nil {
			for err == nil {
				_, err = st.Recv(t.Context())
			}
		}
		<-h.Done()
		_ = h.Close()
	})
}

// FuzzGuest checks that a hello behind enough zeros begins a session, whatever is in the channel.
func FuzzGuest(f *testing.F) {
	f.Add([]byte{})
	f.Add(appendHeader(nil, typeOpen, 0, 5, 1))
	f.Add(appendGreeting(nil, helloMagic, Hello{Version: Version}))
	f.Fuzz(func(t *testing.T, b []byte) {
		b = append(b, make([]byte, resyncZeros)...)
		b = appendGreeting(b, helloMagic, Hello{Version: Version, Nonce: [16]byte{42}})
		s := &script{r: bytes.NewReader(b)}
		_ = NewGuest(s).Serve(handlerFunc(func(st *Stream, _ []byte) { st.Drop() }))
		want := appendGreeting(nil, ackMagic, Hello{Version: Version, Nonce: [16]byte{42}})
		if !bytes.HasSuffix(s.w.Bytes(), want) {
			t.Errorf("the guest's last bytes are not an ack of the hello: %x", s.w.Bytes())
		}
	})
}

// script is a channel with given input, which records its output.
type script struct {
	r  *bytes.Reader
	mu sync.Mutex
	w  bytes.Buffer
}

func (s *script) Read(b []byte) (int, error) { return s.r.Read(b) }
func (s *script) Close() error               { return nil }

func (s *script) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(b)
}

// ack is what a guest end responds to a hello with nonce 1.
func ackOf() []byte {
	return appendGreeting(nil, ackMagic, Hello{Version: Version, Nonce: [16]byte{1}})
}

func queued(m *mux) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.queue)
}

// A peer that sends without reading gets no credit beyond the bound of the queue; one that reads again gets it.
func TestCreditKeepsToTheQueue(t *testing.T) {
	host, guest := channel(t)
	h := greet(t, host, 1, false)
	ctx := within(t)
	st, err := h.Open(ctx, nil, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	// The host's queue fills up, because the guest end does not read.
	filler, err := h.Open(ctx, nil, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	fill := func() {
		h.m.mu.Lock()
		defer h.m.mu.Unlock()
		for len(h.m.queue) <= MaxQueue {
			h.m.queueFrame(typeData, 0, filler.id, make([]byte, MaxMessage))
		}
	}
	fill()
	h.m.put()
	for queued(h.m) > 0 { // until the writer blocks with all of it, more than the channel takes
		runtime.Gosched()
	}
	fill()
	full := queued(h.m)
	const messages = Window / (1<<10 + overhead)
	wire := ackOf()
	for range messages {
		wire = append(appendHeader(wire, typeData, 0, 1<<10, st.id), make([]byte, 1<<10)...)
	}
	sent := make(chan error, 1)
	go func() { _, err := guest.Write(wire); sent <- err }()
	for range messages {
		if _, err := st.Recv(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if got := queued(h.m); got != full {
		t.Errorf("the queue grew from %d to %d bytes, want none beyond its bound", full, got)
	}
	// The guest end reads: the credit that was held back arrives.
	h.m.put()
	r := newReader(guest)
	if _, err := r.seek(helloMagic); err != nil {
		t.Fatal(err)
	}
	for {
		hd, _, err := r.frame()
		if err != nil {
			t.Fatal(err)
		}
		if hd.kind == typeCredit && hd.stream == st.id {
			return
		}
	}
}

// meter refuses more than it has.
type meter struct {
	mu   sync.Mutex
	left int64
}

var errRefused = errors.New("no memory for it")

func (m *meter) Take(n int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n > m.left {
		return errRefused
	}
	m.left -= n
	return nil
}

func (m *meter) Give(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left += n
}

// A message that the meter refuses ends its stream, and no other one; what was counted is returned.
func TestMeterBoundsAStream(t *testing.T) {
	host, guest := channel(t)
	h := greet(t, host, 1, false)
	ctx := within(t)
	const room = 10 << 10
	count := &meter{left: room}
	st, err := h.Open(ctx, nil, false, count)
	if err != nil {
		t.Fatal(err)
	}
	other, err := h.Open(ctx, nil, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	wire := ackOf()
	for range 20 {
		wire = append(appendHeader(wire, typeData, 0, 1<<10, st.id), make([]byte, 1<<10)...)
	}
	wire = append(appendHeader(wire, typeData, 0, 2, other.id), "ok"...)
	go func() { _, _ = guest.Write(wire) }() // fails if the session ends, which the test notices
	if b, err := other.Recv(ctx); err != nil || string(b) != "ok" {
		t.Fatalf("the other stream received %q, %v", b, err)
	}
	got := 0
	for {
		b, err := st.Recv(ctx)
		if err != nil {
			if !errors.Is(err, errRefused) {
				t.Errorf("the stream ended with %v, want the meter's error", err)
			}
			break
		}
		got += cost(b)
	}
	if got > room || got <= room-(1<<10+overhead) {
		t.Errorf("%d bytes arrived, want as many as fit into %d", got, room)
	}
	st.Drop()
	if count.left != room {
		t.Errorf("the meter has %d bytes after the stream has ended, want %d", count.left, room)
	}
	r := newReader(guest)
	if _, err := r.seek(helloMagic); err != nil {
		t.Fatal(err)
	}
	for {
		hd, _, err := r.frame()
		if err != nil {
			t.Fatal(err)
		}
		if hd.kind == typeReset && hd.stream == st.id {
			return
		}
	}
}

// A dropped stream returns what was not received.
func TestDropReturnsToTheMeter(t *testing.T) {
	host, guest := channel(t)
	h := greet(t, host, 1, false)
	ctx := within(t)
	count := &meter{left: Window}
	st, err := h.Open(ctx, nil, false, count)
	if err != nil {
		t.Fatal(err)
	}
	marker, err := h.Open(ctx, nil, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	wire := append(appendHeader(ackOf(), typeData, 0, 1<<10, st.id), make([]byte, 1<<10)...)
	wire = appendHeader(wire, typeData, flagFin, 0, marker.id)
	if _, err := guest.Write(wire); err != nil {
		t.Fatal(err)
	}
	if _, err := marker.Recv(ctx); err != io.EOF {
		t.Fatal(err)
	}
	if count.left != Window-1<<10-overhead {
		t.Errorf("the meter has %d bytes, want one message fewer than %d", count.left, Window)
	}
	st.Reset(0, "")
	if count.left != Window {
		t.Errorf("the meter has %d bytes after the reset, want %d", count.left, Window)
	}
}

// A channel that moved much keeps only small buffers.
func TestIdleChannelKeepsSmallBuffers(t *testing.T) {
	host, guest := channel(t)
	e := &echo{ctx: within(t)}
	g := NewGuest(guest)
	done := make(chan error, 1)
	go func() { done <- g.Serve(e) }()
	h := greet(t, host, 1, false)
	st, err := h.Open(within(t), []byte("x"), false, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.Recv(within(t)); err != nil {
		t.Fatal(err)
	}
	for range 64 {
		if err := st.Send(within(t), make([]byte, MaxMessage)); err != nil {
			t.Fatal(err)
		}
		if _, err := st.Recv(within(t)); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 { // what is read behind the large messages
		if err := st.Send(within(t), []byte("small")); err != nil {
			t.Fatal(err)
		}
		if _, err := st.Recv(within(t)); err != nil {
			t.Fatal(err)
		}
	}
	_ = h.Close()
	_ = guest.Close()
	if err := <-done; err != nil && !errors.Is(err, net.ErrClosed) {
		t.Fatal(err)
	}
	e.wg.Wait()
	for name, m := range map[string]*mux{"host": h.m, "guest": g.m} {
		m.mu.Lock()
		if kept := cap(m.queue) + cap(m.spare); kept > 2*maxIdleBuffer {
			t.Errorf("the %s end keeps buffers of %d bytes, want at most %d", name, kept, 2*maxIdleBuffer)
		}
		m.mu.Unlock()
	}
	if n := len(g.r.buf); n > bufferMin {
		t.Errorf("the guest end keeps a buffer of %d bytes for reading, want %d", n, bufferMin)
	}
}
