// Package scram is SCRAM-SHA-256 as PostgreSQL uses it, for a server in the middle of client and database.
//
// A Verifier is what PostgreSQL stores of a password (pg_authid.rolpassword). With one, an Exchange authenticates a
// client that knows the password, with or without channel binding, and recovers the client's key from its proof. With
// that key a Client authenticates to the database, so that the password itself is never seen. Mock makes verifiers of
// roles that do not exist, with which an exchange is the same to the last message.
//
// Everything that a peer sends is bounded and may be hostile. Values are not safe for concurrent use, except Verifier
// and Keys, which are immutable.
package scram

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/xdg-go/stringprep"
)

const (
	// DefaultIterations is the iteration count of PostgreSQL.
	DefaultIterations = 4096
	// maxIterations bounds what Check computes for one password, about 50 ms.
	maxIterations = 200_000
	// maxSalt bounds the salt of a verifier. PostgreSQL makes 16 bytes.
	maxSalt = 1024

	saltSize = 16
	scheme   = "SCRAM-SHA-256"
)

// Verifier is what PostgreSQL stores of a password.
type Verifier struct {
	Iterations int
	Salt       []byte
	StoredKey  []byte
	ServerKey  []byte
}

// Keys authenticate a client to a server without the password.
type Keys struct {
	Client []byte // proves the client to the server
	Server []byte // proves the server to the client
}

// ParseVerifier parses a verifier in the form of pg_authid.rolpassword.
func ParseVerifier(text string) (Verifier, error) {
	parts := strings.Split(text, "$")
	if len(parts) != 3 || parts[0] != scheme {
		return Verifier{}, errors.New("not a verifier of the form SCRAM-SHA-256$iterations:salt$stored:server")
	}
	count, salt, ok := strings.Cut(parts[1], ":")
	stored, server, also := strings.Cut(parts[2], ":")
	if !ok || !also {
		return Verifier{}, errors.New("a verifier has two fields in its second and in its third part")
	}
	v := Verifier{}
	var err error
	if v.Iterations, err = strconv.Atoi(count); err != nil || v.Iterations < 1 {
		return Verifier{}, errors.New("the iteration count of a verifier is a number of at least 1")
	}
	for _, field := range []struct {
		to   *[]byte
		text string
		max  int
	}{{&v.Salt, salt, maxSalt}, {&v.StoredKey, stored, sha256.Size}, {&v.ServerKey, server, sha256.Size}} {
		if *field.to, err = base64.StdEncoding.DecodeString(field.text); err != nil {
			return Verifier{}, fmt.Errorf("verifier: %w", err)
		}
		if n := len(*field.to); n == 0 || n > field.max {
			return Verifier{}, fmt.Errorf("a field of a verifier has %d bytes, 1 to %d are allowed", n, field.max)
		}
	}
	if len(v.StoredKey) != sha256.Size || len(v.ServerKey) != sha256.Size {
		return Verifier{}, fmt.Errorf("the keys of a verifier have %d bytes each", sha256.Size)
	}
	return v, nil
}

// String returns the verifier in the form of pg_authid.rolpassword.
func (v Verifier) String() string {
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("%s$%d:%s$%s:%s", scheme, v.Iterations, b64(v.Salt), b64(v.StoredKey), b64(v.ServerKey))
}

// NewVerifier computes the verifier of a password, and its keys.
func NewVerifier(password string, salt []byte, iterations int) (Verifier, Keys, error) {
	if iterations < 1 || iterations > maxIterations {
		return Verifier{}, Keys{}, fmt.Errorf("%d iterations: 1 to %d are supported", iterations, maxIterations)
	}
	salted, err := pbkdf2.Key(sha256.New, prepare(password), salt, iterations, sha256.Size)
	if err != nil {
		return Verifier{}, Keys{}, err
	}
	keys := Keys{Client: sum(salted, "Client Key"), Server: sum(salted, "Server Key")}
	stored := sha256.Sum256(keys.Client)
	v := Verifier{Iterations: iterations, Salt: salt, StoredKey: stored[:], ServerKey: keys.Server}
	return v, keys, nil
}

// Check reports whether a password is that of the verifier, and returns the password's keys.
//
// A verifier with more than 200,000 iterations is an error, since a check would cost too much.
func (v Verifier) Check(password string) (Keys, bool, error) {
	got, keys, err := NewVerifier(password, v.Salt, v.Iterations)
	if err != nil {
		return Keys{}, false, err
	}
	if subtle.ConstantTimeCompare(got.StoredKey, v.StoredKey) != 1 {
		return Keys{}, false, nil
	}
	return keys, true, nil
}

// Mock returns the verifier of a name that does not exist: always the same, and met by no password.
func Mock(secret []byte, names ...string) Verifier {
	part := func(label string) []byte {
		h := hmac.New(sha256.New, secret)
		for _, s := range append([]string{label}, names...) {
			fmt.Fprintf(h, "%d:%s", len(s), s)
		}
		return h.Sum(nil)
	}
	return Verifier{
		Iterations: DefaultIterations,
		Salt:       part("salt")[:saltSize],
		StoredKey:  part("stored"),
		ServerKey:  part("server"),
	}
}

// prepare normalizes a password as PostgreSQL does: one that SASLprep refuses is used as it is.
func prepare(password string) string {
	if p, err := stringprep.SASLprep.Prepare(password); err == nil && p != "" {
		return p
	}
	return password
}

func sum(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}
