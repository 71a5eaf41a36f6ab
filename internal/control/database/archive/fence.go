package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/keyring"
)

// Errors of fences and descriptions, to be compared with errors.Is.
var (
	ErrFenced        = errors.New("another node has adopted the database")
	ErrNoDescription = errors.New("the object store has no description of the database")
)

const (
	fencePrefix       = "fence/"
	descriptionPrefix = "description/"
	// maxDescription bounds the description of a database.
	maxDescription = 1 << 20
	// contenders bounds the nodes that take the next number at once.
	contenders = 16
)

// numbered returns the name of an object of a fencing number. The order of names is that of numbers.
func numbered(prefix string, n int64) string { return fmt.Sprintf("%s%016x", prefix, n) }

// numberOf is the inverse of numbered.
func numberOf(prefix, name string) (int64, bool) {
	text, ok := strings.CutPrefix(name, prefix)
	n, err := strconv.ParseInt(text, 16, 64)
	return n, ok && err == nil && numbered(prefix, n) == name
}

// Holds returns ErrFenced if a node has a higher number than this archive. It makes one request.
func (a *Archive) Holds(ctx context.Context) error {
	_, err := a.store.Stat(ctx, a.prefix+numbered(fencePrefix, a.fence+1))
	switch {
	case err == nil:
		return ErrFenced
	case errors.Is(err, blob.ErrNotFound): // numbers have no gaps
		return nil
	}
	return err
}

// newest returns the highest number of the objects with a prefix.
func (a *Archive) newest(ctx context.Context, prefix string) (n int64, found bool, err error) {
	err = a.store.List(ctx, a.prefix+prefix, func(i blob.Info) error {
		if one, ok := numberOf(prefix, strings.TrimPrefix(i.Key, a.prefix)); ok && (one > n || !found) {
			n, found = one, true
		}
		return nil
	})
	return n, found, err
}

// TakeFence takes the next fencing number. From then on every other node that writes to the archive fails with
// ErrFenced, and so does this one until it is opened with the number.
func (a *Archive) TakeFence(ctx context.Context, now time.Time) (int64, error) {
	for range contenders {
		n, _, err := a.newest(ctx, fencePrefix)
		if err != nil {
			return 0, err
		}
		n++
		name := numbered(fencePrefix, n)
		sealed, err := keyring.Seal(a.key(name), head, []byte(now.UTC().Format(time.RFC3339Nano)))
		if err != nil {
			return 0, err
		}
		err = a.store.PutIfAbsent(ctx, a.prefix+name, bytes.NewReader(sealed), int64(len(sealed)))
		if !errors.Is(err, blob.ErrExists) {
			return n, err
		}
	}
	return 0, errors.New("other nodes adopt the database at the same time")
}

// PutDescription replaces the description of the database.
func (a *Archive) PutDescription(ctx context.Context, text []byte) error {
	if len(text) > maxDescription {
		return fmt.Errorf("the description of the database has %d bytes, more than %d", len(text), maxDescription)
	}
	return a.put(ctx, numbered(descriptionPrefix, a.fence), text)
}

// Description returns the description by the last node that had the database.
func (a *Archive) Description(ctx context.Context) ([]byte, error) {
	n, found, err := a.newest(ctx, descriptionPrefix)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, ErrNoDescription
	}
	return a.get(ctx, numbered(descriptionPrefix, n))
}
