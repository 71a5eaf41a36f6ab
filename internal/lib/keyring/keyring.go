// Package keyring holds the master key of the object store and derives the keys of everything in it.
//
// It owns the file of the master key. It does not know what the derived keys encrypt.
package keyring

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/pandastack/pandastack/internal/lib/durable"
)

// KeyBytes is the size of every key.
const KeyBytes = 32

// Keyring holds the master key, from which all others derive. Hosts that share an object store share it. The
// master key allows reading and forging everything in the store; without it nothing can be read again.
type Keyring struct{ master []byte }

// Open reads the master key from a file of 64 hexadecimal digits. It makes the file if it does not exist, and
// rejects one that other users may read.
func Open(path string) (*Keyring, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		fresh := make([]byte, KeyBytes)
		_, _ = rand.Read(fresh) // never fails: it ends the program instead
		if err := durable.WriteFile(path, []byte(hex.EncodeToString(fresh)+"\n"), 0o600); err != nil {
			return nil, fmt.Errorf("create master key of the object store: %w", err)
		}
		info, err = os.Lstat(path)
	}
	if err != nil {
		return nil, fmt.Errorf("master key of the object store: %w", err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 || info.Size() > 1024 {
		return nil, fmt.Errorf(
			"master key of the object store: %s is not a small file that only its owner can read (mode 0600)",
			path,
		)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("master key of the object store: %w", err)
	}
	master, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(master) != KeyBytes {
		return nil, fmt.Errorf(
			"master key of the object store: %s does not hold %d hexadecimal digits",
			path,
			2*KeyBytes,
		)
	}
	return &Keyring{master}, nil
}

// New makes a keyring of a master key of 32 bytes.
func New(master []byte) (*Keyring, error) {
	if len(master) != KeyBytes {
		return nil, fmt.Errorf("master key of the object store: it has %d bytes, want %d", len(master), KeyBytes)
	}
	return &Keyring{master}, nil
}

// Key returns the key for a purpose. No two purposes have the same key, and none reveals another.
func (k *Keyring) Key(purpose string) []byte { return Derive(k.master, purpose) }

// Derive is HKDF with SHA-256: the key for a purpose below a secret. It cannot fail for keys of this size.
func Derive(secret []byte, purpose string) []byte {
	key, err := hkdf.Key(sha256.New, secret, nil, purpose, KeyBytes)
	if err != nil {
		return nil // not reached: an empty key makes every use of it fail
	}
	return key
}

// NewAEAD returns AES-256-GCM under a key.
func NewAEAD(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// ErrSealed means that sealed content was made with another key or for another place, or was changed.
var ErrSealed = errors.New("content fails authentication")

// Seal encrypts content under a key of its place alone, and authenticates it together with head.
// The result begins with head.
func Seal(key, head, content []byte) ([]byte, error) {
	gcm, err := NewAEAD(key)
	if err != nil {
		return nil, err
	}
	out := make([]byte, len(head)+gcm.NonceSize(), len(head)+gcm.NonceSize()+len(content)+gcm.Overhead())
	copy(out, head)
	nonce := out[len(head):]
	_, _ = rand.Read(nonce) // never fails: it ends the program instead
	return gcm.Seal(out, nonce, content, head), nil
}

// Unseal is the inverse of Seal. It overwrites sealed.
func Unseal(key, head, sealed []byte) ([]byte, error) {
	gcm, err := NewAEAD(key)
	if err != nil {
		return nil, err
	}
	if len(sealed) < len(head)+gcm.NonceSize() || !bytes.Equal(sealed[:len(head)], head) {
		return nil, ErrSealed
	}
	nonce, rest := sealed[len(head):len(head)+gcm.NonceSize()], sealed[len(head)+gcm.NonceSize():]
	content, err := gcm.Open(rest[:0], nonce, rest, head)
	if err != nil {
		return nil, ErrSealed
	}
	return content, nil
}
