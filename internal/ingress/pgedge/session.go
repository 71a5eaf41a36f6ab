package pgedge

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Sizes of the secrets of cancel keys.
const (
	secretSize     = 4  // of protocol 3.0
	longSecretSize = 32 // of protocol 3.2
)

// endWrite is how long a client may take to read the last error of a session.
const endWrite = 5 * time.Second

// session is a client that is connected to a database.
type session struct {
	endpoint Endpoint
	event    Event
	client   net.Conn
	early    []byte // what the client sent before the session began
	backend  *Backend
	pid      uint32 // with secret the client's cancel key
	secret   []byte
	began    time.Time
	done     chan struct{} // closed when it has been removed from the registry

	bytesIn, bytesOut, last atomic.Int64 // last in nanoseconds since 1970
	touched                 atomic.Int64 // when the endpoint heard of it

	in, out framer // of the client's and of the database's bytes; used by one goroutine each

	mu      sync.Mutex
	pending int    // queries without ReadyForQuery; guarded by mu, as are the fields below
	open    bool   // messages were sent that no Sync has ended
	copying bool   // the client sends the data of a COPY, in which the database ignores Sync
	tx      byte   // status of the transaction
	leaving bool   // the client has sent Terminate
	ending  *Error // why the session is to end when it is idle
	force   bool   // ends it at once
	reason  string // why it ended
}

// touch records that bytes were moved.
func (s *session) touch() {
	now := time.Now().UnixNano()
	s.last.Store(now)
	if t := s.touched.Load(); now-t > int64(time.Second) && s.touched.CompareAndSwap(t, now) {
		s.endpoint.Touch()
	}
}

// sent is called for each message of the client, before the database has it.
func (s *session) sent(kind byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch kind {
	case 'Q', 'F', 'S': // Query, FunctionCall, Sync
		s.pending++
		s.open = false
	case 'P', 'B', 'E', 'D', 'C', 'H': // Parse, Bind, Execute, Describe, Close, Flush
		s.open = true
	case 'X': // Terminate
		s.leaving = true
	}
}

// received is called for each message of the database; detail is its first byte, if it has one.
func (s *session) received(kind, detail byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch kind {
	case 'G': // CopyInResponse
		s.copying = true
	case 'Z': // ReadyForQuery
		s.pending, s.tx = max(s.pending-1, 0), detail
		if s.copying {
			s.pending, s.copying = 0, false
		}
	}
}

// busy reports whether a query runs or a transaction is open. The caller holds mu.
func (s *session) busy() bool { return s.pending > 0 || s.open || s.tx != 'I' }

// end ends the session with an error for the client: when it is idle or, with force, at once.
func (s *session) end(why *Error, force bool) {
	s.mu.Lock()
	s.ending, s.force = why, s.force || force
	force = s.force
	s.mu.Unlock()
	if force {
		_ = s.client.SetWriteDeadline(time.Now().Add(endWrite)) // a client that does not read holds it up no longer
	}
	_ = s.backend.Conn.SetReadDeadline(time.Unix(1, 0)) // wakes down, which reads
}

// due returns why the session has to end now, nil if it goes on.
func (s *session) due() *Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending == nil || s.busy() && !s.force {
		return nil
	}
	return s.ending
}

// because records the first reason that the session ended for.
func (s *session) because(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reason == "" {
		s.reason = reason
	}
}

// run copies bytes until the session has ended. It closes both connections.
func (s *session) run() {
	s.in.message = func(kind, _ byte) { s.sent(kind) }
	s.out.message = s.received
	var up sync.WaitGroup
	up.Go(s.up)
	s.down()
	_ = s.client.Close() // ends up
	_ = s.backend.Conn.Close()
	up.Wait()
}

// up copies from the client to the database.
func (s *session) up() {
	defer s.backend.Conn.Close() // ends down
	buf := make([]byte, bufferSize)
	n, err := copy(buf, s.early), error(nil)
	for s.early = nil; ; n, err = s.client.Read(buf) {
		if n > 0 {
			s.in.feed(buf[:n])
			s.bytesIn.Add(int64(n))
			s.touch()
			if _, err := s.backend.Conn.Write(buf[:n]); err != nil {
				// down reads what the database said last, and its end.
				_, _ = io.Copy(io.Discard, s.client)
				return
			}
		}
		if err != nil {
			s.because("the client closed the connection")
			return
		}
	}
}

// down copies from the database to the client. It alone writes to the client, so that errors of the edge come between
// messages.
func (s *session) down() {
	buf := make([]byte, bufferSize)
	for {
		if why := s.due(); why != nil {
			s.because(why.Message)
			s.farewell(why)
			return
		}
		n, err := s.backend.Reader.Read(buf)
		if n > 0 {
			s.out.feed(buf[:n])
			s.bytesOut.Add(int64(n))
			s.touch()
			if _, err := s.client.Write(buf[:n]); err != nil {
				s.because("the client closed the connection")
				return
			}
		}
		if err != nil && isTimeout(err) {
			_ = s.backend.Conn.SetReadDeadline(time.Time{}) // before due is looked at, so that no call of end is missed
			continue
		}
		if err != nil {
			s.lost()
			return
		}
	}
}

