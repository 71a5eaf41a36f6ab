package replication

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pandastack/pandastack/internal/control/database/wal"
)

// Stream is the log of a timeline as the server sends it. It uses the connection until the timeline ends.
//
// One goroutine may call Next while another calls Acknowledge.
type Stream struct {
	c    *Conn
	idle time.Duration
}

// Message is a part of the log, or, without Data, a sign of life.
type Message struct {
	Start     wal.LSN   // of Data
	Data      []byte    // valid until the following call of Next
	ServerEnd wal.LSN   // end of the log on the server's disk, read before Sent; without Data, of what was sent
	Sent      time.Time // by the server's clock
	Reply     bool      // the server wants an acknowledgement now
}

// TimelineEnd is the error of Next after the last byte of a timeline.
type TimelineEnd struct {
	Next wal.Timeline
	At   wal.LSN
}

// Error implements error.
func (e *TimelineEnd) Error() string { return fmt.Sprintf("timeline %v continues at %v", e.Next, e.At) }

// Start begins to stream the log of a timeline from a position on. The connection is given up if the server sends
// nothing for idle; the server sends a sign of life twice in its wal_sender_timeout.
func (c *Conn) Start(slot string, at wal.LSN, t wal.Timeline, idle time.Duration) (*Stream, error) {
	if err := CheckSlotName(slot); err != nil {
		return nil, err
	}
	defer c.watch()()
	sql := fmt.Sprintf("START_REPLICATION SLOT %s PHYSICAL %v TIMELINE %d", slot, at, uint32(t))
	if err := c.send(sql); err != nil {
		return nil, err
	}
	message, err := c.receive()
	if err != nil {
		return nil, err
	}
	if _, ok := message.(*pgproto3.CopyBothResponse); !ok {
		return nil, fmt.Errorf("START_REPLICATION: unexpected message %T of the server", message)
	}
	return &Stream{c: c, idle: idle}, nil
}

var errShutdown = errors.New("the server ended the stream, for it shuts down")

// Next waits for a message. At the end of the timeline its error is a *TimelineEnd, and the connection can be used for
// commands again.
func (s *Stream) Next() (Message, error) {
	timer := time.AfterFunc(s.idle, func() { _ = s.c.net.Close() }) // the reader reports it
	defer timer.Stop()
	message, err := s.c.receive()
	if err != nil {
		return Message{}, err
	}
	switch m := message.(type) {
	case *pgproto3.CopyData:
		return parseMessage(m.Data)
	case *pgproto3.CopyDone:
		return Message{}, s.end()
	case *pgproto3.CommandComplete:
		return Message{}, errShutdown
	}
	return Message{}, fmt.Errorf("unexpected message %T of the server in the log", message)
}

// Buffered reports whether a part of a further message has arrived.
func (s *Stream) Buffered() bool { return s.c.front.ReadBufferLen() > 0 || s.c.net.r.Buffered() > 0 }

func (s *Stream) end() error {
	defer s.c.watch()()
	s.c.front.Send(&pgproto3.CopyDone{})
	if err := s.c.front.Flush(); err != nil {
		return s.c.wrap(err)
	}
	rows, err := s.c.rows()
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return errShutdown
	}
	if len(rows) != 1 || len(rows[0]) != 2 {
		return errors.New("the server did not name the next timeline")
	}
	next, err1 := parseTimeline(rows[0][0])
	at, err2 := wal.ParseLSN(string(rows[0][1]))
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("next timeline: %w", err)
	}
	return &TimelineEnd{next, at}
}

// Acknowledge reports what was received and what is on the disk.
func (s *Stream) Acknowledge(received, flushed wal.LSN, now time.Time) error {
	data := make([]byte, 1, 34)
	data[0] = 'r'
	for _, v := range []uint64{uint64(received), uint64(flushed), 0, uint64(wal.Micros(now))} {
		data = binary.BigEndian.AppendUint64(data, v)
	}
	s.c.front.Send(&pgproto3.CopyData{Data: append(data, 0)})
	return s.c.wrap(s.c.front.Flush())
}

// parseMessage parses a message of the stream.
func parseMessage(data []byte) (Message, error) {
	number := func(at int) uint64 { return binary.BigEndian.Uint64(data[at:]) }
	switch {
	case len(data) >= 25 && data[0] == 'w':
		m := Message{
			Start: wal.LSN(number(1)), Data: data[25:],
			ServerEnd: wal.LSN(number(9)), Sent: wal.Time(int64(number(17))),
		}
		if m.Start+wal.LSN(len(m.Data)) < m.Start {
			return Message{}, fmt.Errorf("the server sent %d bytes of the log at %v", len(m.Data), m.Start)
		}
		return m, nil
	case len(data) == 18 && data[0] == 'k':
		return Message{ServerEnd: wal.LSN(number(1)), Sent: wal.Time(int64(number(9))), Reply: data[17] != 0}, nil
	}
	return Message{}, fmt.Errorf("the server sent an invalid message of %d bytes in the log", len(data))
}
