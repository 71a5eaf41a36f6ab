package build

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/internal/control/store"
)

// TestLogLinesAreWrittenOnce flushes a log concurrently, as the periodic flush and the end of a build do.
func TestLogLinesAreWrittenOnce(t *testing.T) {
	db, err := store.Open(t.Context(), store.Config{DSN: filepath.Join(t.TempDir(), "c.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	j, err := openLog(t.Context(), db, "bld")
	if err != nil {
		t.Fatal(err)
	}
	const lines = 2000
	for n := range lines {
		j.append(levelInfo, "", fmt.Sprint("line ", n))
	}
	var all sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		all.Go(func() { errs[i] = j.flush(t.Context()) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if last, err := db.Read().LastBuildLine(t.Context(), "bld"); err != nil || last != lines {
		t.Errorf("got %d lines in the store, %v; want %d", last, err, lines)
	}
}
