package execstream

import (
	"context"
	"encoding/json"
	"errors"
	"syscall"

	"github.com/coder/websocket"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
)

// shell is the command of a terminal whose client gives none.
const shell = "if [ -x /bin/bash ]; then exec /bin/bash -l; else exec /bin/sh -l; fi"

// Terminal is a terminal that a client requests.
type Terminal struct {
	Size guestapi.Size // zero: 24 by 80
	Cmd  string        // "": a login shell
	Cwd  string
	User string
	Env  map[string]string
	// Silent omits the exit message before the normal close, for clients that print every message.
	Silent bool
	// Shared, if not "", is the name of a terminal of the sandbox that many clients may join. The first one starts
	// its program; all see its output, including what is kept from before they joined, and what any of them types.
	// The program keeps running when they leave, so that they can return.
	Shared string
	// ReadOnly ignores this client's input and terminal size.
	ReadOnly bool
}

func (t Terminal) spec() guestapi.ProcessSpec {
	if t.Size.Rows == 0 || t.Size.Cols == 0 {
		t.Size = guestapi.Size{Rows: 24, Cols: 80}
	}
	env := map[string]string{"TERM": "xterm-256color"}
	for k, v := range t.Env {
		env[k] = v
	}
	spec := guestapi.ProcessSpec{Shell: t.Cmd, Dir: t.Cwd, User: t.User, Env: env, Stdin: true, PTY: &t.Size}
	if spec.Shell == "" {
		spec.Shell = shell
	}
	if t.Shared != "" {
		spec.Tag = sharedTag + t.Shared
	}
	return spec
}

// sharedTag begins the tags of the programs of shared terminals.
const sharedTag = "terminal:"

// control is a text message of a terminal's client, in all the forms that are documented: {"resize":
// {"rows","cols"}}, {"type":"resize","rows","cols"}, {"stdin":"text"}, {"type":"stdin","data":"text"}.
type control struct {
	Resize *guestSize `json:"resize"`
	Stdin  *string    `json:"stdin"`
	Type   string     `json:"type"`
	Data   string     `json:"data"`
	guestSize
}

type guestSize struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// parse reads a text message: input, or a size, or neither. Text that is not one of the known objects is input
// itself, as simple terminals send it.
func parse(data []byte) (input []byte, size *guestapi.Size) {
	var c control
	if err := json.Unmarshal(data, &c); err != nil {
		return data, nil
	}
	switch {
	case c.Resize != nil:
		return nil, &guestapi.Size{Rows: c.Resize.Rows, Cols: c.Resize.Cols}
	case c.Type == "resize":
		return nil, &guestapi.Size{Rows: c.Rows, Cols: c.Cols}
	case c.Stdin != nil:
		return []byte(*c.Stdin), nil
	case c.Type == "stdin" || c.Type == "input":
		return []byte(c.Data), nil
	}
	return data, nil
}

// exitMessage is the last message of a terminal, in both forms that clients know.
type exitMessage struct {
	Exit int    `json:"exit"`
	Type string `json:"type"`
	Code int    `json:"code"`

	OutOfMemory bool `json:"out_of_memory,omitempty"`
}

// Start starts the terminal's program, or joins the running program of a shared terminal.
//
// It is separate from PTY so that a failure can be an HTTP response.
func (t Terminal) Start(ctx context.Context, g guestapi.Guest) (guestapi.Process, error) {
	spec := t.spec()
	p, err := g.Start(ctx, spec)
	if t.Shared != "" && errors.Is(err, guestapi.ErrExists) {
		p, err = t.join(ctx, g, spec.Tag)
		if errors.Is(err, guestapi.ErrNotFound) { // it has exited meanwhile
			p, err = g.Start(ctx, spec)
		}
	}
	if err != nil {
		return nil, hosterror.OfGuest(err, "terminal")
	}
	return p, nil
}

// join attaches to the program of a shared terminal, from the first output that the guest keeps.
func (t Terminal) join(ctx context.Context, g guestapi.Guest, tag string) (guestapi.Process, error) {
	p, err := g.Attach(ctx, guestapi.ProcessRef{Tag: tag}, guestapi.Offsets{})
	if err == nil && !t.ReadOnly && t.Size.Rows > 0 && t.Size.Cols > 0 {
		_ = p.Resize(ctx, t.Size) // fails only if the program has just exited; its exit follows
	}
	return p, err
}

// PTY connects conn to the terminal p until the program exits, the client closes or ctx ends.
//
// A program whose client goes away is hung up, unless it is shared. PTY closes p and conn.
func (t Terminal) PTY(ctx context.Context, g guestapi.Guest, p guestapi.Process, conn *websocket.Conn) {
	ctx, cancel := context.WithCancelCause(ctx)
	s := &socket{conn: conn}
	defer s.wg.Wait()
	defer conn.CloseNow() //nolint:errcheck // closed properly below, or lost
	defer p.Close()       //nolint:errcheck // the program has exited, is being hung up or continues
	defer cancel(errors.New("terminal ended"))
	s.keepAlive(ctx, cancel)
	s.wg.Go(func() { cancel(t.input(ctx, p, conn)) })
	exit, err := guestexec.Follow(ctx, p, guestexec.Sink{Output: func(e guestapi.Event) error {
		return conn.Write(ctx, websocket.MessageBinary, e.Data)
	}})
	if err != nil && t.Shared == "" {
		// The client is gone or gets the error of the terminal: nothing depends on this one.
		_ = guestexec.Signal(ctx, g, guestapi.ProcessRef{PID: p.PID()}, int(syscall.SIGHUP))
	}
	if err != nil && ctx.Err() != nil {
		return
	}
	last, stop := context.WithTimeoutCause(ctx, replyTimeout, errors.New("client does not read"))
	defer stop()
	switch {
	case err != nil:
		_ = s.send(last, api.AsError(hosterror.OfGuest(err, "terminal"))) // the client may be gone
	case exit.Error != "":
		_ = s.send(last, api.Errorf(api.Invalid, "terminal could not be started: %s", exit.Error))
	case !t.Silent:
		_ = s.send(last, exitMessage{Exit: exit.Code, Type: "exit", Code: exit.Code, OutOfMemory: exit.OutOfMemory})
	}
	_ = conn.Close(websocket.StatusNormalClosure, "") // nothing depends on the client's confirmation
}

// input passes on what the client types, until the client closes.
func (t Terminal) input(ctx context.Context, p guestapi.Process, conn *websocket.Conn) error {
	for {
		kind, data, done, err := readMessage(ctx, conn)
		if err != nil {
			return err
		}
		t.handle(ctx, p, kind, data)
		done()
	}
}

// handle handles one message of a client.
func (t Terminal) handle(ctx context.Context, p guestapi.Process, kind websocket.MessageType, data []byte) {
	var size *guestapi.Size
	if kind == websocket.MessageText {
		data, size = parse(data)
	}
	if t.ReadOnly {
		return
	}
	// These fail only if the program has just exited: its exit follows.
	if size != nil && size.Rows > 0 && size.Cols > 0 {
		_ = p.Resize(ctx, *size)
	}
	if len(data) > 0 {
		_, _ = p.Write(data)
	}
}
