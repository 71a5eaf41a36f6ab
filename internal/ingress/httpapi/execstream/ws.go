package execstream

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
	"github.com/pandastack/pandastack/internal/lib/budget"
)

// Bounds of a WebSocket.
const (
	maxMessage  = 4 << 20 // bytes of one message of a client
	maxCommands = 64      // in flight on one connection

	replyTimeout = 10 * time.Second // for the last message to a client
)

// Accept upgrades a request to a WebSocket with one of the given subprotocols.
//
// Any origin may connect: clients authenticate with a key, which no browser adds on its own.
func Accept(w http.ResponseWriter, r *http.Request, protocols ...string) (*websocket.Conn, error) {
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		InsecureSkipVerify: true,
		Subprotocols:       protocols,
		CompressionMode:    websocket.CompressionDisabled,
	})
	if err != nil {
		return nil, api.Wrap(api.Invalid, err, "websocket handshake: "+err.Error())
	}
	conn.SetReadLimit(maxMessage)
	return conn, nil
}

// messageCost is how much memory a byte of a message takes until it was handled.
const messageCost = 3

// readMessage reads a message of a client, paid by the account of ctx. The caller calls done when the message was
// handled.
func readMessage(ctx context.Context, conn *websocket.Conn) (websocket.MessageType, []byte, func(), error) {
	memory := budget.FromContext(ctx)
	kind, r, err := conn.Reader(ctx)
	if err != nil {
		return 0, nil, nil, err
	}
	data, err := io.ReadAll(memory.Reader(r, messageCost))
	if _, refused := errors.AsType[*budget.Error](err); refused {
		// The client learns the reason from the close; what was read before is lost with the connection.
		_ = conn.Close(websocket.StatusTryAgainLater, "the message takes more memory than there is now")
	}
	return kind, data, func() { memory.Give(messageCost * int64(len(data))) }, err
}

// socket is a connection that is kept alive and to which several goroutines may write.
type socket struct {
	conn *websocket.Conn
	wg   sync.WaitGroup
}

// keepAlive sends pings until ctx ends, so that proxies keep the connection, and calls cancel when the connection is
// lost. A missing pong does not mean that: it may wait behind input that a program does not read.
func (s *socket) keepAlive(ctx context.Context, cancel context.CancelCauseFunc) {
	s.wg.Go(func() {
		tick := time.NewTicker(pingEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				waited, stop := context.WithTimeout(ctx, pingEvery/2)
				err := s.conn.Ping(waited)
				stop()
				if err != nil && !errors.Is(err, context.DeadlineExceeded) {
					cancel(err)
					return
				}
			}
		}
	})
}

func (s *socket) send(ctx context.Context, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.conn.Write(ctx, websocket.MessageText, b)
}

// command is a message of a client of exec/ws.
type command struct {
	ID     json.RawMessage `json:"id"`
	Cancel bool            `json:"cancel"`
	api.ExecRequest
}

// reply is a message to a client of exec/ws; exactly one of Stream, Exit and Error is set.
type reply struct {
	ID          json.RawMessage `json:"id"`
	Stream      string          `json:"stream,omitempty"`
	Data        string          `json:"data,omitempty"`
	Exit        *int            `json:"exit,omitempty"`
	OutOfMemory bool            `json:"out_of_memory,omitempty"` // with Exit
	DurationMS  *int64          `json:"duration_ms,omitempty"`   // with Exit
	Error       string          `json:"error,omitempty"`
	Code        api.Code        `json:"code,omitempty"`
}

var errCanceled = errors.New("command was canceled")

// commandMux runs the commands of one connection.
type commandMux struct {
	socket
	guest    guestapi.Guest
	defaults api.ExecRequest

	mu      sync.Mutex
	running map[string]context.CancelCauseFunc // guarded by mu, by the client's id as JSON
}

