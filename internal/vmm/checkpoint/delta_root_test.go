//go:build root

package checkpoint_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/lib/proc"
	"github.com/pandastack/pandastack/internal/vmm/checkpoint"
)

// savedDelta is a dump of a restored process, saved as a delta to its pages file.
type savedDelta struct {
	file  *os.File
	inode uint64
	cp    checkpoint.Checkpoint
	spans []checkpoint.Span
}

// saveDelta dumps a process that was restored from base, with what it maps of an earlier delta.
func saveDelta(t *testing.T, pid int, content *os.File, base *checkpoint.Checkpoint, earlier uint64) savedDelta {
	t.Helper()
	capture, err := checkpoint.Dump(pid, checkpoint.Options{Role: role, Content: content, Base: base, Delta: earlier})
	if err != nil {
		t.Fatal(err)
	}
	d := savedDelta{cp: capture.Checkpoint}
	if d.file, err = os.CreateTemp(t.TempDir(), "delta"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.file.Close() })
	if d.spans, err = capture.SaveDelta(d.file); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(d.file.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	d.inode = st.Ino
	return d
}

// restore restores the process into a stub that has the file of the delta.
func (d savedDelta) restore(t *testing.T, content *os.File) (*proc.Process, *conn) {
	t.Helper()
	delta, err := checkpoint.MapDelta(d.file, &d.cp, d.spans)
	if err != nil {
		t.Fatal(err)
	}
	defer delta.Close() //nolint:errcheck // the pages were copied or mapped
	p, c, plan := startStub(t, &d.cp, content, []*os.File{d.file})
	plan.Delta, plan.DeltaFile = delta, plan.InheritedFDs-1
	stub := checkpoint.Attach(p.PID())
	defer stub.Close()
	if err := stub.Restore(t.Context(), plan); err != nil {
		t.Fatalf("Restore: %v; output %s", err, p.Tail(5))
	}
	return p, c
}

// TestMappedDelta checks that long parts of a delta are mapped and not copied, that processes do not see each other's
// changes of them, and that the next dump contains them whatever happened to them.
func TestMappedDelta(t *testing.T) {
	first, cp, content := startCounter(t)
	_, c := newStub(t, &cp, nil, content)
	p, c2 := newStub(t, &cp, nil, content)
	c2.request(t, "grow")
	saved := saveDelta(t, p.PID(), content, &cp, 0)
	for range 3 {
		q, d := saved.restore(t, content)
		var mapped uint64
		for _, s := range saved.spans {
			private, err := checkpoint.PrivatePages(q.PID(), s.Start, s.End)
			if err != nil {
				t.Fatal(err)
			}
			mapped += s.End - s.Start
			for _, own := range private {
				mapped -= own.End - own.Start
			}
		}
		if mapped < 1<<20 {
			t.Fatalf("%d bytes of the delta are mapped, want at least a MiB", mapped)
		}
		bytes, err := checkpoint.PrivateBytes(q.PID(), 0, saved.inode)
		if without, _ := checkpoint.PrivateBytes(q.PID(), 0, 0); err != nil || bytes < without+1<<20 {
			t.Fatalf("the next capture is estimated at %d bytes, %d of them private: %v", bytes, without, err)
		}
		if got := d.request(t, "time"); got != "True 127" {
			t.Fatalf("the restored process responded %s, want True 127", got)
		}
		if got := d.request(t, "4"); got != "4" {
			t.Fatalf("the restored process continued with sum %s, want 4", got)
		}
		next := saveDelta(t, q.PID(), content, &saved.cp, saved.inode)
		isDelta := func(f checkpoint.File) bool { return strings.Contains(f.Path, "delta") }
		if slices.ContainsFunc(next.cp.Files, isDelta) {
			t.Fatalf("the dump refers to the delta of the image before it: %v", next.cp.Files)
		}
		_, e := next.restore(t, content)
		if got := e.request(t, "time"); got != "True 127" {
			t.Fatalf("the process of the second delta responded %s, want True 127", got)
		}
		if got := e.request(t, "1"); got != "5" {
			t.Fatalf("the process of the second delta continued with sum %s, want 5", got)
		}
	}
	if got := c.request(t, "1"); got != "1" {
		t.Fatalf("a process without the delta continued with sum %s, want 1", got)
	}
	if got := first.request(t, "1"); got != "1" {
		t.Fatalf("the dumped process continued with sum %s, want 1", got)
	}
}
