package dockerfile_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/pandastack/pandastack/internal/image/dockerfile"
)

// tree is a context: a name that ends in / is a directory, and a content that begins with -> is a symbolic link.
type tree map[string]string

func (tr tree) fs() fs.FS {
	m := fstest.MapFS{}
	for name, content := range tr {
		f := &fstest.MapFile{Data: []byte(content), Mode: 0o644}
		if target, ok := strings.CutPrefix(content, "->"); ok {
			f.Data, f.Mode = []byte(target), fs.ModeSymlink|0o777
		}
		if strings.HasSuffix(name, "/") {
			f.Mode = fs.ModeDir | 0o750
		}
		if strings.HasSuffix(name, ".sh") {
			f.Mode = 0o755
		}
		m[strings.TrimSuffix(name, "/")] = f
	}
	return m
}

func openContext(t *testing.T, tr tree, keep ...string) *dockerfile.Context {
	t.Helper()
	c, err := dockerfile.OpenDir(tr.fs(), dockerfile.Limits{}, keep...)
	if err != nil {
		t.Fatalf("open context: %v", err)
	}
	return c
}

// repack packs c and opens the packed stream.
func repack(t *testing.T, c *dockerfile.Context, keep ...string) *dockerfile.Context {
	t.Helper()
	var b bytes.Buffer
	if err := c.Pack(&b); err != nil {
		t.Fatalf("pack: %v", err)
	}
	c, err := dockerfile.OpenTar(bytes.NewReader(b.Bytes()), int64(b.Len()), dockerfile.Limits{}, keep...)
	if err != nil {
		t.Fatalf("open packed context: %v", err)
	}
	return c
}

// copyOf returns the Copy of an instruction.
func copyOf(t *testing.T, instruction string) dockerfile.Copy {
	t.Helper()
	plan := parse(t, "FROM a\n"+instruction+"\n", dockerfile.Options{})
	return *plan.Stages[0].Steps[0].Copy
}

// list returns the entries that a Selection writes, as lines "name mode uid:gid content".
func list(t *testing.T, s *dockerfile.Selection) string {
	t.Helper()
	var b bytes.Buffer
	if err := s.WriteTar(t.Context(), &b, 7, 8); err != nil {
		t.Fatalf("write selection: %v", err)
	}
	var out []string
	r := tar.NewReader(&b)
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("read selection: %v", err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatalf("read selection: %v", err)
		}
		if h.Name == "./" {
			out = append(out, "/")
			continue
		}
		out = append(
			out,
			strings.TrimSpace(fmt.Sprintf("%s %o %d:%d %s%s", h.Name, h.Mode, h.Uid, h.Gid, h.Linkname, data)),
		)
	}
	return strings.Join(out, "\n")
}

var shop = tree{
	"Dockerfile": "FROM x", ".dockerignore": "node_modules\n*.log\n!keep.log\nsecret/**\n!secret/public\nDockerfile",
	"a.txt": "a", "b.txt": "b", "run.sh": "#!", "debug.log": "x", "keep.log": "k", "node_modules/m/index.js": "m",
	"src/main.go": "main", "src/sub/x.go": "x", "src/sub/y.txt": "y", "src/link": "->/etc/passwd", "src/empty/": "",
	"to-a": "->a.txt", "to-src": "->src", "out": "->/etc/passwd", "up": "->../x", "loop": "->loop",
	"src/up":     "->../a.txt",
	"secret/key": "s", "secret/public": "p",
}

