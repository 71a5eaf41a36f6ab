package oci_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/pandastack/pandastack/internal/image/oci"
)

// server is a registry that can be made to fail.
type server struct {
	*httptest.Server
	host string
	mu   sync.Mutex
	hook func(w http.ResponseWriter, r *http.Request) http.ResponseWriter // returns nil if it has responded itself
	gets int                                                              // number of requests for blobs
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		hook := s.hook
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			s.gets++
		}
		s.mu.Unlock()
		if hook != nil {
			if w = hook(w, r); w == nil {
				return
			}
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	s.host = strings.TrimPrefix(s.URL, "http://")
	return s
}

func (s *server) intercept(hook func(http.ResponseWriter, *http.Request) http.ResponseWriter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook = hook
}

func (s *server) blobGets() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gets
}

// ent is an entry of a layer.
type ent struct {
	name  string
	typ   byte // 0: a file
	data  string
	link  string
	mode  int64
	uid   int
	xattr map[string]string
}

func tarOf(t testing.TB, ents ...ent) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range ents {
		h := &tar.Header{
			Name:     e.name,
			Typeflag: e.typ,
			Size:     int64(len(e.data)),
			Linkname: e.link,
			Mode:     e.mode,
			Uid:      e.uid,
			Format:   tar.FormatPAX,
		}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if e.typ == tar.TypeChar {
			h.Devmajor, h.Devminor = 1, 3
		}
		for k, v := range e.xattr {
			h.PAXRecords = map[string]string{"SCHILY.xattr." + k: v}
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

func imageOf(t testing.TB, platform string, layers ...[]byte) v1.Image {
	t.Helper()
	img := v1.Image(empty.Image)
	for _, b := range layers {
		l, err := tarball.LayerFromOpener(
			func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil },
		)
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, l); err != nil {
			t.Fatal(err)
		}
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	p, err := v1.ParsePlatform(platform)
	if err != nil {
		t.Fatal(err)
	}
	config.OS, config.Architecture, config.Variant = p.OS, p.Architecture, p.Variant
	config.Config.Env = []string{"PATH=/bin", "X=1"}
	config.Config.Cmd = []string{"serve"}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	return img
}

func (s *server) push(t testing.TB, ref string, img v1.Image) string {
	t.Helper()
	full := s.host + "/" + ref
	parsed, err := name.ParseReference(full, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(parsed, img); err != nil {
		t.Fatal(err)
	}
	return full
}

func (s *server) puller(t testing.TB, change func(*oci.Options)) (*oci.Puller, string) {
	t.Helper()
	opt := oci.Options{Dir: t.TempDir(), Insecure: []string{s.host}, Platform: "linux/amd64", Wait: time.Millisecond}
	if change != nil {
		change(&opt)
	}
	p, err := oci.New(opt)
	if err != nil {
		t.Fatal(err)
	}
	return p, opt.Dir
}

// flatten pulls ref and returns its files, one per line.
func flatten(ctx context.Context, p *oci.Puller, ref string) (string, error) {
	img, err := p.Resolve(ctx, ref)
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	if _, err := p.Flatten(ctx, img, &b); err != nil {
		return "", err
	}
	return describe(&b)
}

func describe(r io.Reader) (string, error) {
	var out []string
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if err == io.EOF {
			return strings.Join(out, "\n"), nil
		} else if err != nil {
			return "", err
		}
		data, err := io.ReadAll(t)
		if err != nil {
			return "", err
		}
		if h.Name == "./" {
			continue
		}
		line := fmt.Sprintf("%s %c", h.Name, h.Typeflag)
		if h.Uid != 0 {
			line += fmt.Sprintf(" uid=%d", h.Uid)
		}
		if h.Linkname != "" {
			line += " -> " + h.Linkname
		}
		if len(data) > 0 {
			line += " " + string(data[:min(20, len(data))])
		}
		for k, v := range h.PAXRecords {
			if strings.HasPrefix(k, "SCHILY") {
				line += fmt.Sprintf(" %s=%s", k, v)
			}
		}
		if h.Typeflag == tar.TypeChar {
			line += fmt.Sprintf(" %d:%d", h.Devmajor, h.Devminor)
		}
		out = append(out, line)
	}
}

func assertEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) > 0 {
		t.Errorf("got files %v in the directory, want none", left)
	}
}

