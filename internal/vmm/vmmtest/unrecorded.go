package vmmtest

import (
	"runtime"
	"testing"

	"github.com/pandastack/pandastack/internal/lib/proc"
)

// StartUnrecorded starts what looks like a monitor without a record, as its dead starter left it.
// It returns when the process can be found by its marker: the kernel publishes the environment of a
// new program a moment after exec has succeeded. The caller releases it.
func StartUnrecorded(t *testing.T, dir string) *proc.Process {
	t.Helper()
	marker := "PANDASTACK_MONITOR=" + dir
	p, err := proc.Start(proc.Command{Path: "/bin/sleep", Args: []string{"1000"}, Env: []string{marker}})
	if err != nil {
		t.Fatal(err)
	}
	for {
		found, err := proc.Find(marker)
		if err != nil {
			t.Fatal(err)
		}
		if len(found) > 0 {
			return p
		}
		runtime.Gosched()
	}
}