func TestSelect(t *testing.T) {
	direct := openContext(t, shop, "Dockerfile")
	packed := repack(t, direct, "Dockerfile")
	for _, row := range []struct{ name, instruction, want string }{
		{"file", "COPY a.txt /x", "a.txt 644 7:8 a"},
		{"file-to-directory", "COPY a.txt /x/", "/\na.txt 644 7:8 a"},
		{"absolute", "COPY /a.txt /x", "a.txt 644 7:8 a"},
		{"mode", "COPY --chmod=0600 run.sh /x", "run.sh 600 7:8 #!"},
		{"executable", "COPY run.sh /x", "run.sh 755 7:8 #!"},
		{"directory", "COPY src /x", "/\nempty/ 750 7:8\nlink 777 7:8 /etc/passwd\nmain.go 644 7:8 main\n" +
			"sub/ 555 7:8\nsub/x.go 644 7:8 x\nsub/y.txt 644 7:8 y\nup 777 7:8 ../a.txt"},
		{"empty-directory", "COPY src/empty /x", "/"},
		{"exclude", "COPY --exclude=sub --exclude=*link src /x",
			"/\nempty/ 750 7:8\nmain.go 644 7:8 main\nup 777 7:8 ../a.txt"},
		{"exclude-but", "COPY --exclude=** --exclude=!sub/*.go src /x", "/\nsub/x.go 644 7:8 x"},
		{"pattern", "COPY ?.txt /x/", "/\na.txt 644 7:8 a\nb.txt 644 7:8 b"},
		{"pattern-directories", "COPY s*/su[b] /x/", "/\nx.go 644 7:8 x\ny.txt 644 7:8 y"},
		{"optional", "COPY a.txt none* /x/", "/\na.txt 644 7:8 a"},
		{"ignored", "COPY *.log /x/", "/\nkeep.log 644 7:8 k"},
		{"ignored-but", "COPY secret /x/", "/\npublic 644 7:8 p"},
		{"through-link", "COPY to-src/main.go /x", "main.go 644 7:8 main"},
		{"link-to-file", "COPY to-a /x", "to-a 644 7:8 a"},
		{"link-in-directory", "COPY src/up /x", "up 644 7:8 a"},
		{"parents", "COPY --parents src/sub/x.go a.txt /x/",
			"/\na.txt 644 7:8 a\nsrc/ 555 7:8\nsrc/sub/ 555 7:8\nsrc/sub/x.go 644 7:8 x"},
		{"parents-pivot", "COPY --parents src/./sub /x/", "/\nsub/ 555 7:8\nsub/x.go 644 7:8 x\nsub/y.txt 644 7:8 y"},
		{"document", "COPY <<n.txt a.txt /x/\nhello\nn.txt", "/\na.txt 644 7:8 a\nn.txt 644 7:8 hello"},
	} {
		t.Run(row.name, func(t *testing.T) {
			cp := copyOf(t, row.instruction)
			var digests []string
			for _, c := range []*dockerfile.Context{direct, packed} {
				s, err := c.Select(cp)
				if err != nil {
					t.Fatalf("select: %v", err)
				}
				if got := list(t, s); got != row.want {
					t.Errorf("got\n%s\nwant\n%s", got, row.want)
				}
				digests = append(digests, s.Digest)
			}
			if digests[0] != digests[1] || len(digests[0]) != 64 {
				t.Errorf("got digests %v of directory and stream, want equal ones of 64 digits", digests)
			}
		})
	}
}

