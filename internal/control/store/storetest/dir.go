package storetest

import (
	"os"
	"testing"
)

// Dir returns a directory for one test, in memory if the machine has one for files: the tests of services write often,
// and each write of a store on a disk waits for the disk.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "pandastack-test")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // the next boot removes what stays
	return dir
}