const (
	typeDir  = tar.TypeDir
	typeSym  = tar.TypeSymlink
	typeLink = tar.TypeLink
)

func TestFlatten(t *testing.T) {
	s := newServer(t)
	for _, row := range []struct {
		name   string
		layers [][]ent
		want   string
	}{
		{"plain", [][]ent{{{name: "etc/", typ: typeDir, uid: 5},
			{name: "etc/x", data: "1", uid: 7, xattr: map[string]string{"user.a": "b"}},
			{name: "null", typ: tar.TypeChar},
			{name: "pipe", typ: tar.TypeFifo}}},
			"etc/ 5 uid=5\netc/x 0 uid=7 1 SCHILY.xattr.user.a=b\nnull 3 1:3\npipe 6"},
		{"replaced", [][]ent{{{name: "a", data: "old"}}, {{name: "a", data: "new"}}}, "a 0 new"},
		{"duplicate-in-layer", [][]ent{{{name: "a", data: "old"}, {name: "./a", data: "new"}}}, "a 0 new"},
		{"whiteout", [][]ent{{{name: "a", data: "1"}, {name: "b", data: "2"}}, {{name: ".wh.a"}}}, "b 0 2"},
		{"whiteout-directory", [][]ent{{{name: "d/x", data: "1"}, {name: "e", data: "2"}}, {{name: ".wh.d"}}}, "e 0 2"},
		{"whiteout-and-new", [][]ent{{{name: "d/x", data: "1"}},
			{{name: "d/", typ: typeDir}, {name: "d/y", data: "2"}, {name: ".wh.d"}}}, "d/ 5\nd/y 0 2"},
		{"whiteout-of-nothing", [][]ent{{{name: "a", data: "1"}}, {{name: "x/.wh.y"}, {name: ".wh.z"}}}, "a 0 1"},
		{"opaque", [][]ent{{{name: "d/x", data: "1"}, {name: "d/s/t", data: "1"}},
			{{name: "d/y", data: "2"}, {name: "d/.wh..wh..opq"}}}, "d/ 5\nd/y 0 2"},
		{"reserved", [][]ent{{{name: "a", data: "1"}},
			{{name: ".wh..wh.plnk/1.2", data: "x"}, {name: ".wh..wh.aufs"}}},
			".wh..wh.plnk/ 5\n.wh..wh.plnk/1.2 0 x\na 0 1"},
		{"file-for-directory", [][]ent{{{name: "d/x", data: "1"}}, {{name: "d", data: "2"}}}, "d 0 2"},
		{"directory-for-file", [][]ent{{{name: "d", data: "1"}},
			{{name: "d/", typ: typeDir}, {name: "d/x", data: "2"}}}, "d/ 5\nd/x 0 2"},
		{"directory-again", [][]ent{{{name: "d/", typ: typeDir}, {name: "d/x", data: "1"}},
			{{name: "d/", typ: typeDir, uid: 9}}}, "d/ 5 uid=9\nd/x 0 1"},
		{"hard-link", [][]ent{{{name: "b", data: "1", uid: 3}, {name: "a", typ: typeLink, link: "b"}}},
			"a 0 uid=3 1\nb 1 uid=3 -> a"},
		{"hard-link-below", [][]ent{{{name: "b", data: "1"}}, {{name: "c", typ: typeLink, link: "/b"}}},
			"b 0 1\nc 1 -> b"},
		{"hard-link-of-whited-out", [][]ent{{{name: "a", data: "1"}, {name: "b", typ: typeLink, link: "a"}},
			{{name: ".wh.a"}}}, "b 0 1"},
		{"hard-link-of-replaced", [][]ent{{{name: "a", data: "1"}, {name: "b", typ: typeLink, link: "a"}},
			{{name: "a", data: "2"}}}, "a 0 2\nb 0 1"},
		{"hard-link-to-itself", [][]ent{{{name: "a", data: "1"}, {name: "a", typ: typeLink, link: "a"}}}, "a 0 1"},
		{"through-link", [][]ent{{{name: "usr/lib/", typ: typeDir}, {name: "lib", typ: typeSym, link: "usr/lib"}},
			{{name: "lib/x", data: "1"}}},
			"lib 2 -> usr/lib\nusr/ 5\nusr/lib/ 5\nusr/lib/x 0 1"},
		{"through-absolute-link", [][]ent{{{name: "a/l", typ: typeSym, link: "/etc/../../b"}},
			{{name: "a/l/x", data: "1"}}}, "a/ 5\na/l 2 -> /etc/../../b\nb/ 5\nb/x 0 1\netc/ 5"},
		{"link-replaced-by-directory", [][]ent{{{name: "l", typ: typeSym, link: "/etc"}},
			{{name: "l/", typ: typeDir}, {name: "l/x", data: "1"}}}, "l/ 5\nl/x 0 1"},
		{"absolute-names", [][]ent{{{name: "/etc/passwd", data: "1"},
			{name: "/abs", typ: typeSym, link: "/etc/passwd"}}}, "abs 2 -> /etc/passwd\netc/ 5\netc/passwd 0 1"},
		{"empty", nil, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			var layers [][]byte
			for _, l := range row.layers {
				layers = append(layers, tarOf(t, l...))
			}
			ref := s.push(t, "test/"+row.name+":1", imageOf(t, "linux/amd64", layers...))
			p, dir := s.puller(t, nil)
			got, err := flatten(t.Context(), p, ref)
			if err != nil {
				t.Fatal(err)
			}
			if got != row.want {
				t.Errorf("got\n%s\nwant\n%s", got, row.want)
			}
			assertEmpty(t, dir)
		})
	}
}

