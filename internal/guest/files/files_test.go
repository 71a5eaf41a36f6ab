package files

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/guest/passwd"
)

// open returns files with a user of this test's own, whose home is a new directory.
func open(t *testing.T) (*Files, string) {
	t.Helper()
	root, home := t.TempDir(), t.TempDir()
	uid, gid := "0", "0"
	if os.Getuid() == 0 {
		uid, gid = "4711", "4712"
	}
	if err := os.MkdirAll(path.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	passwdFile := "panda:x:" + uid + ":" + gid + "::" + home + ":/bin/sh\n"
	if err := os.WriteFile(path.Join(root, "etc/passwd"), []byte(passwdFile), 0o644); err != nil {
		t.Fatal(err)
	}
	return &Files{Users: passwd.Database{Root: root}, DefaultUser: func() string { return "panda" }}, home
}

func TestNewFilesBelongToTheUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("probe root: only root can change the owner of a file")
	}
	f, home := open(t)
	if _, err := f.Write(t.Context(), "a/b", guestapi.WriteOptions{Mode: 0o640}, strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := f.MakeDir(t.Context(), "~/c/d", ""); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "a/b", "c", "c/d"} {
		i, err := f.Stat(t.Context(), path.Join(home, name), "")
		if err != nil || i.UID != 4711 || i.GID != 4712 || i.User != "panda" || i.Group != "4712" {
			t.Errorf("%s: %+v, %v", name, i, err)
		}
	}
	if i, err := f.Stat(t.Context(), "a/b", ""); err != nil || i.Mode != 0o640 || i.Path != path.Join(home, "a/b") {
		t.Errorf("got %+v, %v", i, err)
	}
}

