package chunkstore

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
)

// magic begins every manifest in the store. After it come the version (1 byte), the tenant's tag, the length
// of the id (1 byte), the id, a nonce, the sealed content, and an HMAC of all that.
const magic = "PSMF"

const headBytes = len(magic) + 1 + tagBytes + 1

// envelope encodes a manifest as it is stored.
func (m *Manifest) envelope(c codec, r *tenantKeys) ([]byte, error) {
	body := m.encode()
	if len(body) > maxManifest {
		return nil, fmt.Errorf("manifest %s has %d bytes, more than %d", m.ID, len(body), maxManifest)
	}
	out := append([]byte(magic), Version)
	out = append(out, r.tag[:]...)
	out = append(out, byte(len(m.ID)))
	out = append(out, m.ID...)
	gcm, err := newAEAD(r.manifestSecret)
	if err != nil {
		return nil, err
	}
	head := bytes.Clone(out)
	nonce := make([]byte, nonceBytes)
	_, _ = rand.Read(nonce) // never fails: it ends the program instead
	out = gcm.Seal(append(out, nonce...), nonce, c.pack(body), head)
	return append(out, r.signature(out)...), nil
}

func (r *tenantKeys) signature(data []byte) []byte {
	h := hmac.New(sha256.New, r.signKey)
	_, _ = h.Write(data) // a hash accepts any input
	return h.Sum(nil)
}

// parse verifies and decodes the manifest of an id. Its errors wrap ErrWrongTenant, ErrVersion or
// ErrTampered.
func parse(c codec, r *tenantKeys, id ID, data []byte) (*Manifest, error) {
	if len(data) < headBytes || string(data[:len(magic)]) != magic {
		return nil, fmt.Errorf("%w: wrong magic number", ErrTampered)
	}
	if v := data[len(magic)]; v != Version {
		return nil, fmt.Errorf("%w: version %d, want %d", ErrVersion, v, Version)
	}
	if !bytes.Equal(data[len(magic)+1:headBytes-1], r.tag[:]) {
		return nil, ErrWrongTenant
	}
	end := len(data) - sha256.Size
	head := headBytes + int(data[headBytes-1])
	if end < head+nonceBytes+gcmTagBytes {
		return nil, fmt.Errorf("%w: it is truncated", ErrTampered)
	}
	if !hmac.Equal(data[end:], r.signature(data[:end])) {
		return nil, fmt.Errorf("%w: wrong signature", ErrTampered)
	}
	if got := ID(data[headBytes:head]); got != id {
		return nil, fmt.Errorf("%w: it is the manifest %q", ErrTampered, got)
	}
	gcm, err := newAEAD(r.manifestSecret)
	if err != nil {
		return nil, err
	}
	packed, err := gcm.Open(nil, data[head:head+nonceBytes], data[head+nonceBytes:end], data[:head])
	if err != nil {
		return nil, fmt.Errorf("%w: its content fails authentication", ErrTampered)
	}
	body, err := c.unpackAny(packed)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTampered, err)
	}
	m := &Manifest{ID: id}
	if err := m.decode(body); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTampered, err)
	}
	return m, nil
}

// unpackAny is unpack for content of any size up to maxManifest.
func (c codec) unpackAny(packed []byte) ([]byte, error) {
	if len(packed) == 0 || packed[0] != zstdFrame {
		return c.unpack(nil, packed, max(0, len(packed)-1))
	}
	body, err := c.dec.DecodeAll(packed[1:], nil)
	if err != nil || len(body) > maxManifest {
		return nil, errors.Join(errors.New("decompress manifest"), err)
	}
	return body, nil
}
