package ext4_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/host/probe"
	"github.com/pandastack/pandastack/internal/host/probe/probetest"
	"github.com/pandastack/pandastack/internal/image/ext4"
)

// ent is an entry of a stream.
type ent struct {
	name  string
	typ   byte // 0: a file
	data  string
	link  string
	mode  int64
	uid   int
	time  int64
	xattr map[string]string
}

func stream(t testing.TB, ents ...ent) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range ents {
		h := &tar.Header{
			Name:       e.name,
			Typeflag:   e.typ,
			Size:       int64(len(e.data)),
			Linkname:   e.link,
			Mode:       e.mode,
			Uid:        e.uid,
			Gid:        e.uid,
			ModTime:    time.Unix(e.time, 5),
			Format:     tar.FormatPAX,
			PAXRecords: map[string]string{},
		}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if e.typ == tar.TypeChar || e.typ == tar.TypeBlock {
			h.Devmajor, h.Devminor = 259, 70000
		}
		for k, v := range e.xattr {
			h.PAXRecords["SCHILY.xattr."+k] = v
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// image returns an open file for an image, in a directory of its own.
func image(t testing.TB) *os.File {
	t.Helper()
	probetest.Need(t, probe.Config{}, probe.Tools)
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func write(t testing.TB, opt ext4.Options, r io.Reader) (*os.File, ext4.Report) {
	t.Helper()
	f := image(t)
	if opt.SizeMiB == 0 {
		opt.SizeMiB = 64
	}
	report, err := ext4.Write(t.Context(), r, f, opt)
	if err != nil {
		t.Fatal(err)
	}
	checkClean(t, f.Name())
	return f, report
}

// checkClean fails unless e2fsck finds no problem in the image.
func checkClean(t testing.TB, path string) {
	t.Helper()
	out, err := exec.Command("e2fsck", "-fn", path).CombinedOutput()
	if err != nil {
		t.Fatalf("e2fsck: %v\n%s", err, out)
	}
}

// debugfs runs a debugfs request on an image.
func debugfs(t testing.TB, f *os.File, question string) string {
	t.Helper()
	cmd := exec.Command("debugfs", "-R", question, f.Name())
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("debugfs %s: %v", question, err)
	}
	return string(out)
}

func noise(n int) string {
	b := make([]byte, n)
	x := uint64(88172645463325252)
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return string(b)
}

// acl returns an access control list in the format of the system call: owner, user 1000, group, mask, others.
func acl() string {
	b := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range [][3]uint32{
		{1, 7, 1<<32 - 1}, {2, 5, 1000}, {4, 5, 1<<32 - 1}, {0x10, 5, 1<<32 - 1}, {0x20, 4, 1<<32 - 1},
	} {
		b = binary.LittleEndian.AppendUint16(b, uint16(e[0]))
		b = binary.LittleEndian.AppendUint16(b, uint16(e[1]))
		b = binary.LittleEndian.AppendUint32(b, e[2])
	}
	return string(b)
}

const capability = "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

func everything() []ent {
	return []ent{
		{name: "./", typ: tar.TypeDir, mode: 0o755, time: 1_700_000_000},
		{name: "etc/", typ: tar.TypeDir, mode: 0o2755, uid: 70000},
		{name: "etc/passwd", data: "root:x:0:0\n", mode: 0o640, uid: 4_000_000_000, time: 5_000_000_000},
		{name: "etc/hard", typ: tar.TypeLink, link: "./etc/passwd"},
		{name: "short", typ: tar.TypeSymlink, link: "/etc/../../../../etc/passwd"},
		{name: "long", typ: tar.TypeSymlink, link: strings.Repeat("x/", 200)},
		{name: "dev/null", typ: tar.TypeChar, mode: 0o666},
		{name: "dev/disk", typ: tar.TypeBlock},
		{name: "pipe", typ: tar.TypeFifo},
		{
			name:  "bin/ping",
			data:  "elf",
			mode:  0o4755,
			xattr: map[string]string{"security.capability": capability, "user.note": "hello"},
		},
		{
			name: "bin/big-attributes",
			xattr: map[string]string{
				"user.a":        noise(2000),
				"user.bb":       noise(1500),
				"user.c":        "",
				"com.example.x": "dropped",
			},
		},
		{name: "acl", data: "x", xattr: map[string]string{"system.posix_acl_access": acl()}},
		{name: "empty"},
		{name: "old", data: "x", time: -1_000_000_000},
		{name: "big", data: noise(3<<20 + 17)},
		{name: "holes", data: strings.Repeat("\x00", 1<<20) + "x" + strings.Repeat("\x00", 2<<20)},
		{name: "deep/" + strings.Repeat("d/", 100) + "x", data: "deep"},
		{name: strings.Repeat("n", 255), data: "long name"},
		{name: "lost+found/", typ: tar.TypeDir, mode: 0o700},
		{name: "twice", data: noise(100_000)},
		{name: "twice", data: "second"},
		{name: "dir-to-file/a/b", data: noise(100_000)},
		{name: "dir-to-file", data: "file"},
		{name: "\xff\xfe latin", data: "name of bytes"},
	}
}

func TestWrite(t *testing.T) {
	f, report := write(t, ext4.Options{Seed: "s", Extra: []ext4.File{
		{
			Path: "/proc",
			Dir:  true,
			Mode: 0o555,
		}, {Path: "/etc/passwd", Data: []byte("replaced"), Mode: 0o600}, {Path: "/etc", Dir: true},
	}}, bytes.NewReader(stream(t, everything()...)))
	if report.Dropped != 1 || report.Files != 19 || report.Dirs < 105 || report.Free <= 0 || report.Used < 3<<20 {
		t.Errorf("Write: got report %+v", report)
	}
	for question, want := range map[string][]string{
		"stat /etc":          {"Mode:  02755", "User: 70000", "Links: 2"},
		"stat /etc/hard":     {"Links: 1", "User: -294967296", "Mode:  0640", "Size: 11", "mtime: 0x2a05f200"},
		"cat /etc/hard":      {"root:x:0:0"},
		"cat /etc/passwd":    {"replaced"},
		"stat /short":        {`Fast link dest: "/etc/../../../../etc/passwd"`, "Size: 27"},
		"stat /long":         {"Type: symlink", "Size: 400", "EXTENTS"},
		"stat /dev/null":     {"Type: character special", "Device major/minor number: 259:70000"},
		"stat /dev/disk":     {"Type: block special"},
		"stat /pipe":         {"Type: FIFO"},
		"stat /bin/ping":     {"Mode:  04755", "security.capability (20)", "user.note (5)"},
		"ea_list /acl":       {"system.posix_acl_access"},
		"stat /empty":        {"Size: 0", "Blockcount: 0"},
		"stat /holes":        {"Size: 3145729", "Blockcount: 128"},
		"cat /twice":         {"second"},
		"cat /dir-to-file":   {"file"},
		"stat /lost+found":   {"Inode: 11 "},
		"stat /proc":         {"Mode:  0555"},
		"stat <2>":           {"Mode:  0755"},
		"stats":              {"Filesystem state:         clean", "has_journal"},
		"ls /" + "deep/d/d/": {"d"},
	} {
		got := debugfs(t, f, question)
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("%s: got\n%s\nwant %s in it", question, got, w)
			}
		}
	}
	if got := debugfs(t, f, "cat /big"); got != noise(3<<20+17) {
		t.Errorf("large file: got %d bytes that differ", len(got))
	}
	if got := debugfs(t, f, `ea_get /bin/big-attributes -V user.a`); strings.TrimSuffix(got, "\n") != noise(2000) {
		t.Errorf("large attribute: got %d bytes that differ", len(got))
	}
	if _, err := os.Stat("/dir-to-file"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file of the stream was written to the host: %v", err)
	}
}

