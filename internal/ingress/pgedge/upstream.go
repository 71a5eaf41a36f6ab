package pgedge

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pandastack/pandastack/internal/lib/scram"
)

// Bounds of what a database sends before it is ready for queries.
const (
	maxBackendMessage = 64 << 10
	maxBackendStartup = 256 << 10
)

// bufferSize is the size of each of the two buffers of a session.
const (
	bufferSize  = 32 << 10
	startBuffer = 4 << 10 // of the reader, which larger reads go past
)

// Login is how the edge logs into a database.
type Login struct {
	Parameters map[string]string // startup parameters, with "user" and "database"
	Keys       scram.Keys        // of the user
}

// Backend is a connection to a database that is ready for queries.
type Backend struct {
	Conn   net.Conn
	Reader *bufio.Reader // everything that Conn receives; bytes of Conn may be in its buffer
	PID    uint32        // with Secret the key of cancel requests
	Secret []byte
	Status map[string]string // of parameters
	Tx     byte              // transaction status of ReadyForQuery

	greeting []byte // messages for the client, from AuthenticationOk on; without BackendKeyData and ReadyForQuery
}

// Connect logs into a server of an endpoint, which is running.
//
// The errors of the database are *ServerError. The connection has no deadline.
func Connect(ctx context.Context, e Endpoint, target Target, login Login) (*Backend, error) {
	d := &dialog{client: scram.NewClient(login.Keys)}
	return open(ctx, e, target, login.Parameters, d.step)
}

// open connects, sends the startup message, and hands authentication requests to step until the database accepts.
func open(
	ctx context.Context, e Endpoint, target Target, params map[string]string,
	step func(b *Backend, body []byte) error,
) (backend *Backend, err error) {
	conn, err := e.Dial(ctx, target)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = conn.Close() // the error says more
		}
	}()
	// A context that ends interrupts reads and writes.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
	}()
	hello, err := (&pgproto3.StartupMessage{
		ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: params,
	}).Encode(nil)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(hello); err != nil {
		return nil, err
	}
	b := &Backend{Conn: conn, Reader: bufio.NewReaderSize(conn, startBuffer), Status: map[string]string{}}
	if err := b.start(step); err != nil {
		return nil, err
	}
	if !stop() {
		return nil, context.Cause(ctx)
	}
	return b, nil
}

// start reads until the database is ready for queries.
func (b *Backend) start(step func(*Backend, []byte) error) error {
	accepted := false
	for total := 0; ; {
		kind, body, err := readMessage(b.Reader, maxBackendMessage)
		if err != nil {
			return fmt.Errorf("while the database opened the session: %w", err)
		}
		if total += len(body); total > maxBackendStartup {
			return errors.New("the database sent too much before it was ready")
		}
		switch {
		case kind == 'E':
			return newServerError(body)
		case kind == 'N':
			b.greeting = append(b.greeting, frame(kind, body)...)
		case kind == 'v' && !accepted: // it speaks 3.0, which is what was asked for
		case kind == 'R' && !accepted:
			if len(body) < 4 {
				return errors.New("the database sent a malformed authentication request")
			}
			accepted = authType(body) == pgproto3.AuthTypeOk
			if err := step(b, body); err != nil {
				return err
			}
		case kind == 'S' && accepted:
			var m pgproto3.ParameterStatus
			if err := m.Decode(body); err != nil {
				return err
			}
			b.Status[m.Name] = m.Value
			b.greeting = append(b.greeting, frame(kind, body)...)
		case kind == 'K' && accepted && len(body) >= 8:
			var m pgproto3.BackendKeyData
			if err := m.Decode(body); err != nil {
				return err
			}
			b.PID, b.Secret = m.ProcessID, slices.Clone(m.SecretKey)
		case kind == 'Z' && accepted && len(body) == 1:
			b.Tx = body[0]
			return nil
		default:
			return fmt.Errorf("the database sent message %q, which does not belong to the start of a session", kind)
		}
	}
}

// authType returns the type of an authentication request of at least four bytes.
func authType(body []byte) int {
	return int(body[0])<<24 | int(body[1])<<16 | int(body[2])<<8 | int(body[3])
}

// dialog is the client's side of an authentication with keys.
type dialog struct{ client *scram.Client }

func (d *dialog) step(b *Backend, body []byte) error {
	switch data := body[4:]; authType(body) {
	case pgproto3.AuthTypeOk:
		return nil
	case pgproto3.AuthTypeSASL:
		var m pgproto3.AuthenticationSASL
		if err := m.Decode(body); err != nil {
			return err
		}
		if !slices.Contains(m.AuthMechanisms, scram.Mechanism) {
			return fmt.Errorf("the database does not offer %s", scram.Mechanism)
		}
		return b.send(&pgproto3.SASLInitialResponse{AuthMechanism: scram.Mechanism, Data: d.client.First()})
	case pgproto3.AuthTypeSASLContinue:
		proof, err := d.client.Final(data)
		if err != nil {
			return err
		}
		return b.send(&pgproto3.SASLResponse{Data: proof})
	case pgproto3.AuthTypeSASLFinal:
		return d.client.Verify(data)
	default:
		return errors.New("the database asks for another authentication than SCRAM-SHA-256: set " +
			"password_encryption to scram-sha-256, set the role's password again, and use scram-sha-256 in pg_hba.conf")
	}
}

func (b *Backend) send(m interface{ Encode([]byte) ([]byte, error) }) error {
	data, err := m.Encode(nil)
	if err != nil {
		return err
	}
	_, err = b.Conn.Write(data)
	return err
}

// Cancel asks a server to cancel what a session does, and returns when the server has read that.
func Cancel(ctx context.Context, e Endpoint, target Target, pid uint32, secret []byte) error {
	conn, err := e.Dial(ctx, target)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	request, err := (&pgproto3.CancelRequest{ProcessID: pid, SecretKey: secret}).Encode(nil)
	if err != nil {
		return err
	}
	if _, err := conn.Write(request); err != nil {
		return err
	}
	_, _ = conn.Read(make([]byte, 1)) // the server closes without a reply
	return nil
}
