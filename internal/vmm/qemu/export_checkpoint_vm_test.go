//go:build vm

package qemu_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/qemu"
	"github.com/pandastack/pandastack/internal/vmm/vmmtest"
)

// testExportImport exports the image of a machine with its checkpoint and restores it with another
// driver. That driver has never seen the base pages file, and its host's clock is behind. Monitor
// and guest must continue, and the machine must be forkable.
func testExportImport(t *testing.T, h *vmmtest.Host) {
	m := h.Restore(t)
	m.Put(t, "/dev/shm/word", []byte("far"))
	if err := errors.Join(m.Link.Freeze(t.Context(), true), m.Pause(t.Context())); err != nil {
		t.Fatal(err)
	}
	image, disk := h.Save(t, m)
	from := h.Driver.(vmm.CheckpointExporter)
	exported, err := from.ExportCheckpoint(t.Context(), image)
	if err != nil || exported == nil {
		t.Fatalf("ExportCheckpoint() = %v, %v; want a checkpoint", exported, err)
	}
	defer exported.Content.Close()
	origin, err := from.ExportCheckpoint(t.Context(), h.Image)
	if err != nil || origin == nil {
		t.Fatalf("ExportCheckpoint() of the template = %v, %v; want a checkpoint", origin, err)
	}
	defer origin.Content.Close()
	l := h.Lab
	l.Dir = filepath.Join(h.Lab.Dir, "other")
	imported := vmm.Image{Dir: filepath.Join(l.Dir, "image"), Manifest: image.Manifest}
	if err := os.MkdirAll(imported.Dir, 0o711); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(l.Dir); err != nil {
			t.Error(err)
		}
	})
	for _, f := range image.Manifest.Files {
		if err := os.Link(filepath.Join(image.Dir, f.Name), filepath.Join(imported.Dir, f.Name)); err != nil {
			t.Fatal(err)
		}
	}
	d, err := qemu.New(t.Context(), qemu.Config{Binary: *binary, Dir: filepath.Join(l.Dir, "qemu")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	about := map[string]json.RawMessage{}
	if err := json.Unmarshal(exported.Description, &about); err != nil {
		t.Fatal(err)
	}
	about["clock"] = fmt.Append(nil, int64(1000*time.Hour))
	if exported.Description, err = json.Marshal(about); err != nil {
		t.Fatal(err)
	}
	err = d.ImportCheckpoint(
		t.Context(),
		imported,
		vmm.CheckpointSource{
			Description: exported.Description,
			Fetch: func(_ context.Context, first bool, to io.WriterAt) (int64, error) {
				from := exported
				if first {
					from = origin
				}
				return io.Copy(io.NewOffsetWriter(to, 0), io.NewSectionReader(from.Content, 0, math.MaxInt64))
			},
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	if known, err := d.HasCheckpoint(imported); err != nil || !known {
		t.Fatalf("HasCheckpoint() = %v, %v; want true, nil", known, err)
	}
	far := &vmmtest.Host{Lab: l, Driver: d, Image: imported, Disk: disk}
	n := far.Restore(t)
	check := func(n *vmmtest.Machine) {
		t.Helper()
		n.WantFile(t, "/dev/shm/word", []byte("far"))
		if r := n.Run(t, "read a b < /proc/uptime; sleep 0.3; read c d < /proc/uptime; [ ${c%.*}${c#*.} -gt "+
			"${a%.*}${a#*.} ] && [ ${c%.*} -lt 3600 ] && echo goes on"); r.Stdout != "goes on\n" {
			t.Errorf("the guest's clock did not advance: %+v", r)
		}
		mine, err := os.Readlink("/proc/self/ns/time")
		its, failed := os.Readlink(fmt.Sprintf("/proc/%d/ns/time", n.PID()))
		if err != nil || failed != nil || mine == its {
			t.Errorf(
				"the monitor is in time namespace %s (%v) and the test in %s (%v), want different ones",
				its,
				failed,
				mine,
				err,
			)
		}
	}
	check(n)
	for _, child := range far.Fork(t, n, 2) {
		check(child)
	}
	check(n)
	far.Image.Memory = mappedMemory{filepath.Join(imported.Dir, "memory")}
	n = far.Restore(t)
	check(n)
	if flags := flagsOf(t, n.PID(), imported.Dir); !strings.Contains(flags, " rr ") {
		t.Errorf("the monitor's memory mapping has the flags%s, want rr (random read)", flags)
	}
}

// mappedMemory is a vmm.Memory that is still being downloaded, so each page is read alone.
type mappedMemory struct{ path string }

func (a mappedMemory) File() string                               { return a.path }
func (a mappedMemory) Serve(context.Context, *net.UnixConn) error { return errors.ErrUnsupported }

// flagsOf returns the flags of a process's mapping of an image's memory file (proc_pid_smaps(5)).
func flagsOf(t *testing.T, pid int, dir string) string {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(maps), dir+"/memory\n")
	_, rest, imported := strings.Cut(rest, "VmFlags:")
	if !found || !imported {
		t.Fatal("the monitor does not map the memory file")
	}
	flags, _, _ := strings.Cut(rest, "\n")
	return flags + " "
}