func TestHostileLayers(t *testing.T) {
	s := newServer(t)
	var deep []ent
	for i := range 400 {
		deep = append(deep, ent{name: fmt.Sprintf("l%d", i), typ: typeSym, link: fmt.Sprintf("l%d/x", i+1)})
	}
	deep = append(deep, ent{name: "l0/f", data: "1"})
	for _, row := range []struct {
		name string
		ents []ent
		want error
	}{
		{"up", []ent{{name: "../x", data: "1"}}, oci.ErrCorrupt},
		{"up-inside", []ent{{name: "a/../../x", data: "1"}}, oci.ErrCorrupt},
		{"hard-link-up", []ent{{name: "x", typ: typeLink, link: "../../etc/shadow"}}, oci.ErrCorrupt},
		{"hard-link-to-nothing", []ent{{name: "x", typ: typeLink, link: "etc/shadow"}}, oci.ErrCorrupt},
		{"hard-link-to-directory", []ent{{name: "d/", typ: typeDir}, {name: "x", typ: typeLink, link: "d"}},
			oci.ErrCorrupt},
		{"root-is-a-file", []ent{{name: ".", typ: typeSym, link: "/etc"}}, oci.ErrCorrupt},
		{"whiteout-up", []ent{{name: "../.wh.x"}}, oci.ErrCorrupt},
		{"whiteout-of-parent", []ent{{name: ".wh..."}}, oci.ErrCorrupt},
		{"link-loop", []ent{{name: "l", typ: typeSym, link: "l"}, {name: "l/x", data: "1"}}, oci.ErrCorrupt},
		{"link-chain", deep, oci.ErrCorrupt},
		{"deep", []ent{{name: strings.Repeat("d/", 600) + "x", data: "1"}}, oci.ErrCorrupt},
		{"long-name", []ent{{name: strings.Repeat("x", 300), data: "1"}}, oci.ErrCorrupt},
		{"too-many", slices.Repeat([]ent{{name: "x", data: "1"}}, 2001), oci.ErrTooLarge},
		{"too-large", []ent{{name: "x", data: strings.Repeat("x", 2<<20)}}, oci.ErrTooLarge},
	} {
		t.Run(row.name, func(t *testing.T) {
			ref := s.push(t, "bad/"+row.name, imageOf(t, "linux/amd64", tarOf(t, row.ents...)))
			p, dir := s.puller(t, func(o *oci.Options) { o.Limits = oci.Limits{MaxEntries: 2000, MaxBytes: 2 << 20} })
			if _, err := flatten(t.Context(), p, ref); !errors.Is(err, row.want) {
				t.Errorf("got %v, want %v", err, row.want)
			}
			assertEmpty(t, dir)
		})
	}
}