// TestSelectConcurrently uses one context in several goroutines.
func TestSelectConcurrently(t *testing.T) {
	c, cp := openContext(t, shop), copyOf(t, "COPY . /x")
	want, err := c.Select(cp)
	if err != nil {
		t.Fatal(err)
	}
	fresh := openContext(t, shop)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			s, err := fresh.Select(cp)
			if err != nil || s.Digest != want.Digest {
				t.Errorf("Select = %v, %v; want digest %s", s, err, want.Digest)
				return
			}
			if err := s.WriteTar(t.Context(), io.Discard, 0, 0); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestWorkIsBounded(t *testing.T) {
	tr := tree{}
	for i := range 100 {
		tr[fmt.Sprint("f", i)] = "x"
	}
	c, err := dockerfile.OpenDir(tr.fs(), dockerfile.Limits{MaxWork: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for _, instruction := range []string{"COPY" + strings.Repeat(" f*", 30) + " /x/", "COPY" +
		strings.Repeat(" --exclude=none", 20) + " . /x"} {
		if _, err := c.Select(copyOf(t, instruction)); !errors.Is(err, dockerfile.ErrContext) ||
			!strings.Contains(err.Error(), "too many patterns") {
			t.Errorf("%s: got %v, want an ErrContext about too many patterns", instruction, err)
		}
	}
	tr[".dockerignore"] = strings.Repeat("none\n", 20)
	if _, err := dockerfile.OpenDir(tr.fs(), dockerfile.Limits{MaxWork: 1000}); !errors.Is(err, dockerfile.ErrContext) {
		t.Errorf("OpenDir with many ignore patterns: got %v, want ErrContext", err)
	}
}

func TestSelectRefusals(t *testing.T) {
	c := openContext(t, shop)
	for _, row := range []struct{ name, instruction, want string }{
		{"missing", "COPY nothing /x", "nothing does not exist"},
		{"ignored", "COPY node_modules /x", ".dockerignore"},
		{"no-match", "COPY z* /x/", "nothing matches"},
		{"link-out", "COPY out /x", "outside"},
		{"link-up", "COPY up /x", "outside"},
		{"through-link-out", "COPY out/passwd /x", "outside"},
		{"loop", "COPY loop /x", "symbolic links"},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, err := c.Select(copyOf(t, row.instruction))
			if !errors.Is(err, dockerfile.ErrContext) || !strings.Contains(err.Error(), row.want) {
				t.Errorf("got %v, want an ErrContext with %q", err, row.want)
			}
		})
	}
	if _, err := c.Select(dockerfile.Copy{Sources: []string{"../x"}, Dest: "/"}); !errors.Is(
		err,
		dockerfile.ErrContext,
	) {
		t.Errorf("a source above the context: got %v, want ErrContext", err)
	}
}

func TestReadFile(t *testing.T) {
	c := repack(t, openContext(t, shop, "Dockerfile"), "Dockerfile")
	if text, err := c.ReadFile("Dockerfile", 100); err != nil || string(text) != "FROM x" {
		t.Errorf("ReadFile(Dockerfile) = %q, %v; want FROM x", text, err)
	}
	if _, err := c.ReadFile("none", 100); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ReadFile(none): got %v, want ErrNotExist", err)
	}
	if _, err := c.ReadFile("out", 100); !errors.Is(err, dockerfile.ErrContext) {
		t.Errorf("ReadFile of a link out of the context: got %v, want ErrContext", err)
	}
	if _, err := c.ReadFile("src", 100); !errors.Is(err, dockerfile.ErrContext) {
		t.Errorf("ReadFile of a directory: got %v, want ErrContext", err)
	}
}

func TestDigestDependsOnContent(t *testing.T) {
	cp := copyOf(t, "COPY . /x")
	digest := func(change func(tree)) string {
		tr := tree{"a": "1", "b.sh": "2", "d/": "", "l": "->a"}
		change(tr)
		s, err := openContext(t, tr).Select(cp)
		if err != nil {
			t.Fatalf("select: %v", err)
		}
		return s.Digest
	}
	same := digest(func(tree) {})
	if again := digest(func(tree) {}); again != same {
		t.Errorf("got digests %s and %s of the same files, want equal ones", same, again)
	}
	seen := map[string]string{same: "none"}
	for name, change := range map[string]func(tree){
		"content": func(tr tree) { tr["a"] = "2" },
		"name":    func(tr tree) { delete(tr, "a"); tr["aa"] = "1"; tr["l"] = "->aa" },
		"link":    func(tr tree) { tr["l"] = "->d" },
		"more":    func(tr tree) { tr["e/"] = "" },
		"mode":    func(tr tree) { delete(tr, "b.sh"); tr["b.s"] = "2" },
	} {
		d := digest(change)
		if other, ok := seen[d]; ok {
			t.Errorf("changes %s and %s: got the same digest, want different ones", name, other)
		}
		seen[d] = name
	}
}

