package kernel_test

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/image/kernel"
)

// entry is an entry of an archive.
type entry struct {
	mode int64
	data string
}

// unpack parses a newc archive.
func unpack(t *testing.T, archive []byte) map[string]entry {
	t.Helper()
	found := map[string]entry{}
	for at := 0; at+110 <= len(archive); {
		head := string(archive[at : at+110])
		if head[:6] != "070701" {
			t.Fatalf("no entry at %d: %q", at, head[:6])
		}
		field := func(i int) int {
			n, err := strconv.ParseInt(head[6+8*i:14+8*i], 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			return int(n)
		}
		mode, size, nameLen := field(1), field(6), field(11)
		name := string(archive[at+110 : at+110+nameLen-1])
		at = (at + 110 + nameLen + 3) &^ 3
		if name == "TRAILER!!!" {
			return found
		}
		found[name] = entry{int64(mode), string(archive[at : at+size])}
		at = (at + size + 3) &^ 3
	}
	t.Fatal("the archive has no end")
	return nil
}

// agent makes a program that is accepted as a guest agent: a minimal static ELF file.
func agent(t *testing.T, dir, text string) string {
	t.Helper()
	h := make([]byte, 64)
	copy(h, "\x7fELF\x02\x01\x01")
	h[16], h[18], h[20] = byte(elf.ET_EXEC), byte(elf.EM_X86_64), 1
	h[52] = 64
	path := filepath.Join(dir, "guest")
	if err := os.WriteFile(path, append(h, text...), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestBuildInitramfs(t *testing.T) {
	dir := t.TempDir()
	guest := agent(t, dir, "agent")
	var modules []string
	for i, name := range []string{"virtio_ring.ko", "virtio.ko"} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(strings.Repeat("m", 5+i)), 0o644); err != nil {
			t.Fatal(err)
		}
		modules = append(modules, path)
	}
	var out, again bytes.Buffer
	for _, w := range []*bytes.Buffer{&out, &again} {
		if err := kernel.BuildInitramfs(t.Context(), w, guest, modules); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(out.Bytes(), again.Bytes()) {
		t.Error("equal content made a different archive")
	}
	got := unpack(t, out.Bytes())
	if e := got["init"]; e.mode != 0o100755 || !strings.HasSuffix(e.data, "agent") {
		t.Errorf("/init: got mode %o and %d bytes", e.mode, len(e.data))
	}
	if e, want := got["modules/order"], order("virtio_ring.ko", "mmmmm", "virtio.ko", "mmmmmm"); e.data != want {
		t.Errorf("/modules/order: got %q, want %q", e.data, want)
	}
	if e := got["modules/virtio.ko"]; e.data != "mmmmmm" {
		t.Errorf("/modules/virtio.ko: got %q", e.data)
	}
	if e := got["dev/console"]; e.mode != 0o020600 {
		t.Errorf("/dev/console: got mode %o", e.mode)
	}
}

// order returns the content of /modules/order for names and contents of modules.
func order(namesAndContents ...string) string {
	sum := func(text string) uint32 { return crc32.Checksum([]byte(text), crc32.MakeTable(crc32.Castagnoli)) }
	lines := ""
	for i := 0; i < len(namesAndContents); i += 2 {
		lines += fmt.Sprintf("%08x %s\n", sum(namesAndContents[i+1]), namesAndContents[i])
	}
	return lines + fmt.Sprintf("%08x\n", sum(lines))
}

func TestBuildInitramfsRefusesAgent(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"missing":   filepath.Join(dir, "none"),
		"directory": dir,
		"script":    script,
	} {
		t.Run(name, func(t *testing.T) {
			var want *kernel.AgentError
			if err := kernel.BuildInitramfs(t.Context(), &bytes.Buffer{}, path, nil); !errors.As(err, &want) {
				t.Errorf("BuildInitramfs: got error %v, want *kernel.AgentError", err)
			}
		})
	}
}

func TestBuildInitramfsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cancel(cause)
	guest := agent(t, t.TempDir(), "agent")
	if err := kernel.BuildInitramfs(ctx, &bytes.Buffer{}, guest, []string{guest}); !errors.Is(err, cause) {
		t.Errorf("BuildInitramfs: got error %v, want the context's cause", err)
	}
}

// put installs a kernel by hand, as Install leaves it.
func put(t *testing.T, dir, kind, image string, modules ...string) {
	t.Helper()
	if err := kernel.Put(filepath.Join(dir, kind), kind, image, modules...); err != nil {
		t.Fatal(err)
	}
}

func TestFindPrefersTheTunedKernel(t *testing.T) {
	dir := t.TempDir()
	guest := agent(t, dir, "one")
	var none *kernel.NotFoundError
	if _, err := kernel.Find(t.Context(), dir, guest); !errors.As(err, &none) {
		t.Errorf("Find in an empty directory: got error %v, want *kernel.NotFoundError", err)
	}
	put(t, dir, "distribution", "vmlinuz", "virtio.ko")
	first, err := kernel.Find(t.Context(), dir, guest)
	if err != nil || !first.ACPI || first.Version != "distribution" {
		t.Fatalf("Find: got %+v, %v, want the distribution's kernel", first, err)
	}
	data, err := os.ReadFile(first.Initramfs)
	if err != nil || unpack(t, data)["modules/order"].data != order("virtio.ko", "distributionvirtio.ko") {
		t.Errorf("the initramfs does not contain the module: %v", err)
	}
	again, err := kernel.Find(t.Context(), dir, guest)
	if err != nil || again != first {
		t.Errorf("second Find: got %+v, %v, want the same result", again, err)
	}
	agent(t, dir, "two")
	other, err := kernel.Find(t.Context(), dir, guest)
	if err != nil || other.Digest == first.Digest || other.Initramfs == first.Initramfs {
		t.Errorf("Find with another guest agent: got digest %s, %v", other.Digest, err)
	}
	put(t, dir, "tuned", "vmlinux")
	tuned, err := kernel.Find(t.Context(), dir, guest)
	if err != nil || tuned.ACPI || tuned.Version != "tuned" {
		t.Errorf("Find: got %+v, %v, want the tuned kernel", tuned, err)
	}
}

func TestFindRefusesDamage(t *testing.T) {
	damage := map[string]func(path string) error{
		"changed":  func(p string) error { return os.WriteFile(filepath.Join(p, "vmlinuz"), []byte("?"), 0o644) },
		"missing":  func(p string) error { return os.Remove(filepath.Join(p, "vmlinuz")) },
		"module":   func(p string) error { return os.Truncate(filepath.Join(p, "modules", "virtio.ko"), 1) },
		"metadata": func(p string) error { return os.WriteFile(filepath.Join(p, "kernel.json"), []byte("{"), 0o644) },
	}
	for name, do := range damage {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			guest := agent(t, dir, "one")
			put(t, dir, "distribution", "vmlinuz", "virtio.ko")
			if err := do(filepath.Join(dir, "distribution")); err != nil {
				t.Fatal(err)
			}
			var want *kernel.DamagedError
			_, err := kernel.Find(t.Context(), dir, guest)
			if !errors.As(err, &want) || !strings.Contains(fmt.Sprint(err), "pandastack setup") {
				t.Errorf("Find: got error %v, want *kernel.DamagedError with the remedy", err)
			}
		})
	}
}
