package acme

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"

	"github.com/pandastack/pandastack/internal/control/store"
)

// Storage implements certmagic.Storage over the store, which encrypts the values. Locks are leases, so that one whose
// holder was killed ends.
type Storage struct {
	db     *store.DB
	holder string
	lease  time.Duration

	mu   sync.Mutex
	held map[string]*lock // guarded by mu
}

// lock is a lock that is held: a goroutine extends its lease.
type lock struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// Times of locks. A lease is extended three times before it ends.
const (
	leaseTime = time.Minute
	lockPoll  = 250 * time.Millisecond
)

// NewStorage returns a storage. lease is how long a lock outlives its process; 0: a minute.
func NewStorage(db *store.DB, lease time.Duration) *Storage {
	if lease <= 0 {
		lease = leaseTime
	}
	return &Storage{db: db, holder: rand.Text(), lease: lease, held: map[string]*lock{}}
}

var _ certmagic.Storage = (*Storage)(nil)

// Store implements certmagic.Storage.
func (s *Storage) Store(ctx context.Context, key string, value []byte) error {
	row := store.Certificate{
		Name: key, Value: base64.StdEncoding.EncodeToString(value), Changed: store.Micros(time.Now()),
	}
	return s.db.Write(ctx, "put certificate", func(ctx context.Context, tx *store.Tx) error {
		return tx.PutCertificate(ctx, &row)
	})
}

func (s *Storage) row(ctx context.Context, key string) (store.Certificate, []byte, error) {
	row, err := s.db.Read().Certificate(ctx, key)
	if errors.Is(err, store.ErrNotFound) {
		return row, nil, fmt.Errorf("%s: %w", key, fs.ErrNotExist)
	}
	if err != nil {
		return row, nil, err
	}
	value, err := base64.StdEncoding.DecodeString(row.Value)
	return row, value, err
}

// Load implements certmagic.Storage.
func (s *Storage) Load(ctx context.Context, key string) ([]byte, error) {
	_, value, err := s.row(ctx, key)
	return value, err
}

// Delete implements certmagic.Storage. It removes a key and all keys below it.
func (s *Storage) Delete(ctx context.Context, key string) error {
	return s.db.Write(ctx, "delete certificate", func(ctx context.Context, tx *store.Tx) error {
		names, err := tx.CertificateNames(ctx)
		if err != nil {
			return err
		}
		return tx.DeleteCertificates(ctx, slices.DeleteFunc(names, func(n string) bool {
			return n != key && !strings.HasPrefix(n, key+"/")
		}))
	})
}

// Exists implements certmagic.Storage.
func (s *Storage) Exists(ctx context.Context, key string) bool {
	_, err := s.Stat(ctx, key)
	return err == nil
}

// List implements certmagic.Storage.
func (s *Storage) List(ctx context.Context, path string, recursive bool) ([]string, error) {
	all, err := s.db.Read().CertificateNames(ctx)
	if err != nil {
		return nil, err
	}
	prefix := strings.TrimSuffix(path, "/") + "/"
	if path == "" {
		prefix = ""
	}
	var found []string
	for _, name := range all {
		rest, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue
		}
		if next, _, nested := strings.Cut(rest, "/"); nested && !recursive {
			name = prefix + next
		}
		if len(found) == 0 || found[len(found)-1] != name {
			found = append(found, name)
		}
	}
	if len(found) == 0 && path != "" {
		return nil, fmt.Errorf("%s: %w", path, fs.ErrNotExist)
	}
	return found, nil
}

// Stat implements certmagic.Storage.
func (s *Storage) Stat(ctx context.Context, key string) (certmagic.KeyInfo, error) {
	row, value, err := s.row(ctx, key)
	if err == nil {
		return certmagic.KeyInfo{
			Key: key, Modified: store.Time(row.Changed), Size: int64(len(value)), IsTerminal: true,
		}, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return certmagic.KeyInfo{}, err
	}
	if _, below := s.List(ctx, key, true); below == nil {
		return certmagic.KeyInfo{Key: key}, nil
	}
	return certmagic.KeyInfo{}, err
}

// Lock implements certmagic.Locker. It waits until the lock is free, or its lease has ended.
func (s *Storage) Lock(ctx context.Context, name string) error {
	poll := time.NewTicker(lockPoll)
	defer poll.Stop()
	for {
		ok, err := s.take(ctx, name)
		if err != nil {
			return err
		}
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-poll.C:
		}
	}
}

// take tries to take a lock.
func (s *Storage) take(ctx context.Context, name string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[name] != nil { // by another goroutine of this process
		return false, nil
	}
	ok, err := s.extend(ctx, name)
	if !ok || err != nil {
		return false, err
	}
	keep, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l := &lock{cancel: cancel, done: make(chan struct{})}
	s.held[name] = l
	go s.keep(keep, name, l)
	return true, nil
}

// extend takes or extends the lease of this process.
func (s *Storage) extend(ctx context.Context, name string) (ok bool, err error) {
	now := time.Now()
	row := store.CertificateLock{Name: name, Holder: s.holder, Expires: store.Micros(now.Add(s.lease))}
	err = s.db.Write(ctx, "lock certificates", func(ctx context.Context, tx *store.Tx) (err error) {
		ok, err = tx.TakeCertificateLock(ctx, &row, store.Micros(now))
		return err
	})
	return ok, err
}

// keep extends a lease until the lock is released.
func (s *Storage) keep(ctx context.Context, name string, l *lock) {
	defer close(l.done)
	tick := time.NewTicker(s.lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			// After a failure the lease is extended at the next tick, while it is still this process's.
			_, _ = s.extend(ctx, name)
		}
	}
}

// Unlock implements certmagic.Locker.
func (s *Storage) Unlock(ctx context.Context, name string) error {
	s.mu.Lock()
	l := s.held[name]
	delete(s.held, name)
	s.mu.Unlock()
	if l == nil {
		return fmt.Errorf("lock %s is not held", name)
	}
	l.cancel()
	<-l.done
	return s.db.Write(ctx, "unlock certificates", func(ctx context.Context, tx *store.Tx) error {
		return tx.DeleteCertificateLock(ctx, name, s.holder)
	})
}
