package pgedge

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"
)

// SQLSTATEs of the edge's own errors.
const (
	codeProtocol       = "08P01" // protocol_violation
	codeConnectionLost = "08006" // connection_failure
	codeNotSupported   = "0A000" // feature_not_supported
	codeAuthorization  = "28000" // invalid_authorization_specification
	codePassword       = "28P01" // invalid_password
	codeTooMany        = "53300" // too_many_connections
	codeShutdown       = "57P01" // admin_shutdown
	codeNotNow         = "57P03" // cannot_connect_now
	codeInternal       = "XX000" // internal_error
)

// Error is what a client is sent when its connection is refused or ended.
type Error struct {
	Code    string // SQLSTATE
	Message string
	Hint    string // what the user can do; may be ""
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("%s (SQLSTATE %s)", e.Message, e.Code) }

// encode returns the error as a message of the protocol.
func (e *Error) encode() []byte {
	return encode(&pgproto3.ErrorResponse{
		Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: e.Code, Message: e.Message, Hint: e.Hint,
	})
}

// ServerError is an error that the database sent.
type ServerError struct {
	Code, Message, Hint string
	raw                 []byte
}

// Error implements error.
func (e *ServerError) Error() string { return fmt.Sprintf("%s (SQLSTATE %s)", e.Message, e.Code) }

// newServerError decodes the body of an ErrorResponse of the database.
func newServerError(body []byte) *ServerError {
	var m pgproto3.ErrorResponse
	if m.Decode(body) != nil {
		return &ServerError{Code: codeProtocol, Message: "the database sent a malformed error"}
	}
	raw := append([]byte{'E'}, binary.BigEndian.AppendUint32(nil, uint32(len(body)+4))...)
	return &ServerError{Code: m.Code, Message: m.Message, Hint: m.Hint, raw: append(raw, body...)}
}

// encode returns the bytes of a message that the edge makes and that can always be encoded.
func encode(m interface{ Encode([]byte) ([]byte, error) }) []byte {
	data, err := m.Encode(nil)
	if err != nil {
		return (&Error{Code: codeInternal, Message: "the edge made a message that cannot be encoded"}).encode()
	}
	return data
}

const (
	maxStartup = 10_000 // bytes of a startup packet, as in PostgreSQL
	minStartup = 8
	maxParams  = 128 // of a startup message
)

var errMalformed = errors.New("malformed startup packet")

// readStartup reads a packet without type byte, and returns what follows its length. It reads no byte more.
func readStartup(r io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n < minStartup || n > maxStartup {
		return nil, fmt.Errorf("%w: it has %d bytes, %d to %d are allowed", errMalformed, n, minStartup, maxStartup)
	}
	body := make([]byte, n-4)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, err
	}
	return body, nil
}

// Versions of the protocol that the edge speaks.
const (
	majorVersion = 3
	minorVersion = 2 // the newest minor version
)

// startup is a startup message.
type startup struct {
	minor  uint16 // version that the edge and the client speak
	params map[string]string
	// negotiate is set if the client asked for more than the edge supports: a newer version, or the options in
	// unsupported.
	negotiate   bool
	unsupported []string
}

// parseStartup parses a startup message, whose first four bytes are its version.
func parseStartup(body []byte) (startup, error) {
	if len(body) < 5 {
		return startup{}, errMalformed
	}
	version := binary.BigEndian.Uint32(body)
	if major := version >> 16; major != majorVersion {
		return startup{}, &Error{Code: codeNotSupported, Message: fmt.Sprintf(
			"protocol version %d.%d is not supported: this server speaks 3.0 to 3.%d",
			major, version&0xffff, minorVersion)}
	}
	s := startup{minor: uint16(version), params: map[string]string{}} //nolint:gosec // the lower half
	if s.minor > minorVersion {
		s.minor, s.negotiate = minorVersion, true
	}
	text := string(body[4:])
	for {
		name, rest, ok := strings.Cut(text, "\x00")
		if !ok {
			return startup{}, errMalformed
		}
		if name == "" {
			if rest != "" {
				return startup{}, errMalformed
			}
			break
		}
		value, rest, ok := strings.Cut(rest, "\x00")
		if !ok || len(s.params) >= maxParams {
			return startup{}, errMalformed
		}
		if strings.HasPrefix(name, "_pq_.") {
			s.negotiate, s.unsupported = true, append(s.unsupported, name)
		} else {
			s.params[name] = value
		}
		text = rest
	}
	if s.params["user"] == "" {
		return startup{}, &Error{Code: codeAuthorization, Message: "the startup packet names no user"}
	}
	if s.params["database"] == "" {
		s.params["database"] = s.params["user"]
	}
	slices.Sort(s.unsupported)
	return s, nil
}

// negotiation returns the message that says what of the client's wishes the edge does not support.
func (s startup) negotiation() []byte {
	return encode(&pgproto3.NegotiateProtocolVersion{
		NewestMinorProtocol: majorVersion<<16 | uint32(s.minor), UnrecognizedOptions: s.unsupported,
	})
}

// readMessage reads a message of at most most bytes.
func readMessage(r io.Reader, most int) (kind byte, body []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n < 4 || n-4 > uint32(most) { //nolint:gosec // most is a small constant
		return 0, nil, fmt.Errorf("a message %q of %d bytes, 4 to %d are allowed", head[0], n, most+4)
	}
	body = make([]byte, n-4)
	if _, err := io.ReadFull(r, body); err != nil {
		return 0, nil, err
	}
	return head[0], body, nil
}

// frame returns a message with a type and a body.
func frame(kind byte, body []byte) []byte {
	m := make([]byte, 0, 5+len(body))
	m = append(m, kind)
	m = binary.BigEndian.AppendUint32(m, uint32(len(body)+4)) //nolint:gosec // bodies are bounded
	return append(m, body...)
}
