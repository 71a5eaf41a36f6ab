package bench

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/pandastack/pandastack/api"
)

// What is built, and what is promised of it.
const (
	builtName   = "bench-build"
	rebuildMost = 3000   // milliseconds, beside the step itself
	importMost  = 40_000 // milliseconds
	imageLayers = 5
	imageFiles  = 100 // of each layer
	imageFile   = 1 << 20
)

// rebuild measures a Dockerfile of six steps of which the last has changed.
func (r *run) rebuild(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, r.cl.Templates.Delete(context.WithoutCancel(ctx), builtName)) }()
	steps := r.series(
		"rebuild_steps",
		"a Dockerfile of six steps with another last one: from the request until its layer is kept",
		nil,
	)
	whole := r.series("rebuild", "the same until its template is booted, captured and ready", &Target{P50: rebuildMost})
	for n := range r.times(5) + 1 {
		text := fmt.Sprintf(
			"FROM %s\nWORKDIR /srv\nRUN echo 1 > one\nRUN echo 2 > two\nRUN echo 3 > three\nRUN echo 4 > four\nRUN echo %d\n",
			r.Template,
			n,
		)
		began := time.Now()
		b, err := r.cl.Templates.Build(
			ctx,
			api.BuildRequest{Name: builtName, Dockerfile: text, Replace: true, NoCache: n == 0},
			nil,
		)
		if err != nil {
			return err
		}
		layer, err := r.follow(ctx, b.ID)
		if n > 0 { // the first makes the layers
			r.add(whole, time.Since(began), err)
			r.add(steps, layer.Sub(began), err)
		}
	}
	return nil
}

// follow waits for a build to end well and answers when its last step was done.
func (r *run) follow(ctx context.Context, id api.BuildID) (layer time.Time, err error) {
	err = r.cl.Templates.BuildLogs(ctx, id, 0, true, func(l api.BuildLine) error {
		if strings.HasPrefix(l.Line, "done in") {
			layer = l.Time
		}
		return nil
	})
	if err != nil {
		return layer, err
	}
	b, err := r.cl.Templates.GetBuild(ctx, id)
	if err == nil && b.Status != api.BuildDone {
		err = fmt.Errorf("build %s: %s", id, b.Error)
	}
	return layer, err
}

// importImage measures how long an image of 500 MB takes from a registry in this process onto the node's disk.
func (r *run) importImage(ctx context.Context) (err error) {
	if r.Registry == "" {
		return errors.New("build.insecure_registries of the node names no address of this machine where a registry could listen")
	}
	l, err := net.Listen("tcp", r.Registry)
	if err != nil {
		return err
	}
	srv := &http.Server{
		Handler:           registry.New(registry.Logger(log.New(io.Discard, "", 0))),
		ReadHeaderTimeout: time.Minute,
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	defer func() {
		err = errors.Join(err, srv.Close())
		if serr := <-served; !errors.Is(serr, http.ErrServerClosed) {
			err = errors.Join(err, serr)
		}
	}()
	ref := l.Addr().String() + "/bench:1"
	r.Report("making an image of 500 MB")
	if err := pushImage(ctx, ref); err != nil {
		return err
	}
	s := r.series(
		"oci_import",
		"an image of 500 MB in five layers from a registry on this machine to a root file system",
		&Target{P50: importMost},
	)
	began := time.Now()
	b, err := r.cl.Templates.Build(
		ctx,
		api.BuildRequest{Name: builtName, ImageRef: ref, SizeMB: 1024, Replace: true},
		nil,
	)
	if err != nil {
		return err
	}
	// The image holds no programs, so its build ends behind the import, at its boot.
	var at time.Time
	err = r.cl.Templates.BuildLogs(ctx, b.ID, 0, true, func(l api.BuildLine) error {
		if strings.HasPrefix(l.Line, "imported ") {
			at, s.Note = l.Time, l.Line
			return errImported
		}
		return nil
	})
	_, cerr := r.cl.Templates.CancelBuild(ctx, b.ID)
	if at.IsZero() {
		if got, gerr := r.cl.Templates.GetBuild(ctx, b.ID); gerr == nil {
			err = fmt.Errorf("the image was not imported: %s", got.Error)
		}
		return errors.Join(err, cerr)
	}
	r.add(s, at.Sub(began), nil)
	return nil
}

// errImported ends the reading of a log.
var errImported = errors.New("it is imported")

// pushImage makes an image of files that do not compress and gives it to a registry.
func pushImage(ctx context.Context, ref string) error {
	img := empty.Image
	config, err := img.ConfigFile()
	if err != nil {
		return err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	out, err := mutate.ConfigFile(img, config)
	if err != nil {
		return err
	}
	for n := range imageLayers {
		layer, err := tarball.LayerFromOpener(
			func() (io.ReadCloser, error) { return layerOf(n), nil },
			tarball.WithCompressionLevel(1),
		)
		if err != nil {
			return err
		}
		if out, err = mutate.AppendLayers(out, layer); err != nil {
			return err
		}
	}
	return writeImage(ctx, ref, out)
}

func writeImage(ctx context.Context, ref string, img v1.Image) error {
	to, err := name.ParseReference(ref, name.Insecure)
	if err != nil {
		return err
	}
	return remote.Write(to, img, remote.WithContext(ctx))
}

// layerOf is the n-th layer, the same whenever it is asked for.
func layerOf(n int) io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		out := tar.NewWriter(w)
		noise := rand.NewChaCha8([32]byte{byte(n)})
		var all error
		for i := 0; i < imageFiles && all == nil; i++ {
			var data bytes.Buffer
			_, err := io.CopyN(&data, noise, imageFile)
			all = errors.Join(
				err,
				out.WriteHeader(
					&tar.Header{
						Typeflag: tar.TypeReg,
						Name:     fmt.Sprintf("data/%d/%d", n, i),
						Mode:     0o644,
						Size:     imageFile,
					},
				),
			)
			if all == nil {
				_, all = out.Write(data.Bytes())
			}
		}
		w.CloseWithError(errors.Join(all, out.Close())) // a reader that has gone ends the writing, too
	}()
	return r
}