func TestHostDirectory(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "secret")
	if err := errors.Join(os.WriteFile(outside, []byte("s"), 0o600),
		os.WriteFile(filepath.Join(dir, "a"), []byte("1"), 0o644),
		os.Symlink(outside, filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	c, err := dockerfile.OpenDir(root.FS(), dockerfile.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Select(copyOf(t, "COPY . /x"))
	if err != nil {
		t.Fatal(err)
	}
	if got := list(t, s); !strings.Contains(got, "link 777 7:8 "+outside) || strings.Contains(got, " s\n") {
		t.Errorf("got %s, want the link and not its target", got)
	}
	if _, err := c.Select(copyOf(t, "COPY link /x")); !errors.Is(err, dockerfile.ErrContext) {
		t.Errorf("COPY of a link to a file of the host: got %v, want ErrContext", err)
	}
}

// packTar makes a tar stream of headers. The content of each file is its name.
func packTar(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(h.Name))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := io.WriteString(w, h.Name); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestHostileTar(t *testing.T) {
	for _, row := range []struct {
		name    string
		headers []tar.Header
		want    string
	}{
		{"up", []tar.Header{{Name: "../a"}}, "leaves"},
		{"up-inside", []tar.Header{{Name: "a/../../b"}}, "leaves"},
		{"below-link", []tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/etc"}, {Name: "l/passwd"}},
			"not a directory"},
		{"below-file", []tar.Header{{Name: "f"}, {Name: "f/g"}}, "not a directory"},
		{"file-over-directory", []tar.Header{{Name: "d/f"}, {Name: "d"}}, "something else"},
		{"device", []tar.Header{{Name: "sda", Typeflag: tar.TypeBlock, Devmajor: 8}}, "neither"},
		{"pipe", []tar.Header{{Name: "p", Typeflag: tar.TypeFifo}}, "neither"},
		{"hard-link-out", []tar.Header{{Name: "h", Typeflag: tar.TypeLink, Linkname: "../../etc/shadow"}}, "leaves"},
		{"hard-link-to-nothing", []tar.Header{{Name: "h", Typeflag: tar.TypeLink, Linkname: "etc/shadow"}},
			"not an earlier file"},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := packTar(t, row.headers...)
			_, err := dockerfile.OpenTar(bytes.NewReader(b), int64(len(b)), dockerfile.Limits{})
			if !errors.Is(err, dockerfile.ErrContext) || !strings.Contains(err.Error(), row.want) {
				t.Errorf("OpenTar: got %v, want an ErrContext with %q", err, row.want)
			}
		})
	}
	b := packTar(
		t,
		tar.Header{Name: "a"},
		tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "./a"},
		tar.Header{Name: "/abs"},
		tar.Header{Name: "a"},
	)
	c, err := dockerfile.OpenTar(bytes.NewReader(b), int64(len(b)), dockerfile.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Select(copyOf(t, "COPY . /"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := list(t, s), "/\na 644 7:8 a\nabs 644 7:8 /abs\nh 644 7:8 a"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for name, limits := range map[string]dockerfile.Limits{"files": {MaxFiles: 2}, "bytes": {MaxBytes: 3}} {
		if _, err := dockerfile.OpenTar(bytes.NewReader(b), int64(len(b)), limits); !errors.Is(
			err,
			dockerfile.ErrContext,
		) {
			t.Errorf("above the limit of %s: got %v, want ErrContext", name, err)
		}
	}
	if _, err := dockerfile.OpenTar(bytes.NewReader(b[:1100]), 1100, dockerfile.Limits{}); !errors.Is(
		err,
		dockerfile.ErrContext,
	) {
		t.Errorf("a truncated stream: got %v, want ErrContext", err)
	}
}

func TestManyFiles(t *testing.T) {
	tr := tree{".dockerignore": "**/skip*\n"}
	for i := range 10_000 {
		tr[fmt.Sprintf("d%d/e%d/f%d", i%10, i%100, i)] = "x"
		if i%10 == 0 {
			tr[fmt.Sprintf("d%d/skip%d", i%10, i)] = "y"
		}
	}
	c := repack(t, openContext(t, tr))
	s, err := c.Select(copyOf(t, "COPY . /x"))
	if err != nil {
		t.Fatal(err)
	}
	if s.Files != 10_000+10+100+1 {
		t.Errorf("got %d files, want %d", s.Files, 10_000+10+100+1)
	}
	if n := strings.Count(list(t, s), "\n"); n != s.Files {
		t.Errorf("got %d lines, want one for each of %d files", n, s.Files)
	}
}

func zipped(t *testing.T, b []byte) string {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestArchives(t *testing.T) {
	archive := packTar(
		t,
		tar.Header{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755, Uid: 1},
		tar.Header{Name: "bin/x", Uid: 1, Gid: 2, Mode: 0o4755},
		tar.Header{
			Name:     "bin/y",
			Typeflag: tar.TypeLink,
			Linkname: "bin/x",
		},
		tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../../etc"},
	)
	bomb := bytes.Repeat(packTar(t, tar.Header{Name: "a"})[:1024], 300)
	tr := tree{
		"x.tar.gz": zipped(t, archive),
		"x.tar":    string(archive),
		"text.gz":  zipped(t, []byte("no archive")),
		"a.txt":    "a",
		"up.tar": string(
			packTar(t, tar.Header{Name: "../up"}),
		),
		"dev.tar":  string(packTar(t, tar.Header{Name: "d", Typeflag: tar.TypeChar})),
		"hard.tar": string(packTar(t, tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "../../x"})),
		"x.tar.xz": "\xfd7zXZ\x00...",
		"bomb.tgz": zipped(t, bomb),
	}
	c, err := dockerfile.OpenDir(tr.fs(), dockerfile.Limits{MaxFiles: 200})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct{ name, instruction, want string }{
		{"unpack", "ADD x.tar.gz /x",
			"/\nbin/ 755 1:0\nbin/x 4755 1:2 bin/x\nbin/y 644 0:0 bin/x\nl 644 0:0 ../../etc"},
		{"plain", "ADD --chown=3 x.tar /x",
			"/\nbin/ 755 7:8\nbin/x 4755 7:8 bin/x\nbin/y 644 7:8 bin/x\nl 644 7:8 ../../etc"},
		{"no-archive", "ADD a.txt /x", "a.txt 644 7:8 a"},
	} {
		t.Run(row.name, func(t *testing.T) {
			s, err := c.Select(copyOf(t, row.instruction))
			if err != nil {
				t.Fatal(err)
			}
			if got := list(t, s); got != row.want {
				t.Errorf("got\n%s\nwant\n%s", got, row.want)
			}
		})
	}
	for _, instruction := range []string{"COPY x.tar.gz /x", "ADD --unpack=false x.tar /x", "ADD text.gz /x"} {
		s, err := c.Select(copyOf(t, instruction))
		if err != nil || s.Directory || s.Files != 1 {
			t.Errorf("%s: got %+v, %v; want the archive itself", instruction, s, err)
		}
	}
	for _, name := range []string{"up.tar", "dev.tar", "hard.tar", "x.tar.xz", "bomb.tgz"} {
		s, err := c.Select(copyOf(t, "ADD "+name+" /x"))
		if err == nil {
			err = s.WriteTar(t.Context(), io.Discard, 0, 0)
		}
		if !errors.Is(err, dockerfile.ErrContext) {
			t.Errorf("%s: got %v, want ErrContext", name, err)
		}
	}
}

// TestArchiveOfHeaders unpacks an archive that has no files, only more headers than the limits allow.
func TestArchiveOfHeaders(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for range 100 {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeXGlobalHeader,
			PAXRecords: map[string]string{"comment": "x"}}); err != nil {
			t.Fatal(err)
		}
	}
	c, err := dockerfile.OpenDir(
		tree{"x.tgz": zipped(t, b.Bytes())}.fs(),
		dockerfile.Limits{MaxFiles: 2, MaxBytes: 10_000},
	)
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.Select(copyOf(t, "ADD x.tgz /x"))
	if err == nil {
		err = s.WriteTar(t.Context(), io.Discard, 0, 0)
	}
	if !errors.Is(err, dockerfile.ErrContext) || !strings.Contains(err.Error(), "too large") {
		t.Errorf("%d bytes of headers: got %v, want an ErrContext: too large", b.Len(), err)
	}
}

