package pgedge

import (
	"bytes"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pandastack/pandastack/internal/lib/scram"
)

// cleartext asks the client for its password and checks it with a verifier.
func (c *client) cleartext(v scram.Verifier) (scram.Keys, error) {
	if _, err := c.conn.Write(encode(&pgproto3.AuthenticationCleartextPassword{})); err != nil {
		return scram.Keys{}, errClosed
	}
	body, err := c.password()
	if err != nil {
		return scram.Keys{}, err
	}
	password, rest, ok := bytes.Cut(body, []byte{0})
	if !ok || len(rest) > 0 {
		return scram.Keys{}, &Error{Code: codeProtocol, Message: "malformed password message"}
	}
	keys, ok, err := v.Check(string(password))
	if err != nil {
		return scram.Keys{}, err
	}
	if !ok {
		return scram.Keys{}, scram.ErrRejected
	}
	return keys, nil
}