func TestWriteKeepsModeAndLeavesNoTemporaryFile(t *testing.T) {
	f, home := open(t)
	name := path.Join(home, "script")
	if err := os.WriteFile(name, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, 0o4751|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(t.Context(), name, guestapi.WriteOptions{}, strings.NewReader("new")); err != nil {
		t.Fatal(err)
	}
	if i, err := f.Stat(t.Context(), name, ""); err != nil || i.Mode != 0o4751 || i.Size != 3 {
		t.Errorf("got %+v, %v", i, err)
	}
	broken := io.MultiReader(strings.NewReader("half"), brokenReader{})
	if _, err := f.Write(t.Context(), name, guestapi.WriteOptions{}, broken); err == nil {
		t.Error("Write from a broken reader: got no error")
	}
	if entries, err := os.ReadDir(home); err != nil || len(entries) != 1 {
		t.Errorf("after a failed write: got entries %v, %v, want the file alone", entries, err)
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("broken") }

func TestOddPaths(t *testing.T) {
	f, home := open(t)
	if err := os.Symlink("loop", path.Join(home, "loop")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(path.Join(home, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	read := func(p string) error {
		_, r, err := f.Read(t.Context(), p, "", 0, -1)
		if err == nil {
			_ = r.Close()
		}
		return err
	}
	write := func(p string) error {
		_, err := f.Write(t.Context(), p, guestapi.WriteOptions{}, strings.NewReader("x"))
		return err
	}
	for name, c := range map[string]struct {
		err  error
		want error
	}{
		"nothing":      {read(""), guestapi.ErrInvalid},
		"zero byte":    {read("a\x00b"), guestapi.ErrInvalid},
		"too long":     {read("/" + strings.Repeat("x", 5000)), guestapi.ErrInvalid},
		"long name":    {write("/tmp/" + strings.Repeat("x", 300)), guestapi.ErrInvalid},
		"read a loop":  {read("loop"), guestapi.ErrInvalid},
		"write a loop": {write("loop"), guestapi.ErrInvalid},
		"read a pipe":  {read("pipe"), guestapi.ErrInvalid},
		"under a file": {write("pipe/x"), guestapi.ErrNotDir},
		"to directory": {write(home), guestapi.ErrIsDir},
		"remove root":  {f.Remove(t.Context(), "/", "", true), guestapi.ErrPermission},
		"no such user": {
			func() error { _, err := f.Stat(t.Context(), "/", "nobody-here"); return err }(),
			guestapi.ErrNotFound,
		},
		"offset before": {
			func() error { _, _, err := f.Read(t.Context(), "/etc/passwd", "", -1, 1); return err }(),
			guestapi.ErrInvalid,
		},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v, want %v", name, c.err, c.want)
		}
	}
	if err := write("/dev/null"); err != nil {
		t.Errorf("write to a device: %v", err)
	}
	if st, err := os.Stat("/dev/null"); err != nil || st.Mode().IsRegular() {
		t.Errorf("after a write to a device: got %v, %v, want a device", st, err)
	}
}

// FuzzEvents checks that no bytes make the parser of inotify events panic or loop forever.
func FuzzEvents(f *testing.F) {
	one := binary.NativeEndian.AppendUint32(nil, 1)
	one = binary.NativeEndian.AppendUint32(one, unix.IN_CREATE)
	one = binary.NativeEndian.AppendUint32(one, 0)
	one = binary.NativeEndian.AppendUint32(one, 4)
	f.Add(append(one, "abc\x00"...))
	f.Fuzz(func(t *testing.T, b []byte) {
		w := &watcher{dirs: map[int]string{1: ""}, unread: bytes.Clone(b)}
		for len(w.unread) > 0 {
			before := len(w.unread)
			w.event()
			if len(w.unread) >= before {
				t.Fatal("no progress")
			}
		}
		for _, e := range w.queue {
			if e.Op < guestapi.OpCreate || e.Op > guestapi.OpOverflow {
				t.Errorf("got %+v", e)
			}
		}
	})
}

// TestContentOfEveryLength checks that files around the size at which writes become direct hold the content that was
// sent: with known, unknown and wrong sizes, in pieces that do not match a block, on file systems with and without
// direct writes.
func TestContentOfEveryLength(t *testing.T) {
	f, home := open(t)
	dirs := []string{home}
	if memory, err := os.MkdirTemp("/dev/shm", "files"); err == nil {
		defer os.RemoveAll(memory)
		dirs = append(dirs, memory)
	}
	content := make([]byte, 3*directSize+5000)
	for i := range content {
		content[i] = byte(i>>12) ^ byte(i*7)
	}
	for _, dir := range dirs {
		for _, n := range []int{
			0, 1, 4096, directSize - 1, directSize, directSize + 1, 2*directSize + 4096, len(content),
		} {
			for _, size := range []int64{-1, int64(n), 0, 5, 1 << 40} {
				name := path.Join(dir, "file")
				from := pieced{bytes.NewReader(content[:n]), 33333}
				i, err := f.Write(t.Context(), name, guestapi.WriteOptions{Size: size}, from)
				if err != nil || i.Size != int64(n) {
					t.Fatalf("%s: Write of %d bytes with size %d: got %+v, %v", dir, n, size, i, err)
				}
				if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, content[:n]) {
					t.Fatalf(
						"%s: Write of %d bytes with size %d: read back %d other bytes, %v",
						dir,
						n,
						size,
						len(got),
						err,
					)
				}
			}
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Errorf("after the writes: got entries %v, %v, want none", entries, err)
		}
	}
}

// TestReadOfEveryPart checks reads of a file around the size at which reads become direct: from any offset, of any
// length, with the content in the page cache or not, as a whole and in pieces.
func TestReadOfEveryPart(t *testing.T) {
	f, home := open(t)
	content := make([]byte, 3*directSize+5000)
	for i := range content {
		content[i] = byte(i>>12) ^ byte(i*7)
	}
	name := path.Join(home, "file")
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	forget := func(from, to int64) {
		file, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if err := errors.Join(
			file.Sync(), unix.Fadvise(int(file.Fd()), from, to-from, unix.FADV_DONTNEED),
		); err != nil {
			t.Fatal(err)
		}
	}
	size := int64(len(content))
	for _, offset := range []int64{
		0, 1, 4095, 4096, directSize - 1, directSize, 2*directSize + 17, size - directSize, size - 1, size,
		size + 1,
	} {
		for _, length := range []int64{-1, 0, 1, directSize, directSize + 1, size, 1 << 40} {
			forget(directSize, 2*directSize) // the rest stays in the page cache
			if length == size {
				forget(0, size)
			}
			_, r, err := f.Read(t.Context(), name, "", offset, length)
			if err != nil {
				t.Fatalf("Read of %d bytes from %d: %v", length, offset, err)
			}
			got, err := io.ReadAll(r)
			if err := errors.Join(err, r.Close()); err != nil {
				t.Fatalf("reading %d bytes from %d: %v", length, offset, err)
			}
			want := content[min(offset, size):]
			if length >= 0 && length < int64(len(want)) {
				want = want[:length]
			}
			if !bytes.Equal(got, want) {
				t.Errorf("Read of %d bytes from %d: got %d bytes that differ", length, offset, len(got))
			}
		}
	}
}

// pieced reads at most so many bytes at once.
type pieced struct {
	r    io.Reader
	most int
}

func (p pieced) Read(b []byte) (int, error) { return p.r.Read(b[:min(len(b), p.most)]) }