func TestBudgetCoversAllLayers(t *testing.T) {
	s := newServer(t)
	layer := func(c string) []byte { return tarOf(t, ent{name: c, data: strings.Repeat(c, 900<<10)}) }
	ref := s.push(t, "sum:1", imageOf(t, "linux/amd64", layer("a"), layer("b"), layer("c")))
	p, dir := s.puller(t, func(o *oci.Options) { o.Limits.MaxBytes = 2 << 20 })
	if _, err := flatten(t.Context(), p, ref); !errors.Is(err, oci.ErrTooLarge) {
		t.Errorf("got %v, want ErrTooLarge", err)
	}
	assertEmpty(t, dir)
}

// TestLayerOfHeaders pulls a layer of headers without files: headers count like content.
func TestLayerOfHeaders(t *testing.T) {
	s := newServer(t)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for range 2000 {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeXGlobalHeader,
			PAXRecords: map[string]string{"comment": "x"}}); err != nil {
			t.Fatal(err)
		}
	}
	layer, err := tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil },
	)
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(imageOf(t, "linux/amd64"), layer)
	if err != nil {
		t.Fatal(err)
	}
	ref := s.push(t, "headers:1", img)
	p, dir := s.puller(t, func(o *oci.Options) { o.Limits.MaxBytes = 1 << 20 })
	if _, err := flatten(t.Context(), p, ref); !errors.Is(err, oci.ErrTooLarge) {
		t.Errorf("%d bytes of headers: got %v, want ErrTooLarge", b.Len(), err)
	}
	assertEmpty(t, dir)
}

func TestRatio(t *testing.T) {
	s := newServer(t)
	bomb, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		h := tarOf(t, ent{name: "zeros"})[:512]
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := w.WriteHeader(&tar.Header{Name: "zeros", Size: 20 << 20, Typeflag: tar.TypeReg}); err != nil {
			return nil, err
		}
		copy(h, b.Bytes())
		return io.NopCloser(io.MultiReader(bytes.NewReader(h), io.LimitReader(zeros{}, 20<<20+1024))), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(imageOf(t, "linux/amd64"), bomb)
	if err != nil {
		t.Fatal(err)
	}
	ref := s.push(t, "bomb:1", img)
	p, dir := s.puller(t, func(o *oci.Options) { o.Limits.RatioFrom = 1 << 20 })
	if _, err := flatten(t.Context(), p, ref); !errors.Is(err, oci.ErrTooLarge) {
		t.Errorf("got %v, want ErrTooLarge", err)
	}
	assertEmpty(t, dir)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestPlatforms(t *testing.T) {
	s := newServer(t)
	amd, arm := imageOf(
		t,
		"linux/amd64",
		tarOf(t, ent{name: "amd", data: "1"}),
	), imageOf(
		t,
		"linux/arm64/v8",
		tarOf(t, ent{name: "arm", data: "1"}),
	)
	index := mutate.AppendManifests(
		empty.Index,
		mutate.IndexAddendum{
			Add:        arm,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "arm64", Variant: "v8"}},
		},
		mutate.IndexAddendum{
			Add:        amd,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}},
		},
	)
	ref, err := name.ParseReference(s.host+"/multi:1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(ref, index); err != nil {
		t.Fatal(err)
	}
	armRef := s.push(t, "arm:1", arm)
	for _, row := range []struct{ name, ref, platform, want string }{
		{"index", ref.String(), "linux/amd64", "amd 0 1"},
		{"index-other", ref.String(), "linux/arm64", "arm 0 1"},
		{"index-none", ref.String(), "linux/s390x", "linux/amd64, linux/arm64/v8, not for linux/s390x"},
		{"image-other", armRef, "linux/amd64", "it is for linux/arm64/v8, not for linux/amd64"},
	} {
		t.Run(row.name, func(t *testing.T) {
			p, _ := s.puller(t, func(o *oci.Options) { o.Platform = row.platform })
			got, err := flatten(t.Context(), p, row.ref)
			if err != nil {
				if !errors.Is(err, oci.ErrPlatform) {
					t.Errorf("got %v, want ErrPlatform", err)
				}
				got = err.Error()
			}
			if !strings.Contains(got, row.want) {
				t.Errorf("got %s, want %q in it", got, row.want)
			}
		})
	}
}

