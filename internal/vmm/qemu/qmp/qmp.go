package qmp

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// maxLine bounds one message of QEMU. The largest expected one is an escaped console of 64 KiB.
const maxLine = 1 << 20

// writeLimit bounds how long a write may block on a full socket buffer.
const writeLimit = 20 * time.Second

// ErrClosed reports that the connection ended before the response.
var ErrClosed = errors.New("monitor connection ended")

// Error is an error response to a command.
type Error struct{ Command, Class, Desc string }

// Error returns the command and QEMU's description.
func (e *Error) Error() string { return fmt.Sprintf("%s: %s", e.Command, e.Desc) }

// Event is an asynchronous event of QEMU.
type Event struct {
	Name string
	Data json.RawMessage
}

// Client is one connection to a monitor.
type Client struct {
	conn        *net.UnixConn
	events      func(Event)
	negotiation *Call
	id          string // ID of the negotiation command and its response
	done        chan struct{}

	mu      sync.Mutex
	pending []*Call // sent but without response, in order
	err     error   // set before done is closed
}

// Call is a command in progress.
type Call struct {
	command string
	done    chan struct{}
	result  json.RawMessage // valid once done is closed
	err     error
}

// Open starts the negotiation on conn and does not wait for it. The client owns conn. events is
// called for each event in order, on the reader goroutine; it must return soon and may be nil.
func Open(conn *net.UnixConn, events func(Event)) *Client {
	c := &Client{conn: conn, events: events, id: rand.Text(), done: make(chan struct{})}
	c.negotiation = &Call{command: "qmp_capabilities", done: make(chan struct{})}
	c.send(c.negotiation, request{Execute: c.negotiation.command, ID: c.id}, nil)
	go c.read()
	return c
}

// OpenNegotiated is like Open for a connection on which the protocol is already negotiated.
func OpenNegotiated(conn *net.UnixConn, events func(Event)) *Client {
	c := &Client{conn: conn, events: events, done: make(chan struct{})}
	c.negotiation = &Call{command: "qmp_capabilities", done: make(chan struct{})}
	c.negotiation.finish(nil, nil)
	go c.read()
	return c
}

// Ready waits until the protocol is negotiated.
func (c *Client) Ready(ctx context.Context) error { return c.negotiation.Wait(ctx, nil) }

// Done is closed when the connection has ended; Err then returns the reason.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err returns why the connection ended. It returns nil before that and after Close.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(c.err, net.ErrClosed) {
		return nil
	}
	return c.err
}

