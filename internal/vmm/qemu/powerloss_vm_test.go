//go:build vm

package qemu_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
	"github.com/pandastack/pandastack/internal/host/pager/fusefs"
	"github.com/pandastack/pandastack/internal/os/disk"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/vmmtest"
)

// recorder is a disk that records what its monitor writes and flushes.
type recorder struct {
	file *os.File
	size int64

	mu    sync.Mutex
	trace []request // guarded by mu
}

// request is one request to a disk: a flush if data is nil.
type request struct {
	off  int64
	data []byte
}

func (r *recorder) Size() int64 { return r.size }

func (r *recorder) ReadAt(_ context.Context, p []byte, off int64) error {
	_, err := r.file.ReadAt(p, off)
	return err
}

func (r *recorder) WriteAt(_ context.Context, p []byte, off int64) error {
	_, err := r.file.WriteAt(p, off)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trace = append(r.trace, request{off, bytes.Clone(p)})
	return err
}

// Sync records a flush before it is answered: the writes that were answered before are covered by it.
func (r *recorder) Sync() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trace = append(r.trace, request{})
	return nil
}

// requests returns how many requests there were.
func (r *recorder) requests() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.trace)
}

// acknowledgement says that a number was on the disk when there had been so many requests.
type acknowledgement struct{ number, requests int }

// syncs is a program that appends numbers to a file and makes new files while another writes without a flush. It prints
// each number once it is on disk.
const syncs = `cd /root; (while true; do head -c 400000 /dev/urandom > noise; done) & noise=$!; i=0
while [ $i -lt 30 ]; do
	i=$((i + 1))
	echo $i >> log && sync log && echo $i > new && sync new && mv new f$((i % 10)) && sync . && echo $i
done
kill $noise`

// recordSyncs restores a machine, gives it a recorded disk, and runs syncs. It returns the disk as it was before.
func recordSyncs(t *testing.T, h *vmmtest.Host, volatile bool) (*recorder, []acknowledgement, string) {
	t.Helper()
	m := h.Restore(t)
	if err := errors.Join(m.Link.Freeze(t.Context(), true), m.Pause(t.Context())); err != nil {
		t.Fatal(err)
	}
	base, work := filepath.Join(m.Spec.Dir, "base.img"), filepath.Join(m.Spec.Dir, "work.img")
	if err := errors.Join(disk.Clone(m.Spec.Disks[0].Path, base), disk.Clone(base, work)); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(work, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{file: file, size: info.Size()}
	mounted, err := fusefs.Mount(t.Context(), filepath.Join(t.TempDir(), "disk"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(m.Link.Close(), m.Kill(context.WithoutCancel(t.Context())), mounted.Close()); err != nil {
			t.Error(err)
		}
	}()
	recorded, err := mounted.Add(t.Context(), "disk.img", r)
	if err != nil {
		t.Fatal(err)
	}
	err = m.Machine.(vmm.DiskSwapper).SwapDisk(t.Context(), 0, vmm.Disk{Path: recorded.Path(), Volatile: volatile})
	if err := errors.Join(err, m.Resume(t.Context()), m.Link.Thaw(t.Context())); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), vmmtest.Timeout)
	defer cancel()
	p, err := m.Link.Start(ctx, guestapi.ProcessSpec{Shell: syncs})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var acked []acknowledgement
	exit, err := guestexec.Follow(ctx, p, guestexec.Sink{Output: func(e guestapi.Event) error {
		for _, text := range strings.Fields(string(e.Data)) {
			number, err := strconv.Atoi(text)
			if err != nil {
				return err
			}
			acked = append(acked, acknowledgement{number, r.requests()})
		}
		return nil
	}})
	if err != nil || exit.Code != 0 || len(acked) != 30 {
		t.Fatalf("the program ended with %+v, %v, and %d numbers, want 30", exit, err, len(acked))
	}
	return r, acked, base
}

// afterLoss makes the disk as a loss of power after some requests may leave it: with everything that was written before
// the last flush, and with some of what was written after it. It returns how many numbers are there.
func (r *recorder) afterLoss(t *testing.T, base string, requests int, random *rand.Rand) int {
	t.Helper()
	path := base + ".lost"
	if err := disk.Clone(base, path); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := disk.Remove(path); err != nil {
			t.Error(err)
		}
	}()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	trace, flushed := r.trace[:requests], 0
	for i, q := range trace {
		if q.data == nil {
			flushed = i
		}
	}
	for i, q := range trace {
		if q.data == nil || i > flushed && random.IntN(2) == 0 {
			continue
		}
		if _, err := f.WriteAt(q.data, q.off); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	// The first run replays the journal.
	for _, flag := range []string{"-fp", "-fn"} {
		text, err := exec.CommandContext(t.Context(), "e2fsck", flag, path).CombinedOutput()
		if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || exit.ExitCode() > 1) {
			t.Fatalf("e2fsck %s after %d of %d requests: %v\n%s", flag, requests, len(r.trace), err, text)
		}
	}
	text, err := exec.CommandContext(t.Context(), "debugfs", "-R", "cat /root/log", path).Output()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, line := range strings.Fields(string(text)) {
		if line != strconv.Itoa(n+1) {
			break
		}
		n++
	}
	return n
}

// testPowerLoss drops what was not flushed at random moments of a recorded run of a guest. What the guest has synced is
// there, and the file system is sound. Flushes of a volatile disk, which would not be, do not arrive.
func testPowerLoss(t *testing.T, h *vmmtest.Host) {
	const cuts = 12
	random := rand.New(rand.NewPCG(1, 2)) // what is chosen depends on the trace, which differs every time
	r, acked, base := recordSyncs(t, h.WithVolatile(false), false)
	for i := range cuts {
		requests := acked[0].requests + random.IntN(len(r.trace)-acked[0].requests) + 1
		if i == 0 {
			requests = acked[len(acked)-1].requests
		}
		want := 0
		for _, a := range acked {
			if a.requests <= requests {
				want = a.number
			}
		}
		if got := r.afterLoss(t, base, requests, random); got < want {
			t.Errorf("after %d of %d requests the disk has %d numbers, and %d were on disk by then", requests,
				len(r.trace), got, want)
		}
	}
	if n := r.flushes(); n < len(acked) {
		t.Errorf("%d flushes for %d numbers", n, len(acked))
	}
	if v, _, _ := recordSyncs(t, h.WithVolatile(true), true); v.flushes() != 0 {
		t.Errorf("%d flushes of a volatile disk, want none", v.flushes())
	}
}

// flushes returns how many requests are flushes.
func (r *recorder) flushes() (n int) {
	for _, q := range r.trace {
		if q.data == nil {
			n++
		}
	}
	return n
}