func TestSameSeedSameFiles(t *testing.T) {
	b := stream(t, everything()...)
	one, _ := write(t, ext4.Options{Seed: "s"}, bytes.NewReader(b))
	two, _ := write(t, ext4.Options{Seed: "s"}, bytes.NewReader(b))
	id := func(f *os.File) string {
		for line := range strings.Lines(debugfs(t, f, "stats")) {
			if strings.HasPrefix(line, "Filesystem UUID") {
				return line
			}
		}
		return ""
	}
	if id(one) == "" || id(one) != id(two) {
		t.Errorf("got different identifiers %s and %s", id(one), id(two))
	}
	if a, b := debugfs(t, one, "stat /big"), debugfs(t, two, "stat /big"); a != b {
		t.Errorf("got different files\n%s\n%s", a, b)
	}
}

func TestManyFilesAndGrowth(t *testing.T) {
	var ents []ent
	for i := range 6000 {
		ents = append(ents, ent{name: fmt.Sprintf("d%d/file-%06d", i%3, i), data: "content of it"})
	}
	f, report := write(t, ext4.Options{SizeMiB: 300, Inodes: 8000}, bytes.NewReader(stream(t, ents...)))
	if report.Files != 6000 || report.Dirs != 5 {
		t.Errorf("got %+v", report)
	}
	if got := debugfs(t, f, "cat /d2/file-005999"); got != "content of it" {
		t.Errorf("got %q", got)
	}
	if info, err := f.Stat(); err != nil || info.Size() != 300<<20 {
		t.Fatalf("got %v, %v", info, err)
	}
	if err := f.Truncate(900 << 20); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("resize2fs", f.Name()).CombinedOutput(); err != nil {
		t.Fatalf("resize2fs: %v\n%s", err, out)
	}
	checkClean(t, f.Name())
}

