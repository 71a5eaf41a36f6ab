package chunkstore

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
)

// magic begins every manifest in the store. Behind it: version (1 byte), tag of the space, length of the
// id (1 byte), the id, a nonce, the sealed content, and an HMAC of all that.
const magic = "PSMF"

const headBytes = len(magic) + 1 + tagBytes + 1

// envelope writes a manifest as it lies in the store.
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
	_, _ = h.Write(data) // a hash takes everything
	return h.Sum(nil)
}

// parse reads the manifest of an id, after it has verified it. It answers an error that is ErrWorkspace,
// ErrVersion or ErrTampered and says more.
func parse(c codec, r *tenantKeys, id ID, data []byte) (*Manifest, error) {
	if len(data) < headBytes || string(data[:len(magic)]) != magic {
		return nil, fmt.Errorf("%w: it does not begin as one", ErrTampered)
	}
	if v := data[len(magic)]; v != Version {
		return nil, fmt.Errorf("%w: format %d, not %d", ErrVersion, v, Version)
	}
	if !bytes.Equal(data[len(magic)+1:headBytes-1], r.tag[:]) {
		return nil, ErrWrongTenant
	}
	end := len(data) - sha256.Size
	head := headBytes + int(data[headBytes-1])
	if end < head+nonceBytes+gcmTagBytes {
		return nil, fmt.Errorf("%w: it is cut short", ErrTampered)
	}
	if !hmac.Equal(data[end:], r.signature(data[:end])) {
		return nil, fmt.Errorf("%w: its signature does not fit", ErrTampered)
	}
	if got := ID(data[headBytes:head]); got != id {
		return nil, fmt.Errorf("%w: it is the manifest of %q", ErrTampered, got)
	}
	gcm, err := newAEAD(r.manifestSecret)
	if err != nil {
		return nil, err
	}
	packed, err := gcm.Open(nil, data[head:head+nonceBytes], data[head+nonceBytes:end], data[:head])
	if err != nil {
		return nil, fmt.Errorf("%w: its content is not what was sealed", ErrTampered)
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

// unpackAny is unpack for content of any size within the bounds of manifests.
func (c codec) unpackAny(packed []byte) ([]byte, error) {
	if len(packed) == 0 || packed[0] != zstdFrame {
		return c.unpack(nil, packed, max(0, len(packed)-1))
	}
	body, err := c.dec.DecodeAll(packed[1:], nil)
	if err != nil || len(body) > maxManifest {
		return nil, errors.Join(errors.New("it cannot be decompressed"), err)
	}
	return body, nil
}
