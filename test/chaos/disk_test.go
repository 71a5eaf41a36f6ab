//go:build e2e

package chaos

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/test/nodelab"
)

// fill makes the file system of the node's data directory full but for so many MiB, down to the last block for 0. It
// returns a function that frees it again.
func (l *lab) fill(leaveMiB int) (release func()) {
	l.t.Helper()
	var st syscall.Statfs_t
	if err := syscall.Statfs(l.node.Dir, &st); err != nil {
		l.t.Fatal(err)
	}
	path := filepath.Join(l.node.Dir, "filler")
	release = func() {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			l.t.Error(err)
		}
	}
	l.t.Cleanup(release)
	f, err := os.Create(path)
	if err != nil {
		l.t.Fatal(err)
	}
	defer f.Close()
	// The space that was free is allocated and no more: what the node frees meanwhile is its own. The last blocks
	// cannot be allocated at once.
	size, at := int64(st.Bavail)*st.Bsize-int64(leaveMiB)<<20, int64(0)
	for step := size; step >= st.Bsize; step /= 2 {
		for at+step <= size && err == nil {
			if err = syscall.Fallocate(int(f.Fd()), 0, at, step); err == nil {
				at += step
			}
		}
		if err != nil && !errors.Is(err, syscall.ENOSPC) {
			l.t.Fatal(err)
		}
		err = nil
	}
	return release
}

// TestFullDisk lets a guest write until the file system of the data directory has no space for it. It waits and loses
// nothing; its neighbour, the API and everything that frees space go on, also when the last block is used up.
func TestFullDisk(t *testing.T) {
	l := open(t)
	ctx, cancel := within()
	defer cancel()
	writer, err := l.client.Sandboxes.Create(ctx, api.CreateRequest{Template: "mini", Persistent: true, DiskMB: 1024})
	if err != nil {
		t.Fatal(err)
	}
	neighbour, spare := l.create(true), l.create(true)
	release := l.fill(512 + 64) // half of the reserve, below which machines that grow wait, and some
	const last = 20_000_000
	l.background(writer.ID, fmt.Sprintf("seq 1 %d >/numbers && sync && echo done >/dev/shm/state", last))
	nodelab.Eventually(t, "the writer waits for space", func() error {
		ctx, cancel := within()
		defer cancel()
		s, err := l.client.Sandboxes.Get(ctx, writer.ID)
		if err == nil && (s.Status != api.Paused || s.PauseReason != "no_space") {
			err = fmt.Errorf("it is %s, %q", s.Status, s.PauseReason)
		}
		return err
	})
	if got := l.must(neighbour, "echo here >/dev/shm/x; cat /dev/shm/x"); got != "here" {
		t.Errorf("output of the neighbour = %q, want here", got)
	}
	if _, err := l.client.Sandboxes.Create(ctx, api.CreateRequest{Template: "mini"}); code(err) != api.NoSpace {
		t.Errorf("create with too little space = %v, want no_space", err)
	}
	if status, body := l.node.Send("GET", "/readyz", ""); status == 200 {
		t.Errorf("/readyz with too little space = %d %s, want that it is not ready", status, body)
	}
	release()
	release = l.fill(0)
	if got := l.must(neighbour, "echo here"); got != "here" {
		t.Errorf("output of the neighbour on a full file system = %q, want here", got)
	}
	var key struct{ Prefix string }
	l.node.JSON(&key, "key", "create", "--label", "full-disk")
	l.node.JSON(nil, "key", "revoke", key.Prefix)
	if err := l.client.Sandboxes.Delete(ctx, spare); err != nil {
		t.Errorf("delete on a full file system: %v", err)
	}
	l.node.Kill()
	l.restart()
	if got := l.must(neighbour, "cat /dev/shm/x"); got != "here" {
		t.Errorf("memory of the neighbour after a restart on a full file system = %q, want here", got)
	}
	release()
	nodelab.Eventually(t, "the writer ends when there is space", func() error {
		_, err := l.exec(writer.ID, "test -e /dev/shm/state")
		return err
	})
	const check = "echo 3 >/proc/sys/vm/drop_caches; sha256sum </numbers; seq 1 %d | sha256sum"
	sums := strings.Fields(l.must(writer.ID, fmt.Sprintf(check, last)))
	if len(sums) != 4 || sums[0] != sums[2] {
		t.Errorf("checksums of what the writer wrote and wanted to write = %q", sums)
	}
}