// TestFragments writes files until no range of free blocks is left, so that extent trees have more than one level.
func TestFragments(t *testing.T) {
	var parts []string
	for range 700 {
		parts = append(parts, noise(64<<10), strings.Repeat("\x00", 64<<10))
	}
	data := strings.Join(parts, "")
	f, _ := write(t, ext4.Options{SizeMiB: 128}, bytes.NewReader(stream(t, ent{name: "f", data: data})))
	if got := debugfs(t, f, "cat /f"); got != data {
		t.Errorf("got content that differs")
	}
	if got := debugfs(t, f, "stat /f"); !strings.Contains(got, "(ETB0)") {
		t.Errorf("got an extent tree without levels:\n%s", got)
	}
}

func TestHostile(t *testing.T) {
	for _, row := range []struct {
		name string
		ents []ent
		want error
	}{
		{"up", []ent{{name: "../../etc/passwd", data: "x"}}, ext4.ErrStream},
		{"up-inside", []ent{{name: "a/../../b", data: "x"}}, ext4.ErrStream},
		{
			"below-link",
			[]ent{{name: "l", typ: tar.TypeSymlink, link: "/etc"}, {name: "l/passwd", data: "x"}},
			ext4.ErrStream,
		},
		{"below-file", []ent{{name: "f", data: "x"}, {name: "f/g", data: "x"}}, ext4.ErrStream},
		{"hard-link-up", []ent{{name: "h", typ: tar.TypeLink, link: "../../../etc/shadow"}}, ext4.ErrStream},
		{"hard-link-to-host", []ent{{name: "h", typ: tar.TypeLink, link: "/etc/shadow"}}, ext4.ErrStream},
		{
			"hard-link-to-directory",
			[]ent{{name: "d/", typ: tar.TypeDir}, {name: "h", typ: tar.TypeLink, link: "d"}},
			ext4.ErrStream,
		},
		{
			"hard-link-through-link",
			[]ent{{name: "l", typ: tar.TypeSymlink, link: "/etc"}, {name: "h", typ: tar.TypeLink, link: "l/shadow"}},
			ext4.ErrStream,
		},
		{"root-is-a-link", []ent{{name: "./", typ: tar.TypeSymlink, link: "/etc"}}, ext4.ErrStream},
		{"lost-and-found", []ent{{name: "lost+found", data: "x"}}, ext4.ErrStream},
		{"long-name", []ent{{name: strings.Repeat("n", 256), data: "x"}}, ext4.ErrStream},
		{"long-target", []ent{{name: "l", typ: tar.TypeSymlink, link: strings.Repeat("n", 4096)}}, ext4.ErrStream},
		{"attribute-name", []ent{{name: "f", xattr: map[string]string{"user.\x01": "x"}}}, ext4.ErrStream},
		{"attribute-size", []ent{{name: "f", xattr: map[string]string{"user.x": noise(5000)}}}, ext4.ErrStream},
		{
			"malformed-acl",
			[]ent{{name: "f", xattr: map[string]string{"system.posix_acl_access": "\x02\x00\x00\x00xxx"}}},
			ext4.ErrStream,
		},
		{"unknown-kind", []ent{{name: "f", typ: 'Q'}}, ext4.ErrStream},
		{"too-many", []ent{{name: "a"}, {name: "b"}, {name: "c"}, {name: "d"}}, ext4.ErrTooLarge},
		{"too-large", []ent{{name: "a", data: noise(33 << 20)}}, ext4.ErrTooLarge},
	} {
		t.Run(row.name, func(t *testing.T) {
			f := image(t)
			_, err := ext4.Write(
				t.Context(),
				bytes.NewReader(stream(t, row.ents...)),
				f,
				ext4.Options{SizeMiB: 64, MaxFiles: 3, MaxBytes: 32 << 20},
			)
			if !errors.Is(err, row.want) {
				t.Errorf("Write: got error %v, want %v", err, row.want)
			}
			assertEmpty(t, f)
		})
	}
}

// assertEmpty fails unless f has no bytes and is alone in its directory.
func assertEmpty(t *testing.T, f *os.File) {
	t.Helper()
	info, err := f.Stat()
	if err != nil || info.Size() != 0 {
		t.Errorf("got %v, %v, want an empty file", info, err)
	}
	names, err := os.ReadDir(filepath.Dir(f.Name()))
	if err != nil || len(names) != 1 {
		t.Errorf("got entries %v, %v, want the image alone", names, err)
	}
}

