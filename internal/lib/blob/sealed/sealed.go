// Package sealed encrypts the objects of an object store.
//
// An object is encrypted and authenticated together with its key, in segments: a reader gets nothing that was changed,
// cut or moved. Keys, and how large objects are, stay visible. The package does not know what objects hold.
package sealed

import (
	"bytes"
	"context"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/keyring"
)

// The form of an object: a salt, and segments of segment bytes, of which only the last is shorter, each with a tag.
const (
	saltBytes = 32
	segment   = 64 << 10
	tagBytes  = 16
	maxBytes  = (1 << 31) * segment // the number of a segment has 32 bits
)

// store is a blob.Store whose objects are encrypted in another.
type store struct {
	objects blob.Store
	prefix  string
	key     []byte
}

// New returns a store that keeps its objects in objects, encrypted with keys that derive from a key.
//
// The keys of its objects are below a prefix there, and without it in the store. Closing it closes objects.
func New(objects blob.Store, key []byte, prefix string) (blob.Store, error) {
	if len(key) != keyring.KeyBytes {
		return nil, fmt.Errorf("sealed: the key has %d bytes, want %d", len(key), keyring.KeyBytes)
	}
	return &store{objects, prefix, bytes.Clone(key)}, nil
}

// seal returns the cipher of an object.
func (s *store) seal(key string, salt []byte) (cipher.AEAD, error) {
	return keyring.NewAEAD(keyring.Derive(s.key, "object "+s.prefix+key+" "+hex.EncodeToString(salt)))
}

// nonce is that of a segment. Each object has a key of its own.
func nonce(n uint32, last bool) []byte {
	out := make([]byte, 12)
	binary.BigEndian.PutUint32(out[7:], n)
	if last {
		out[11] = 1
	}
	return out
}

// sealedBytes is how large an object of size bytes is in the store.
func sealedBytes(size int64) int64 {
	segments := max(1, (size+segment-1)/segment)
	return saltBytes + size + segments*tagBytes
}

// plainBytes is how large an object is that has size bytes in the store.
func plainBytes(size int64) int64 {
	size -= saltBytes
	segments := (size + segment + tagBytes - 1) / (segment + tagBytes)
	return max(0, size-segments*tagBytes)
}

// Put implements blob.Store.
func (s *store) Put(ctx context.Context, key string, r io.Reader, size int64) error {
	return s.put(key, r, size, func(r io.Reader, size int64) error {
		return s.named(s.objects.Put(ctx, s.prefix+key, r, size))
	})
}

// PutIfAbsent implements blob.Store.
func (s *store) PutIfAbsent(ctx context.Context, key string, r io.Reader, size int64) error {
	return s.put(key, r, size, func(r io.Reader, size int64) error {
		return s.named(s.objects.PutIfAbsent(ctx, s.prefix+key, r, size))
	})
}

func (s *store) put(key string, r io.Reader, size int64, put func(io.Reader, int64) error) error {
	if size < 0 || size > maxBytes {
		return &blob.Error{Op: "put", Key: key, Err: fmt.Errorf("size %d is out of range", size)}
	}
	salt := make([]byte, saltBytes)
	_, _ = rand.Read(salt) // never fails: it ends the program instead
	aead, err := s.seal(key, salt)
	if err != nil {
		return &blob.Error{Op: "put", Key: key, Err: err}
	}
	in := &sealer{from: r, left: size, aead: aead, out: salt, plain: make([]byte, segment)}
	return put(in, sealedBytes(size))
}

// sealer reads the sealed form of what it reads.
type sealer struct {
	from  io.Reader
	left  int64
	aead  cipher.AEAD
	n     uint32
	out   []byte // sealed, and not read yet
	plain []byte
	done  bool
}

// Read implements io.Reader.
func (s *sealer) Read(p []byte) (int, error) {
	if len(s.out) == 0 {
		if s.done {
			return 0, s.end()
		}
		plain := s.plain[:min(s.left, segment)]
		if _, err := io.ReadFull(s.from, plain); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return 0, err
		}
		s.left -= int64(len(plain))
		s.done = s.left == 0
		s.out = s.aead.Seal(s.out[:0], nonce(s.n, s.done), plain, nil)
		s.n++
	}
	n := copy(p, s.out)
	s.out = s.out[n:]
	return n, nil
}