func TestResolve(t *testing.T) {
	s := newServer(t)
	img := imageOf(t, "linux/amd64", tarOf(t, ent{name: "a", data: "1"}))
	ref := s.push(t, "app:1", img)
	p, _ := s.puller(t, nil)
	got, err := p.Resolve(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if got.Digest != digest.String() || got.Ref != s.host+"/app@"+digest.String() || got.Platform != "linux/amd64" ||
		len(got.Layers) != 1 || got.Bytes != got.Layers[0].Size || !slices.Equal(got.Config.Cmd, []string{"serve"}) {
		t.Errorf("got %+v, want the pushed image", got)
	}
	// The digest names the same image after the tag has moved.
	s.push(t, "app:1", imageOf(t, "linux/amd64", tarOf(t, ent{name: "b", data: "2"})))
	if files, err := flatten(t.Context(), p, got.Ref); err != nil || files != "a 0 1" {
		t.Errorf("got files %q, %v; want those of the first image", files, err)
	}
	for _, row := range []struct {
		name, ref string
		want      error
	}{
		{"missing", s.host + "/none:1", oci.ErrNotFound},
		{"malformed", "UPPER//case", oci.ErrReference},
		{"plain-http", "127.0.0.1:1/x", oci.ErrReference},
		{"digest", s.host + "/app@sha256:" + strings.Repeat("0", 64), oci.ErrNotFound},
	} {
		if _, err := p.Resolve(t.Context(), row.ref); !errors.Is(err, row.want) {
			t.Errorf("%s: got %v, want %v", row.name, err, row.want)
		}
	}
}

func TestCredentials(t *testing.T) {
	s := newServer(t)
	ref := s.push(t, "private:1", imageOf(t, "linux/amd64", tarOf(t, ent{name: "a", data: "1"})))
	s.intercept(func(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
		if user, password, ok := r.BasicAuth(); ok && user == "u" && password == "p" {
			return w
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="r"`)
		http.Error(w, "no", http.StatusUnauthorized)
		return nil
	})
	for _, row := range []struct {
		name     string
		password string
		want     error
	}{{"right", "p", nil}, {"wrong", "x", oci.ErrDenied}, {"none", "", oci.ErrDenied}} {
		p, dir := s.puller(t, func(o *oci.Options) {
			o.Credentials = func(registry string) (oci.Credentials, bool) {
				return oci.Credentials{Username: "u", Password: row.password}, registry == s.host && row.password != ""
			}
		})
		if _, err := flatten(t.Context(), p, ref); !errors.Is(err, row.want) {
			t.Errorf("%s: got %v, want %v", row.name, err, row.want)
		}
		assertEmpty(t, dir)
	}
}

// cutter interrupts a response after a number of bytes.
type cutter struct {
	http.ResponseWriter
	left int
}

func (c *cutter) Write(p []byte) (int, error) {
	if c.left -= len(p); c.left < 0 {
		if flusher, ok := c.ResponseWriter.(http.Flusher); ok {
			_, _ = c.ResponseWriter.Write(p[:max(0, len(p)+c.left)]) // the connection ends anyway
			flusher.Flush()
		}
		panic(http.ErrAbortHandler)
	}
	return c.ResponseWriter.Write(p)
}

// noise returns n bytes that do not compress.
func noise(n int) string {
	var b strings.Builder
	x := uint64(88172645463325252)
	for b.Len() < n {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b.WriteString(fmt.Sprint(x))
	}
	return b.String()[:n]
}

func isBlob(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/")
}

func TestInterruptedConnections(t *testing.T) {
	s := newServer(t)
	data := noise(400 << 10)
	img := imageOf(t, "linux/amd64", tarOf(t, ent{name: "a", data: data}))
	ref := s.push(t, "big:1", img)
	for _, row := range []struct {
		name   string
		ranges bool
		after  int
		every  bool
		want   error
	}{
		{"resumed", true, 30_000, true, nil},
		{"without-ranges", false, 90_000, false, nil},
		{"never", true, 0, true, oci.ErrUnavailable},
	} {
		t.Run(row.name, func(t *testing.T) {
			var mu sync.Mutex
			cuts := 0
			s.intercept(func(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
				mu.Lock()
				defer mu.Unlock()
				// The configuration is a blob, too, and is not interrupted.
				if !isBlob(r) || !strings.Contains(r.URL.Path, layerDigest(t, img)) {
					return w
				}
				if !row.ranges {
					r.Header.Del("Range")
				}
				if !row.every && cuts > 0 {
					return w
				}
				cuts++
				return &cutter{w, row.after}
			})
			p, dir := s.puller(t, nil)
			got, err := flatten(t.Context(), p, ref)
			if !errors.Is(err, row.want) {
				t.Fatalf("got %v, want %v", err, row.want)
			}
			if err == nil && got != "a 0 "+data[:20] {
				t.Errorf("got %s, want the file of the image", got)
			}
			mu.Lock()
			defer mu.Unlock()
			if cuts == 0 {
				t.Error("got no interrupted connection, want at least one")
			}
			assertEmpty(t, dir)
		})
	}
}

func layerDigest(t *testing.T, img v1.Image) string {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	return digest.String()
}

func TestStalledConnection(t *testing.T) {
	s := newServer(t)
	ref := s.push(t, "slow:1", imageOf(t, "linux/amd64", tarOf(t, ent{name: "a", data: noise(100 << 10)})))
	p, dir := s.puller(t, func(o *oci.Options) { o.Stall, o.Retries = 50*time.Millisecond, 2 })
	img, err := p.Resolve(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	s.intercept(func(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
		if !isBlob(r) {
			return w
		}
		<-r.Context().Done()
		return nil
	})
	if _, err := p.Flatten(t.Context(), img, io.Discard); !errors.Is(err, oci.ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
	assertEmpty(t, dir)
}

func TestCanceled(t *testing.T) {
	s := newServer(t)
	ref := s.push(t, "slow:1", imageOf(t, "linux/amd64", tarOf(t, ent{name: "a", data: noise(100 << 10)})))
	p, dir := s.puller(t, nil)
	img, err := p.Resolve(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	cause := errors.New("canceled by the test")
	ctx, cancel := context.WithCancelCause(t.Context())
	s.intercept(func(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
		if !isBlob(r) {
			return w
		}
		cancel(cause)
		<-r.Context().Done()
		return nil
	})
	if _, err := p.Flatten(ctx, img, io.Discard); !errors.Is(err, cause) || errors.Is(err, oci.ErrCorrupt) {
		t.Errorf("got %v, want the cause of the context", err)
	}
	assertEmpty(t, dir)
}

func TestCorruptBlob(t *testing.T) {
	s := newServer(t)
	img := imageOf(t, "linux/amd64", tarOf(t, ent{name: "a", data: noise(50 << 10)}))
	ref := s.push(t, "app:1", img)
	digest := layerDigest(t, img)
	s.intercept(func(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
		if isBlob(r) && strings.Contains(r.URL.Path, digest) {
			return &flipper{ResponseWriter: w}
		}
		return w
	})
	p, dir := s.puller(t, func(o *oci.Options) { o.CacheBytes = 1 << 30 })
	if _, err := flatten(t.Context(), p, ref); !errors.Is(err, oci.ErrCorrupt) {
		t.Errorf("got %v, want ErrCorrupt", err)
	}
	assertEmpty(t, dir)
}

// flipper flips a bit of the time in the header of a gzip stream, which still decompresses.
type flipper struct {
	http.ResponseWriter
	at int
}

func (f *flipper) Write(p []byte) (int, error) {
	p = slices.Clone(p)
	if f.at <= 4 && f.at+len(p) > 4 {
		p[4-f.at] ^= 1
	}
	f.at += len(p)
	return f.ResponseWriter.Write(p)
}

func TestCache(t *testing.T) {
	s := newServer(t)
	shared := tarOf(t, ent{name: "shared", data: noise(20 << 10)})
	one := s.push(t, "one:1", imageOf(t, "linux/amd64", shared, tarOf(t, ent{name: "one", data: "1"})))
	two := s.push(t, "two:1", imageOf(t, "linux/amd64", shared, tarOf(t, ent{name: "two", data: "2"})))
	p, dir := s.puller(t, func(o *oci.Options) { o.CacheBytes = 1 << 20 })
	pull := func(ref string) (string, int) {
		t.Helper()
		before := s.blobGets()
		got, err := flatten(t.Context(), p, ref)
		if err != nil {
			t.Fatal(err)
		}
		return got, s.blobGets() - before
	}
	first, gets := pull(one)
	if gets != 3 {
		t.Errorf("got %d blobs fetched, want configuration and two layers", gets)
	}
	if again, gets := pull(one); gets != 1 || again != first {
		t.Errorf("got %d blobs fetched for a cached image, want the configuration", gets)
	}
	next := s.push(t, "one:2", imageOf(t, "linux/amd64", shared, tarOf(t, ent{name: "two", data: "2"})))
	if _, gets := pull(next); gets != 2 {
		t.Errorf("got %d blobs fetched with one cached layer, want configuration and one layer", gets)
	}
	if _, gets := pull(two); gets != 3 {
		t.Errorf("got %d blobs fetched from another repository, want configuration and two layers", gets)
	}
	kept, err := filepath.Glob(filepath.Join(dir, "layer-*"))
	if err != nil || len(kept) != 5 {
		t.Fatalf("got cached layers %v, %v; want 5", kept, err)
	}
	for _, path := range kept {
		if err := os.WriteFile(path, []byte("no layer"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if again, gets := pull(one); gets != 3 || again != first {
		t.Errorf("with damaged cached layers: got %d blobs fetched, files %q; want 3, files %q", gets, again, first)
	}
	small, dir := s.puller(t, func(o *oci.Options) { o.CacheBytes = 22_500 })
	if _, err := flatten(t.Context(), small, one); err != nil {
		t.Fatal(err)
	}
	kept, err = filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(kept) != 1 {
		t.Errorf("got %v, %v cached in 22500 bytes; want one layer", kept, err)
	}
}

func TestMissingDirectory(t *testing.T) {
	s := newServer(t)
	ref := s.push(t, "app:1", imageOf(t, "linux/amd64", tarOf(t, ent{name: "a", data: "1"})))
	p, dir := s.puller(t, func(o *oci.Options) { o.Dir = filepath.Join(t.TempDir(), "none") })
	if _, err := flatten(t.Context(), p, ref); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want ErrNotExist", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stat of the directory: got %v, want ErrNotExist", err)
	}
}

func TestLinkLocalAddresses(t *testing.T) {
	s := newServer(t)
	ref := s.push(t, "app:1", imageOf(t, "linux/amd64", tarOf(t, ent{name: "a", data: "1"})))
	p, _ := s.puller(t, func(o *oci.Options) { o.Insecure = append(o.Insecure, "169.254.169.254", "[fe80::1]:80") })
	for _, bad := range []string{"169.254.169.254/latest/meta-data:1", "[fe80::1]:80/x:1"} {
		if _, err := p.Resolve(t.Context(), bad); !errors.Is(err, oci.ErrReference) {
			t.Errorf("Resolve(%s): got %v, want ErrReference", bad, err)
		}
	}
	img, err := p.Resolve(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	s.intercept(func(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
		if !isBlob(r) {
			return w
		}
		http.Redirect(w, r, "http://169.254.169.254/secret", http.StatusTemporaryRedirect)
		return nil
	})
	if _, err := p.Flatten(t.Context(), img, io.Discard); !errors.Is(err, oci.ErrReference) {
		t.Errorf("a redirection to a link-local address: got %v, want ErrReference", err)
	}
}

func TestClean(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"part-1", "sha256-x", "layer-x"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := oci.Clean(dir); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != "layer-x" {
		t.Errorf("got %v, %v; want layer-x", left, err)
	}
}
