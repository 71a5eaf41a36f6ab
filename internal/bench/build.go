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

// The template that the build series create, their targets, and the size of the image they import.
const (
	builtName     = "bench-build"
	rebuildTarget = 3000   // milliseconds, apart from the step itself
	importTarget  = 40_000 // milliseconds
	imageLayers   = 5
	imageFiles    = 100     // files in each layer
	imageFile     = 1 << 20 // bytes in each file
)

// rebuild measures the build of a Dockerfile with six steps, of which only the last has changed.
func (r *run) rebuild(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, r.cl.Templates.Delete(context.WithoutCancel(ctx), builtName)) }()
	steps := r.series(
		"rebuild_steps",
		"rebuild of a Dockerfile whose last of six steps changed: request until the layer is stored",
		nil,
	)
	whole := r.series(
		"rebuild",
		"the same until the template is booted, captured and ready",
		&Target{P50: rebuildTarget},
	)
	for n := range r.times(5) + 1 {
		text := fmt.Sprintf(
			"FROM %s\nWORKDIR /srv\n"+
				"RUN echo 1 > one\nRUN echo 2 > two\nRUN echo 3 > three\nRUN echo 4 > four\nRUN echo %d\n",
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
		if n > 0 { // the first build creates the layers and is not measured
			r.add(whole, time.Since(began), err)
			r.add(steps, layer.Sub(began), err)
		}
	}
	return nil
}

// follow waits until a build has succeeded and returns when its last step was done.
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

// importImage measures the import of a 500 MB image from a registry in this process to the node's disk.
func (r *run) importImage(ctx context.Context) (err error) {
	if r.Registry == "" {
		return errors.New(
			"the node's build.insecure_registries has no address of this host for a registry to listen on",
		)
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
	r.Report("creating an image of 500 MB")
	if err := pushImage(ctx, ref); err != nil {
		return err
	}
	s := r.series(
		"oci_import",
		"import of a 500 MB image with five layers from a registry on this host to a root file system",
		&Target{P50: importTarget},
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
	// The image contains no programs, so its build fails after the import, when it boots.
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

// errImported stops following the build log once the image is imported.
var errImported = errors.New("the image is imported")

// pushImage creates an image of incompressible files and pushes it to a registry.
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

// writeImage pushes an image to a registry over plain HTTP.
func writeImage(ctx context.Context, ref string, img v1.Image) error {
	to, err := name.ParseReference(ref, name.Insecure)
	if err != nil {
		return err
	}
	return remote.Write(to, img, remote.WithContext(ctx))
}

// layerOf returns the n-th layer as a tar stream. Its content is the same in every call.
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
		w.CloseWithError(errors.Join(all, out.Close())) // fails the reader; never returns an error
	}()
	return r
}
