//go:build vm

package machine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/os/disk"
	"github.com/pandastack/pandastack/internal/os/disk/disktest"
)

// smallDisk returns a directory for a host agent on a file system of its own of 3 GiB, below a directory with what
// the prepared data directory has for it.
func smallDisk(t *testing.T) string {
	t.Helper()
	from := directoryOf(t)
	small := disktest.Dir(t, 3<<30)
	dir := filepath.Join(small, "agent")
	if err := os.MkdirAll(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	copies := map[string]string{
		filepath.Join(from, "pandastack-guest"):     dir,
		filepath.Join(filepath.Dir(from), "kernel"): small,
	}
	images, err := filepath.Glob(filepath.Join(filepath.Dir(from), "test-"+string(template)+"-*.ext4"))
	if err != nil || len(images) == 0 {
		t.Fatalf("root images of the template = %v, %v; want one", images, err)
	}
	for _, image := range images {
		copies[image] = small
	}
	for src, dst := range copies {
		cp := exec.CommandContext(t.Context(), "cp", "-a", "--sparse=always", src, dst)
		if out, err := cp.CombinedOutput(); err != nil {
			t.Fatalf("copy %s: %v: %s", src, err, out)
		}
	}
	return dir
}

// directoryOf returns the directory of the shared host agent, which has baked the template.
func directoryOf(t *testing.T) string {
	t.Helper()
	host(t)
	shared.Lock()
	defer shared.Unlock()
	return shared.dir
}

// fillUpTo makes a file that leaves so much of the file system of dir free.
func fillUpTo(t *testing.T, dir string, leave int64) string {
	t.Helper()
	free, _, err := disk.Free(dir)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "filler")
	size := strconv.FormatInt(free-leave, 10)
	if out, err := exec.CommandContext(t.Context(), "fallocate", "-l", size, path).CombinedOutput(); err != nil {
		t.Fatalf("fallocate: %v: %s", err, out)
	}
	return path
}

// awaitPause waits until a machine has the pause reason.
func (l *lab) awaitPause(t *testing.T, id hostapi.MachineID, want hostapi.PauseReason) hostapi.Machine {
	t.Helper()
	deadline := time.Now().Add(timeout)
	for {
		mc, err := l.Get(t.Context(), id)
		if err == nil && mc.PauseReason == want {
			return mc
		}
		if time.Now().After(deadline) {
			t.Fatalf("machine %s = %+v, %v; want pause reason %q", id, mc, err, want)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// TestFullDiskStopsOneGuest lets a guest fill the host's file system. It is paused for no_space and its neighbour
// works, also after a restart of the host agent. When there is space it goes on and every byte is there.
func TestFullDiskStopsOneGuest(t *testing.T) {
	for name, reserve := range map[string]int{"full": 1, "nearly_full": 256} {
		t.Run(name, func(t *testing.T) { checkFullDisk(t, reserve) })
	}
}

func checkFullDisk(t *testing.T, reserveMiB int) {
	dir := smallDisk(t)
	alterMachine = func(c *machine.Config) { c.DiskReserveMiB = reserveMiB }
	t.Cleanup(func() { alterMachine = nil })
	l, err := open(t.Context(), dir, &logger{t})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // also when the test fails between two host agents: its machines run
		var err error
		if l == nil {
			l, err = open(context.WithoutCancel(t.Context()), dir, &logger{t})
		}
		if err == nil {
			for _, id := range []hostapi.MachineID{"writer", "neighbour"} {
				err = errors.Join(err, l.Destroy(context.WithoutCancel(t.Context()), id, "test"))
			}
			err = errors.Join(err, l.close(false))
		}
		if err != nil {
			t.Error(err)
		}
	})
	for _, id := range []hostapi.MachineID{"writer", "neighbour"} {
		req := hostapi.Create{ID: id, Template: template, DiskMiB: 1024, Persistent: true}
		if _, err := l.Create(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	filler := fillUpTo(t, dir, int64(reserveMiB+32)<<20)
	const last = 20_000_000
	l.run(t, "writer", "(seq 1 "+strconv.Itoa(last)+" >/root/numbers && sync && echo done >/root/state) "+
		"</dev/null >/dev/null 2>&1 &")
	if mc := l.awaitPause(t, "writer", hostapi.PausedNoSpace); mc.State != hostapi.Paused {
		t.Errorf("state = %s, want paused", mc.State)
	}
	if got := l.run(t, "neighbour", "echo here"); got != "here" {
		t.Errorf("output of the neighbour = %q, want here", got)
	}
	// The file system may find some space of its own again, and the guest runs until that is used up.
	for err := error(nil); !errors.Is(err, hostapi.ErrNoSpace); {
		if err = l.Resume(t.Context(), "writer"); err != nil && !errors.Is(err, hostapi.ErrNoSpace) {
			t.Fatalf("resume on a full disk: %v, want ErrNoSpace", err)
		}
		l.awaitPause(t, "writer", hostapi.PausedNoSpace)
	}
	err, l = l.close(true), nil
	if err == nil {
		l, err = open(t.Context(), dir, &logger{t})
	}
	if err != nil {
		t.Fatal(err)
	}
	if mc := l.awaitPause(t, "writer", hostapi.PausedNoSpace); mc.Reason != "" {
		t.Errorf("failure of a machine that waits after a restart = %q, want none", mc.Reason)
	}
	if got := l.run(t, "neighbour", "echo again"); got != "again" {
		t.Errorf("output of the neighbour after a restart = %q, want again", got)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	l.awaitPause(t, "writer", "")
	got := l.run(t, "writer", "until [ -e /root/state ]; do sleep 0.2; done; sync; echo 3 >/proc/sys/vm/drop_caches; "+
		"sha256sum </root/numbers | cut -d' ' -f1")
	if want := numbersSum(t, last); got != want {
		t.Errorf("checksum of what the guest wrote = %s, want %s", got, want)
	}
}

// numbersSum returns the checksum of the numbers from 1 through last, one a line.
func numbersSum(t *testing.T, last int) string {
	t.Helper()
	sum := sha256.New()
	line := []byte{}
	for i := 1; i <= last; i++ {
		line = append(strconv.AppendInt(line[:0], int64(i), 10), '\n')
		if _, err := sum.Write(line); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
	return hex.EncodeToString(sum.Sum(nil))
}
