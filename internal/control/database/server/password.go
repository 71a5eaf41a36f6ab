package server

import (
	"crypto/rand"
	"strings"

	"github.com/pandastack/pandastack/internal/lib/scram"
)

// saltBytes is the length of the salt of a verifier, as PostgreSQL makes it.
const saltBytes = 16

// Keys are what a client needs of a password to log in.
type Keys = scram.Keys

// NewPassword returns a random password and its SCRAM verifier.
func NewPassword() (password, verifier string, err error) {
	salt := make([]byte, saltBytes)
	if _, err := rand.Read(salt); err != nil {
		return "", "", err
	}
	password = strings.ToLower(rand.Text())
	v, _, err := scram.NewVerifier(password, salt, scram.DefaultIterations)
	if err != nil {
		return "", "", err
	}
	return password, v.String(), nil
}

// CheckPassword returns the keys of a password; ok is false if it is not that of the verifier.
func CheckPassword(verifier, password string) (keys Keys, ok bool, err error) {
	v, err := scram.ParseVerifier(verifier)
	if err != nil {
		return Keys{}, false, err
	}
	return v.Check(password)
}