func TestFull(t *testing.T) {
	var small []ent
	for i := range 5000 {
		small = append(small, ent{name: fmt.Sprint("f", i)})
	}
	for name, b := range map[string][]byte{
		"blocks": stream(t, ent{name: "f", data: noise(40 << 20)}),
		"inodes": stream(t, small...),
	} {
		t.Run(name, func(t *testing.T) {
			f := image(t)
			_, err := ext4.Write(t.Context(), bytes.NewReader(b), f, ext4.Options{SizeMiB: 32, Inodes: 2000})
			if !errors.Is(err, ext4.ErrFull) {
				t.Errorf("Write: got error %v, want ErrFull", err)
			}
			assertEmpty(t, f)
		})
	}
}

// TestZeros writes a file of zeros far larger than the image.
func TestZeros(t *testing.T) {
	var head bytes.Buffer
	const size = 256 << 20
	if err := tar.NewWriter(&head).WriteHeader(
		&tar.Header{Name: "zeros", Typeflag: tar.TypeReg, Size: size, Mode: 0o644},
	); err != nil {
		t.Fatal(err)
	}
	bomb := func() io.Reader {
		return io.MultiReader(bytes.NewReader(head.Bytes()), io.LimitReader(zeros{}, size+1024))
	}
	f := image(t)
	if _, err := ext4.Write(t.Context(), bomb(), f, ext4.Options{SizeMiB: 32}); !errors.Is(err, ext4.ErrTooLarge) {
		t.Errorf("Write: got error %v", err)
	}
	assertEmpty(t, f)
	_, report := write(t, ext4.Options{SizeMiB: 32, MaxBytes: 2 << 30}, bomb())
	if report.Bytes != size || report.Used > 20<<20 {
		t.Errorf("Write: got report %+v", report)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestBadStreams(t *testing.T) {
	b := stream(t, ent{name: "a", data: noise(200_000)}, ent{name: "b", data: "x"})
	gone := errors.New("gone")
	for name, row := range map[string]struct {
		r    io.Reader
		want error
	}{
		"cut-in-content": {bytes.NewReader(b[:100_000]), ext4.ErrStream},
		"cut-in-header":  {bytes.NewReader(b[:200]), ext4.ErrStream},
		"no-tar":         {strings.NewReader(noise(2000)), ext4.ErrStream},
		"reader-fails":   {io.MultiReader(bytes.NewReader(b[:100_000]), failing{gone}), gone},
	} {
		t.Run(name, func(t *testing.T) {
			f := image(t)
			if _, err := ext4.Write(t.Context(), row.r, f, ext4.Options{SizeMiB: 32}); !errors.Is(err, row.want) {
				t.Errorf("Write: got error %v, want %v", err, row.want)
			}
			assertEmpty(t, f)
		})
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestCanceled(t *testing.T) {
	cause := errors.New("asked to stop")
	f := image(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	b := stream(t, ent{name: "a", data: "x"}, ent{name: "b", data: "x"})
	r := io.MultiReader(readFunc(func() { cancel(cause) }), bytes.NewReader(b))
	if _, err := ext4.Write(ctx, r, f, ext4.Options{SizeMiB: 32}); !errors.Is(err, cause) {
		t.Errorf("Write: got error %v, want the context's cause", err)
	}
	assertEmpty(t, f)
}

// readFunc is an empty reader that does something when it is read.
type readFunc func()

func (f readFunc) Read([]byte) (int, error) {
	f()
	return 0, io.EOF
}

func TestNoImage(t *testing.T) {
	f := image(t)
	if _, err := ext4.Write(t.Context(), bytes.NewReader(stream(t)), f, ext4.Options{SizeMiB: 31}); err == nil {
		t.Error("an image of 31 MiB was made")
	}
	read, err := os.Open(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	if _, err := ext4.Write(t.Context(), bytes.NewReader(stream(t)), read, ext4.Options{SizeMiB: 32}); err == nil {
		t.Error("a file opened for reading was written")
	}
}

// BenchmarkWrite imports a tree like that of an image: 20,000 files of 25 KB.
func BenchmarkWrite(b *testing.B) {
	var ents []ent
	for i := range 20_000 {
		ents = append(ents, ent{name: fmt.Sprintf("usr/lib/d%d/f%d", i%200, i), data: noise(25_000), mode: 0o755})
	}
	data := stream(b, ents...)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		f := image(b)
		if _, err := ext4.Write(b.Context(), bytes.NewReader(data), f, ext4.Options{SizeMiB: 2048}); err != nil {
			b.Fatal(err)
		}
	}
}
