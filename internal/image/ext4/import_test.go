package ext4_test

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/pandastack/pandastack/internal/image/ext4"
	"github.com/pandastack/pandastack/internal/image/oci"
)

// importImage pulls, flattens and writes an image, as one pipe.
func importImage(t testing.TB, opt oci.Options, ref string, sizeMiB int) ext4.Report {
	t.Helper()
	p, err := oci.New(opt)
	if err != nil {
		t.Fatal(err)
	}
	img, err := p.Resolve(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := p.Flatten(t.Context(), img, w)
		w.CloseWithError(err)
		done <- err
	}()
	f := image(t)
	report, err := ext4.Write(t.Context(), r, f, ext4.Options{SizeMiB: sizeMiB})
	r.CloseWithError(err)
	if flat := <-done; err != nil || flat != nil {
		t.Fatal(err, flat)
	}
	checkClean(t, f.Name())
	return report
}

// pushImage puts an image of the layers into a registry of the test.
func pushImage(t testing.TB, layers ...[]byte) (oci.Options, string) {
	t.Helper()
	s := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(s.Close)
	host := strings.TrimPrefix(s.URL, "http://")
	img := empty.Image
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
	config.OS, config.Architecture = "linux", "amd64"
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(host+"/app:1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img); err != nil {
		t.Fatal(err)
	}
	return oci.Options{Dir: t.TempDir(), Insecure: []string{host}, Platform: "linux/amd64"}, ref.String()
}

// TestImport writes an image of several layers.
func TestImport(t *testing.T) {
	opt, ref := pushImage(t, stream(t, everything()...),
		stream(t, ent{name: "etc/.wh.hard"}, ent{name: "twice", data: "third"}, ent{name: "lib/x", data: "1"}))
	report := importImage(t, opt, ref, 64)
	if report.Files != 19 || report.Bytes < 6<<20 {
		t.Errorf("got %+v", report)
	}
}

// BenchmarkImport imports an image of 500 MB in five layers: pull, verify, unpack, flatten, write, flush.
func BenchmarkImport(b *testing.B) {
	var layers [][]byte
	words := strings.Repeat("words that a program or a page of text would have; ", 300)
	for n := range 5 {
		var ents []ent
		for i := range 4000 {
			ents = append(
				ents,
				ent{
					name: fmt.Sprintf("usr/lib/l%d/d%d/f%d", n, i%100, i),
					data: words[:12_000] + noise(13_000),
					mode: 0o755,
				},
			)
		}
		layers = append(layers, stream(b, ents...))
	}
	opt, ref := pushImage(b, layers...)
	var size int64
	for _, l := range layers {
		size += int64(len(l))
	}
	b.SetBytes(size)
	for b.Loop() {
		importImage(b, opt, ref, 2048)
	}
}