// lost handles a database that closed the connection.
func (s *session) lost() {
	s.mu.Lock()
	leaving := s.leaving
	expected := leaving || s.reason != ""
	s.mu.Unlock()
	if leaving {
		s.because("the client closed the connection")
	}
	s.because("the database closed the connection")
	if !expected && s.out.kind != 'E' { // the database did not say why
		s.farewell(&Error{
			Code: codeConnectionLost, Message: "the connection to the database was lost",
			Hint: "Connect again. Whether the last statement was committed is not known.",
		})
	}
}

// farewell sends the client a last error, unless it is in the middle of a message.
func (s *session) farewell(why *Error) {
	if !s.out.between() {
		return
	}
	_ = s.client.SetWriteDeadline(time.Now().Add(endWrite))
	_, _ = s.client.Write(why.encode()) // the connection ends in any case
}

// framer follows the messages of one direction.
type framer struct {
	message func(kind, detail byte) // called for each message; detail is the first byte of its body, if it has one
	kind    byte                    // of the last message that began

	head   [5]byte
	have   int    // bytes of head
	body   uint32 // bytes of the body that are still to come
	called bool   // for this message
	broken bool   // the bytes are not messages; nothing more is known
}

// between reports whether the next byte begins a message.
func (f *framer) between() bool { return f.have == 0 && !f.broken }

// feed takes the next bytes.
func (f *framer) feed(p []byte) {
	for len(p) > 0 && !f.broken {
		if f.have < len(f.head) {
			n := copy(f.head[f.have:], p)
			f.have, p = f.have+n, p[n:]
			if f.have < len(f.head) {
				return
			}
			length := binary.BigEndian.Uint32(f.head[1:])
			if length < 4 {
				f.broken = true
				return
			}
			f.kind, f.body, f.called = f.head[0], length-4, false
		}
		if !f.called && (f.body == 0 || len(p) > 0) {
			f.called = true
			detail := byte(0)
			if f.body > 0 {
				detail = p[0]
			}
			f.message(f.kind, detail)
		}
		n := min(uint64(f.body), uint64(len(p)))
		f.body, p = f.body-uint32(n), p[n:] //nolint:gosec // at most body
		if f.body == 0 {
			f.have = 0
		}
	}
}

// registry has the sessions by the cancel keys of their clients, and by endpoint.
type registry struct {
	mu        sync.Mutex
	keys      map[uint32]*session
	endpoints map[string]*sessions
}

// sessions are those of one endpoint.
type sessions struct {
	places int // taken, by sessions and by clients that are about to have one
	all    map[*session]bool
	last   int64 // time of activity of sessions that have ended
}

// take takes a place among the sessions of an endpoint, and reports whether there was one.
func (r *registry) take(endpoint string, most int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.endpoints[endpoint]
	if e == nil {
		e = &sessions{all: map[*session]bool{}}
		r.endpoints[endpoint] = e
	}
	if e.places >= most {
		return false
	}
	e.places++
	return true
}

// give gives a place back.
func (r *registry) give(endpoint string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endpoints[endpoint].places--
}

// add gives a session its cancel key.
func (r *registry) add(s *session, long bool) {
	s.secret = make([]byte, secretSize)
	if long {
		s.secret = make([]byte, longSecretSize)
	}
	_, _ = rand.Read(s.secret) // never fails
	r.mu.Lock()
	defer r.mu.Unlock()
	for s.pid == 0 || r.keys[s.pid] != nil {
		var b [4]byte
		_, _ = rand.Read(b[:])                              // never fails
		s.pid = binary.BigEndian.Uint32(b[:]) & (1<<31 - 1) // some clients take it for signed
	}
	r.keys[s.pid] = s
	r.endpoints[s.event.Endpoint].all[s] = true
}

func (r *registry) remove(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.keys, s.pid)
	e := r.endpoints[s.event.Endpoint]
	delete(e.all, s)
	e.last = max(e.last, s.last.Load())
	close(s.done)
}

// find returns the session with a cancel key, nil if there is none.
func (r *registry) find(pid uint32, secret []byte) *session {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.keys[pid]; s != nil && subtle.ConstantTimeCompare(s.secret, secret) == 1 {
		return s
	}
	return nil
}

// of returns the sessions of an endpoint, or of all with "".
func (r *registry) of(endpoint string) []*session {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*session
	for id, e := range r.endpoints {
		if endpoint == "" || id == endpoint {
			for s := range e.all {
				all = append(all, s)
			}
		}
	}
	return all
}