func TestWriteError(t *testing.T) {
	s, err := openContext(t, shop).Select(copyOf(t, "COPY . /x"))
	if err != nil {
		t.Fatal(err)
	}
	full := errors.New("full")
	for after := range 8 {
		if err := s.WriteTar(t.Context(), &failing{after: after * 512, err: full}, 0, 0); !errors.Is(err, full) {
			t.Errorf("a write error after %d bytes: got %v, want %v", after*512, err, full)
		}
	}
}

type failing struct {
	after int
	err   error
}

func (f *failing) Write(p []byte) (int, error) {
	if f.after -= len(p); f.after < 0 {
		return 0, f.err
	}
	return len(p), nil
}

func FuzzOpenTar(f *testing.F) {
	f.Add(
		packTar(
			f,
			tar.Header{Name: "a"},
			tar.Header{Name: "d/", Typeflag: tar.TypeDir},
			tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "a"},
		),
		"l",
	)
	f.Add(
		packTar(
			f,
			tar.Header{Name: ".dockerignore"},
			tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: ".dockerignore"},
		),
		"*",
	)
	f.Fuzz(func(t *testing.T, b []byte, src string) {
		c, err := dockerfile.OpenTar(
			bytes.NewReader(b),
			int64(len(b)),
			dockerfile.Limits{MaxFiles: 100, MaxBytes: 1 << 20},
			"a",
		)
		if err != nil {
			return
		}
		for _, cp := range []dockerfile.Copy{{Sources: []string{src}, Dest: "/x/", Unpack: true},
			{Sources: []string{src}, Dest: "/", Parents: true}} {
			s, err := c.Select(cp)
			if err != nil {
				continue
			}
			var out bytes.Buffer
			if err := s.WriteTar(t.Context(), &out, 0, 0); err != nil {
				continue
			}
			r := tar.NewReader(&out)
			for {
				h, err := r.Next()
				if err == io.EOF {
					break
				} else if err != nil {
					t.Fatalf("the written stream cannot be read: %v", err)
				}
				if strings.HasPrefix(h.Name, "/") || slices.Contains(strings.Split(h.Name, "/"), "..") {
					t.Fatalf("got the name %q, want one that stays below the root", h.Name)
				}
			}
		}
	})
}

// TestKeepLinks checks that an absolute link that a source names is copied as it is, and any other is followed.
func TestKeepLinks(t *testing.T) {
	c := openContext(t, tree{"out": "->/etc/passwd", "to-a": "->a", "a": "a"})
	cp := copyOf(t, "COPY out to-a /x/")
	if _, err := c.Select(cp); !errors.Is(err, dockerfile.ErrContext) {
		t.Errorf("Select of a link out of the context: got %v, want ErrContext", err)
	}
	cp.KeepLinks = true
	s, err := c.Select(cp)
	if err != nil {
		t.Fatal(err)
	}
	got := list(t, s)
	if !strings.Contains(got, "out 777 7:8 /etc/passwd\n") || !strings.Contains(got, "to-a 644 7:8 a") {
		t.Errorf("got %s, want the link and the file", got)
	}
}