// end reports whether the source has ended with the object.
func (s *sealer) end() error {
	var one [1]byte
	n, err := io.ReadFull(s.from, one[:])
	if n > 0 {
		return errors.New("the content is longer than its size")
	}
	return err
}

// Get implements blob.Store. A range is read from the begin of the object on.
func (s *store) Get(ctx context.Context, key string, offset, length int64) (_ io.ReadCloser, err error) {
	if offset < 0 {
		return nil, &blob.Error{Op: "get", Key: key, Err: fmt.Errorf("offset %d is negative", offset)}
	}
	from, err := s.objects.Get(ctx, s.prefix+key, 0, -1)
	if err != nil {
		return nil, s.named(err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(&blob.Error{Op: "get", Key: key, Err: err}, from.Close())
		}
	}()
	salt := make([]byte, saltBytes)
	if _, err := io.ReadFull(from, salt); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = keyring.ErrSealed
		}
		return nil, err
	}
	aead, err := s.seal(key, salt)
	if err != nil {
		return nil, err
	}
	r := &opener{from: from, aead: aead, sealed: make([]byte, segment+tagBytes+1)}
	if _, err := io.CopyN(io.Discard, r, offset); err != nil {
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("offset %d is beyond the end", offset)
		}
		return nil, err
	}
	if length < 0 {
		return r, nil
	}
	return &part{io.LimitReader(r, length), r}, nil
}

// part is a range of an object.
type part struct {
	io.Reader
	io.Closer
}

// opener reads the content of a sealed object.
type opener struct {
	from   io.ReadCloser
	aead   cipher.AEAD
	n      uint32
	sealed []byte // one byte longer than a segment, to see whether it is the last
	has    int    // bytes in sealed
	out    []byte // content that was not read yet
	done   bool
	err    error
}

// Close implements io.Closer.
func (o *opener) Close() error { return o.from.Close() }

// Read implements io.Reader.
func (o *opener) Read(p []byte) (int, error) {
	for len(o.out) == 0 {
		if o.err == nil && o.done {
			o.err = io.EOF
		}
		if o.err == nil {
			o.err = o.next()
		}
		if o.err != nil {
			return 0, o.err
		}
	}
	n := copy(p, o.out)
	o.out = o.out[n:]
	return n, nil
}

// next opens a segment.
func (o *opener) next() error {
	n, err := io.ReadFull(o.from, o.sealed[o.has:])
	o.has += n
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	o.done = o.has < len(o.sealed)
	size := min(o.has, segment+tagBytes)
	o.out, err = o.aead.Open(o.out[:0], nonce(o.n, o.done), o.sealed[:size], nil)
	if err != nil {
		return keyring.ErrSealed
	}
	o.has = copy(o.sealed, o.sealed[size:o.has])
	o.n++
	return nil
}

// Stat implements blob.Store.
func (s *store) Stat(ctx context.Context, key string) (blob.Info, error) {
	i, err := s.objects.Stat(ctx, s.prefix+key)
	return s.shown(i), s.named(err)
}

// List implements blob.Store.
func (s *store) List(ctx context.Context, prefix string, yield func(blob.Info) error) error {
	return s.named(s.objects.List(ctx, s.prefix+prefix, func(i blob.Info) error { return yield(s.shown(i)) }))
}

// shown describes an object as one of s.
func (s *store) shown(i blob.Info) blob.Info {
	i.Key, i.Bytes = strings.TrimPrefix(i.Key, s.prefix), plainBytes(i.Bytes)
	return i
}

// named makes an error about an object below one about an object of s.
func (s *store) named(err error) error {
	if e, ok := err.(*blob.Error); ok { // not one that yield has returned in an error of its own
		return &blob.Error{Op: e.Op, Key: strings.TrimPrefix(e.Key, s.prefix), Err: e.Err}
	}
	return err
}

// Delete implements blob.Store.
func (s *store) Delete(ctx context.Context, key string) error {
	return s.named(s.objects.Delete(ctx, s.prefix+key))
}

// Close implements blob.Store.
func (s *store) Close() error { return s.objects.Close() }