// Close closes the connection and waits for the reader goroutine. QEMU continues and accepts
// another connection.
func (c *Client) Close() error {
	err := c.conn.Close()
	<-c.done
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Do sends a command and waits for the response. It decodes the result into out unless out is nil.
func (c *Client) Do(ctx context.Context, command string, args, out any, files ...*os.File) error {
	return c.Send(command, args, files...).Wait(ctx, out)
}

// Send sends a command and returns immediately. args may be nil. The files are passed as
// descriptors and may be closed afterwards. Errors are returned by Call.Wait.
func (c *Client) Send(command string, args any, files ...*os.File) *Call {
	call := &Call{command: command, done: make(chan struct{})}
	c.send(call, request{Execute: command, Arguments: args}, files)
	return call
}

// request is the JSON form of a command.
type request struct {
	Execute   string `json:"execute"`
	Arguments any    `json:"arguments,omitempty"`
	ID        string `json:"id,omitempty"`
}

func (c *Client) send(call *Call, r request, files []*os.File) {
	line, err := json.Marshal(r)
	if err != nil {
		call.finish(nil, err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		call.finish(nil, errors.Join(ErrClosed, c.err))
		return
	}
	c.pending = append(c.pending, call)
	if err := c.write(append(line, '\n'), files); err != nil {
		// The reader then fails all pending calls.
		_ = c.conn.Close()
	}
}

func (c *Client) write(line []byte, files []*os.File) error {
	if err := c.conn.SetWriteDeadline(time.Now().Add(writeLimit)); err != nil {
		return err
	}
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		rights = unix.UnixRights(fds...)
	}
	n, _, err := c.conn.WriteMsgUnix(line, rights, nil)
	for err == nil && n < len(line) {
		line = line[n:]
		n, err = c.conn.Write(line)
	}
	return err
}

// Wait waits for the response and decodes the result into out unless out is nil. If ctx ends first,
// QEMU may still execute the command.
func (call *Call) Wait(ctx context.Context, out any) error {
	select {
	case <-call.done:
	default:
		select {
		case <-call.done:
		case <-ctx.Done():
			return fmt.Errorf("monitor does not respond to %s: %w", call.command, context.Cause(ctx))
		}
	}
	if call.err != nil || out == nil {
		return call.err
	}
	if err := json.Unmarshal(call.result, out); err != nil {
		return fmt.Errorf("response to %s: %w", call.command, err)
	}
	return nil
}

func (call *Call) finish(result json.RawMessage, err error) {
	call.result, call.err = result, err
	close(call.done)
}

// read handles messages until the connection ends, then fails all pending calls.
func (c *Client) read() {
	s := bufio.NewScanner(c.conn)
	s.Buffer(make([]byte, 0, 4096), maxLine)
	err := c.consume(s)
	if err == nil {
		err = errors.New("monitor closed the connection")
	}
	_ = c.conn.Close() // the connection is of no further use
	c.mu.Lock()
	c.err = err
	waiting := c.pending
	c.pending = nil
	c.mu.Unlock()
	for _, call := range waiting {
		call.finish(nil, fmt.Errorf("%s: %w", call.command, errors.Join(ErrClosed, err)))
	}
	close(c.done)
}

func (c *Client) consume(s *bufio.Scanner) error {
	for s.Scan() {
		line := bytes.TrimSpace(s.Bytes())
		if len(line) == 0 {
			continue
		}
		m, err := parse(line)
		if err != nil {
			return err
		}
		switch {
		case m.event != "":
			if c.events != nil {
				c.events(Event{m.event, m.data})
			}
		case m.greeting:
		default:
			if err := c.handleResponse(m); err != nil {
				return err
			}
		}
	}
	return s.Err()
}

func (c *Client) handleResponse(m message) error {
	c.mu.Lock()
	if len(c.pending) == 0 {
		c.mu.Unlock()
		return errors.New("monitor sent a response without a command")
	}
	call := c.pending[0]
	if call == c.negotiation && m.id != c.id { // a response to an earlier connection
		c.mu.Unlock()
		return nil
	}
	c.pending = c.pending[1:]
	c.mu.Unlock()
	if m.err != nil {
		m.err.Command = call.command
		call.finish(nil, m.err)
		return nil
	}
	call.finish(m.data, nil)
	return nil
}

// message is one line from QEMU: a greeting, an event, an error or a result.
type message struct {
	greeting bool
	event    string
	id       string          // of an error or a result
	data     json.RawMessage // of an event or a result; owned by the message
	err      *Error
}

func parse(line []byte) (message, error) {
	var w struct {
		QMP    json.RawMessage `json:"QMP"`
		Event  string          `json:"event"`
		ID     string          `json:"id"`
		Data   json.RawMessage `json:"data"`
		Return json.RawMessage `json:"return"`
		Error  *struct {
			Class string `json:"class"`
			Desc  string `json:"desc"`
		} `json:"error"`
	}
	if err := json.Unmarshal(line, &w); err != nil {
		return message{}, fmt.Errorf("monitor message: %w", err)
	}
	switch {
	case w.QMP != nil:
		return message{greeting: true}, nil
	case w.Event != "":
		return message{event: w.Event, data: w.Data}, nil
	case w.Error != nil:
		return message{id: w.ID, err: &Error{Class: w.Error.Class, Desc: w.Error.Desc}}, nil
	case w.Return != nil:
		return message{id: w.ID, data: w.Return}, nil
	}
	return message{}, errors.New("monitor message is neither greeting, event, response nor error")
}
