package acme_test

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/ingress/acme"
)

func openStore(t *testing.T) (*store.DB, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "control.db")
	db, err := store.Open(t.Context(), store.Config{DSN: path, Key: make([]byte, store.KeyBytes)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db, path
}

func TestStorage(t *testing.T) {
	db, path := openStore(t)
	s := acme.NewStorage(db, 0)
	ctx := t.Context()
	values := map[string]string{"a/b/c.crt": "certificate", "a/b/c.key": "private key", "a/d": "", "e": "x"}
	for key, value := range values {
		for range 2 {
			if err := s.Store(ctx, key, []byte(value)); err != nil {
				t.Fatal(err)
			}
		}
		got, err := s.Load(ctx, key)
		if err != nil || string(got) != value {
			t.Errorf("%s: %q %v", key, got, err)
		}
		info, err := s.Stat(ctx, key)
		if err != nil || !info.IsTerminal || info.Size != int64(len(value)) || info.Modified.IsZero() {
			t.Errorf("%s: %+v %v", key, info, err)
		}
	}
	for _, c := range []struct {
		path      string
		recursive bool
		want      string
	}{
		{"a", false, "a/b a/d"}, {"a", true, "a/b/c.crt a/b/c.key a/d"}, {"", false, "a e"}, {"a/b/", false,
			"a/b/c.crt a/b/c.key"},
	} {
		got, err := s.List(ctx, c.path, c.recursive)
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("List(%q, %v) = %v %v, want %s", c.path, c.recursive, got, err, c.want)
		}
	}
	if !s.Exists(ctx, "a/b") || s.Exists(ctx, "a/x") || s.Exists(ctx, "a/b/c") {
		t.Error("Exists is wrong")
	}
	raw, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	var value string
	err = raw.QueryRowContext(ctx, "SELECT value FROM certificates WHERE name = 'a/b/c.key'").Scan(&value)
	if err != nil || !strings.HasPrefix(value, "sealed:") {
		t.Errorf("the private key is stored as %.20q %v", value, err)
	}
	if err := s.Delete(ctx, "a/b"); err != nil {
		t.Fatal(err)
	}
	if got, err := s.List(ctx, "", true); err != nil || !slices.Equal(got, []string{"a/d", "e"}) {
		t.Errorf("after Delete: %v %v", got, err)
	}
	for _, missing := range []string{"a/b/c.key", "a/b", "z"} {
		if _, err := s.Load(ctx, missing); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Load(%s): %v", missing, err)
		}
		if _, err := s.Stat(ctx, missing); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Stat(%s): %v", missing, err)
		}
	}
}

// A lock is held by one process, whose lease is extended, and free when that process is gone.
func TestLocks(t *testing.T) {
	db, _ := openStore(t)
	const lease = 300 * time.Millisecond
	one, two := acme.NewStorage(db, lease), acme.NewStorage(db, lease)
	ctx := t.Context()
	if err := one.Lock(ctx, "x"); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*acme.Storage{one, two} {
		short, cancel := context.WithTimeout(ctx, 2*lease)
		if err := s.Lock(short, "x"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a lock that is held: %v", err)
		}
		cancel()
	}
	if err := two.Lock(ctx, "y"); err != nil {
		t.Errorf("another lock: %v", err)
	}
	if err := one.Unlock(ctx, "x"); err != nil {
		t.Fatal(err)
	}
	if err := two.Lock(ctx, "x"); err != nil {
		t.Errorf("a lock that is free: %v", err)
	}
	if err := errors.Join(two.Unlock(ctx, "x"), two.Unlock(ctx, "y")); err != nil {
		t.Error(err)
	}
	if err := one.Unlock(ctx, "x"); err == nil {
		t.Error("a lock that is not held was released")
	}
	dead := store.CertificateLock{Name: "z", Holder: "killed", Expires: store.Micros(time.Now().Add(lease))}
	err := db.Write(ctx, "test", func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.TakeCertificateLock(ctx, &dead, store.Micros(time.Now()))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := one.Lock(ctx, "z"); err != nil {
		t.Errorf("the lock of a process that was killed: %v", err)
	}
	if err := one.Unlock(ctx, "z"); err != nil {
		t.Error(err)
	}
}
