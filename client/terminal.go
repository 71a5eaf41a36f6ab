package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/coder/websocket"

	"github.com/pandastack/pandastack/api"
)

// maxFrame bounds one message of a terminal in bytes.
const maxFrame = 8 << 20

// TerminalRequest asks for a terminal. The zero value is a login shell in 24 rows and 80 columns.
type TerminalRequest struct {
	Rows, Cols uint16
	Cmd        string
	Cwd        string
	User       string
}

// Terminal is a program in a sandbox with a terminal of its own. The caller closes it.
//
// One goroutine may receive while others send.
type Terminal struct{ conn *websocket.Conn }

// Terminal starts a program with a terminal.
//
// Closing the Terminal hangs up the program. ctx bounds only the start.
func (s *Sandboxes) Terminal(ctx context.Context, id api.SandboxID, req TerminalRequest) (*Terminal, error) {
	q := url.Values{}
	if req.Rows > 0 && req.Cols > 0 {
		q.Set("rows", itoa(int(req.Rows)))
		q.Set("cols", itoa(int(req.Cols)))
	}
	setNonEmpty(q, "cmd", req.Cmd)
	setNonEmpty(q, "cwd", req.Cwd)
	setNonEmpty(q, "user", req.User)
	conn, err := s.c.socket(ctx, sandboxPath(id, "exec", "pty")+"?"+q.Encode())
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(maxFrame)
	return &Terminal{conn}, nil
}

// socket opens a WebSocket at a path.
func (c *Client) socket(ctx context.Context, path string) (*websocket.Conn, error) {
	address := "ws" + strings.TrimPrefix(c.base.String(), "http") + path
	header := http.Header{"User-Agent": {c.agent}}
	if c.key != "" {
		header.Set("Authorization", "Bearer "+c.key)
	}
	conn, res, err := websocket.Dial(ctx, address, &websocket.DialOptions{HTTPClient: c.http, HTTPHeader: header})
	if err != nil {
		if res != nil && res.StatusCode != http.StatusSwitchingProtocols {
			return nil, responseError(res)
		}
		return nil, transportError(ctx, err)
	}
	return conn, nil
}

// Receive returns the next output. When the program has exited it returns an *Exited with the exit code.
func (t *Terminal) Receive(ctx context.Context) ([]byte, error) {
	kind, data, err := t.conn.Read(ctx)
	if err != nil {
		return nil, transportError(ctx, err)
	}
	if kind == websocket.MessageBinary {
		return data, nil
	}
	var end struct {
		Exit *int `json:"exit"`
	}
	failed := &api.Error{}
	if err := json.Unmarshal(data, &end); err != nil {
		return nil, api.Wrap(api.Internal, err, "terminal: message is not the expected JSON: "+err.Error())
	}
	if end.Exit != nil {
		return nil, &Exited{Code: *end.Exit}
	}
	if err := json.Unmarshal(data, failed); err != nil {
		return nil, api.Wrap(api.Internal, err, "terminal: message is not the expected JSON: "+err.Error())
	}
	return nil, failed
}

// Send sends input.
func (t *Terminal) Send(ctx context.Context, p []byte) error {
	if err := t.conn.Write(ctx, websocket.MessageBinary, p); err != nil {
		return transportError(ctx, err)
	}
	return nil
}

// Resize sets the size of the terminal.
func (t *Terminal) Resize(ctx context.Context, rows, cols uint16) error {
	msg := fmt.Sprintf(`{"resize":{"rows":%d,"cols":%d}}`, rows, cols)
	if err := t.conn.Write(ctx, websocket.MessageText, []byte(msg)); err != nil {
		return transportError(ctx, err)
	}
	return nil
}

// Close closes the terminal and hangs up the program if it still runs.
func (t *Terminal) Close() error {
	err := t.conn.Close(websocket.StatusNormalClosure, "")
	if e, ok := errors.AsType[websocket.CloseError](err); ok && e.Code == websocket.StatusNormalClosure {
		return nil
	}
	return err
}

// Exited is the error of a terminal whose program has exited.
type Exited struct{ Code int }

// Error returns a message with the exit code.
func (e *Exited) Error() string { return fmt.Sprintf("the program ended with exit code %d", e.Code) }
