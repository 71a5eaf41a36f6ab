package storetest

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/internal/control/store"
)

// empty is the content of a store that nothing was written to: to make one takes most of a short test's time.
var empty struct {
	mu   sync.Mutex
	data []byte // guarded by mu
}

// Empty returns the path of a new SQLite store without rows, in a directory that ends with the test.
func Empty(t testing.TB) string {
	t.Helper()
	path := filepath.Join(Dir(t), "control.db")
	empty.mu.Lock()
	defer empty.mu.Unlock()
	if empty.data != nil {
		if err := os.WriteFile(path, empty.data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	db, err := store.Open(context.WithoutCancel(t.Context()), store.Config{DSN: path})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if empty.data, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	return path
}
