package ext4

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/host/probe"
	"github.com/pandastack/pandastack/internal/host/probe/probetest"
)

// memory is an image over one that stays as it is; it is full after some writes.
type memory struct {
	base   []byte
	over   map[int64][]byte // blocks written, by number
	writes int              // -1: without end
}

func newMemory(base []byte, writes int) *memory { return &memory{base, map[int64][]byte{}, writes} }

// block is a block to write to, or nil for one that was not written.
func (m *memory) block(n int64, write bool) []byte {
	if b := m.over[n]; b != nil || !write {
		return b
	}
	m.over[n] = bytes.Clone(m.base[n*blockSize : (n+1)*blockSize])
	return m.over[n]
}

func (m *memory) ReadAt(p []byte, at int64) (int, error) {
	if at < 0 || at+int64(len(p)) > int64(len(m.base)) {
		return 0, io.ErrUnexpectedEOF
	}
	copy(p, m.base[at:])
	for i := range p {
		if b := m.block((at+int64(i))/blockSize, false); b != nil {
			p[i] = b[(at+int64(i))%blockSize]
		}
	}
	return len(p), nil
}

func (m *memory) WriteAt(p []byte, at int64) (int, error) {
	if m.writes == 0 {
		return 0, unix.ENOSPC
	}
	m.writes--
	if at < 0 || at+int64(len(p)) > int64(len(m.base)) {
		return 0, errors.New("a write beyond the end of the image")
	}
	for done := 0; done < len(p); {
		here := at + int64(done)
		done += copy(m.block(here/blockSize, true)[here%blockSize:], p[done:])
	}
	return len(p), nil
}

// save writes the image to a file, holes where it has zeros.
func (m *memory) save(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	err = f.Truncate(int64(len(m.base)))
	for n := int64(0); n < int64(len(m.base))/blockSize && err == nil; n++ {
		b := m.block(n, false)
		if b == nil {
			b = m.base[n*blockSize : (n+1)*blockSize]
		}
		if !bytes.Equal(b, zeroChunk[:blockSize]) {
			_, err = f.WriteAt(b, n*blockSize)
		}
	}
	return errors.Join(err, f.Close())
}

// emptyImage is what mke2fs makes of a file of 32 MiB with 128 inodes.
func emptyImage(t testing.TB) []byte {
	t.Helper()
	probetest.Need(t, probe.Config{}, probe.Tools)
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := format(t.Context(), f, Options{SizeMiB: 32, Inodes: 128, Seed: "s", Label: "root"}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func seed(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		h.Mode, h.Format = 0o755, tar.FormatPAX
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(w, strings.NewReader(strings.Repeat("content ", 1<<15)), h.Size); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func seeds(t testing.TB) [][]byte {
	xattrs := map[string]string{"SCHILY.xattr.user.a": "b", "SCHILY.xattr.user.big": strings.Repeat("x", 3000)}
	return [][]byte{
		seed(
			t,
			tar.Header{Name: "d/a", Typeflag: tar.TypeReg, Size: 100_000},
			tar.Header{Name: "d/l", Typeflag: tar.TypeLink, Linkname: "d/a"},
			tar.Header{
				Name:     "d/a",
				Typeflag: tar.TypeReg,
				Size:     10,
			},
			tar.Header{Name: "x", Typeflag: tar.TypeReg, PAXRecords: xattrs},
		),
		seed(
			t,
			tar.Header{Name: "d/s", Typeflag: tar.TypeSymlink, Linkname: "/etc"},
			tar.Header{Name: "d", Typeflag: tar.TypeReg, Size: 5},
			tar.Header{
				Name:     "lost+found/x",
				Typeflag: tar.TypeChar,
				Devmajor: 1,
			},
			tar.Header{Name: "./", Typeflag: tar.TypeDir},
		),
	}
}

// TestDiskFull lets the disk be full at every write in turn.
func TestDiskFull(t *testing.T) {
	empty := emptyImage(t)
	for _, b := range seeds(t) {
		failed := 0
		for writes := 0; ; writes++ {
			dev := newMemory(empty, writes)
			fs, err := open(dev)
			if err != nil {
				t.Fatal(err)
			}
			_, err = fs.fill(t.Context(), bytes.NewReader(b), Options{SizeMiB: 32}.withDefaults())
			if err == nil {
				break
			}
			if !errors.Is(err, unix.ENOSPC) {
				t.Fatalf("got %v after %d writes", err, writes)
			}
			failed++
		}
		if failed < 4 {
			t.Errorf("got an image after %d writes only", failed)
		}
	}
}

func TestForeignImages(t *testing.T) {
	empty := emptyImage(t)
	for name, change := range map[string]func([]byte){
		"no-magic":   func(b []byte) { b[superOffset+0x38] = 0 },
		"block-size": func(b []byte) { b[superOffset+0x18] = 0 },
		"checksums":  func(b []byte) { b[superOffset+0x65] |= 4 },
		"inline":     func(b []byte) { b[superOffset+0x61] |= 0x80 },
		"groups":     func(b []byte) { b[superOffset+0x28] = 0; b[superOffset+0x29] = 0 },
	} {
		b := bytes.Clone(empty)
		change(b)
		if _, err := open(newMemory(b, -1)); err == nil {
			t.Errorf("%s: an image that mke2fs was not asked for was opened", name)
		}
	}
}

// FuzzFill writes streams of any bytes into an image; e2fsck must have nothing to say of the result.
func FuzzFill(f *testing.F) {
	empty := emptyImage(f)
	for _, b := range seeds(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		dev := newMemory(empty, -1)
		fs, err := open(dev)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fs.fill(
			t.Context(), bytes.NewReader(b), Options{SizeMiB: 32, MaxBytes: 32 << 20}.withDefaults(),
		); err != nil {
			return
		}
		path := filepath.Join(t.TempDir(), "image")
		if err := dev.save(path); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("e2fsck", "-fn", path).CombinedOutput(); err != nil {
			t.Fatalf("e2fsck: %v\n%s", err, out)
		}
	})
}