// ExecMux serves exec/ws on conn: many commands side by side, each with an id of the client.
//
// It returns when the client closes or ctx ends, and kills the commands that still run then. Commands without a user
// or directory get those of defaults.
func ExecMux(ctx context.Context, g guestapi.Guest, conn *websocket.Conn, defaults api.ExecRequest) error {
	ctx, cancel := context.WithCancelCause(ctx)
	m := &commandMux{
		socket:   socket{conn: conn},
		guest:    g,
		defaults: defaults,
		running:  map[string]context.CancelCauseFunc{},
	}
	defer conn.CloseNow() //nolint:errcheck // closed properly below, or lost
	defer m.wg.Wait()
	defer cancel(errors.New("connection ended"))
	m.keepAlive(ctx, cancel)
	for {
		kind, data, done, err := readMessage(ctx, conn)
		if err != nil {
			return nil //nolint:nilerr // the client closed or is gone
		}
		if kind != websocket.MessageText {
			return conn.Close(websocket.StatusUnsupportedData, "send JSON text")
		}
		if err := m.handle(ctx, data, done); err != nil {
			return nil //nolint:nilerr // the client cannot be written to
		}
	}
}

// handle handles one message. It returns only errors of writing to the client. It calls done when the message, or the
// command that it starts, is no longer in memory.
func (m *commandMux) handle(ctx context.Context, data []byte, done func()) error {
	started := false
	defer func() {
		if !started {
			done()
		}
	}()
	var c command
	if err := json.Unmarshal(data, &c); err != nil {
		return m.fail(
			ctx,
			nil,
			api.Errorf(api.Invalid, "message is not JSON of the form {id, cmd} or {id, cancel}: %w", err),
		)
	}
	key := string(c.ID)
	if key == "" || key == "null" {
		return m.fail(ctx, nil, api.Errorf(api.Invalid, "id: is missing: send a different one with each command"))
	}
	m.mu.Lock()
	stop, known := m.running[key]
	full := len(m.running) >= maxCommands
	m.mu.Unlock()
	if c.Cancel {
		if known {
			stop(errCanceled)
		}
		return nil
	}
	if c.User == "" {
		c.User = m.defaults.User
	}
	if c.Cwd == "" {
		c.Cwd = m.defaults.Cwd
	}
	err := c.Validate()
	switch {
	case err != nil:
	case known:
		err = api.Errorf(api.Conflict, "id: a command with this id is running: use another one")
	case full:
		err = api.Errorf(
			api.QuotaExceeded,
			"%d commands are running on this connection: wait for some to end",
			maxCommands,
		)
	}
	if err != nil {
		return m.fail(ctx, c.ID, err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	m.mu.Lock()
	m.running[key] = cancel
	m.mu.Unlock()
	started = true
	m.wg.Go(func() {
		defer done()
		m.exec(ctx, cancel, key, c)
	})
	return nil
}

func (m *commandMux) exec(ctx context.Context, cancel context.CancelCauseFunc, key string, c command) {
	defer cancel(nil)
	out := textSink{send: func(s guestapi.Stream, text string) error {
		return m.send(ctx, reply{ID: c.ID, Stream: streamName(s), Data: text})
	}}
	run, err := guestexec.Stream(ctx, m.guest, execCommand(c.ExecRequest), guestexec.Sink{Output: out.output})
	if errors.Is(err, guestexec.ErrOvertime) {
		run.Exit.TimedOut, err = true, nil
	}
	err = commandError(run, err)
	// The id is free again before the client reads of the end, so that the client may use it at once.
	m.mu.Lock()
	delete(m.running, key)
	m.mu.Unlock()
	if err == nil && run.Exit.TimedOut {
		err = timeout(c.ExecRequest)
	}
	_ = out.flush() // fails only for a client that canceled the command or is gone
	// The end must reach the client of a command that was canceled, whose own context has ended.
	ctx, canceled := context.WithoutCancel(ctx), errors.Is(context.Cause(ctx), errCanceled)
	if err != nil {
		if canceled {
			err = api.Wrap(api.Canceled, err, "command was canceled")
		}
		_ = m.fail(ctx, c.ID, err) // fails only for a client that is gone, which the reader notices
		return
	}
	took := run.Took.Milliseconds()
	// Fails only for a client that is gone, which the reader notices.
	_ = m.send(ctx, reply{ID: c.ID, Exit: &run.Exit.Code, DurationMS: &took, OutOfMemory: run.Exit.OutOfMemory})
}

func (m *commandMux) fail(ctx context.Context, id json.RawMessage, err error) error {
	e := api.AsError(err)
	if id == nil {
		id = json.RawMessage("null")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, replyTimeout, errors.New("client does not read"))
	defer cancel()
	return m.send(ctx, reply{ID: id, Error: e.Message, Code: e.Code})
}
