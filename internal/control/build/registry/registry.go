// Package registry implements build.Registry by package oci: builds can start from images of registries.
//
// Every resolution of an image uses its own credentials; the cached layers are shared. All methods may be called
// concurrently.
package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/build"
	"github.com/pandastack/pandastack/internal/image/dockerfile"
	"github.com/pandastack/pandastack/internal/image/oci"
)

// Config configures a Registry.
type Config struct {
	Dir        string   // directory for cached layers, which no other Registry may use
	CacheBytes int64    // limit of the verified layers that are kept between builds
	Insecure   []string // registries, "host:port", that may be reached over plain HTTP and may have any address
	// Allow are private or reserved networks whose registries may be reached.
	Allow []netip.Prefix
	// Wait is the pause before the first retry of an interrupted request, doubled each time; zero: the default of oci.
	Wait time.Duration
}

// Registry finds images.
type Registry struct{ cfg Config }

var _ build.Registry = (*Registry)(nil)

// New makes a Registry and its directory, and removes partial downloads of a killed process.
func New(cfg Config) (*Registry, error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("images: %w", err)
	}
	if err := oci.Clean(cfg.Dir); err != nil {
		return nil, fmt.Errorf("images: %w", err)
	}
	return &Registry{cfg: cfg}, nil
}

// Find implements build.Registry.
func (r *Registry) Find(ctx context.Context, ref string, who *api.RegistryAuth) (build.Image, error) {
	puller, err := oci.New(
		oci.Options{Dir: r.cfg.Dir, CacheBytes: r.cfg.CacheBytes, Insecure: r.cfg.Insecure, Allow: r.cfg.Allow,
			Wait: r.cfg.Wait,
			Credentials: func(registry string) (oci.Credentials, bool) {
				if who == nil || hostOf(who.Server) != registry {
					return oci.Credentials{}, false
				}
				return oci.Credentials{Username: who.Username, Password: who.Password, Token: who.Token}, true
			}},
	)
	if err != nil {
		return build.Image{}, err
	}
	found, err := puller.Resolve(ctx, ref)
	if err != nil {
		return build.Image{}, apiError(err)
	}
	return build.Image{
		Digest: found.Digest,
		Bytes:  found.Bytes,
		Base:   configOf(found.Config),
		Flatten: func(ctx context.Context, w io.Writer, take func(int64) error) error {
			if _, err := puller.WithTake(take).Flatten(ctx, found, w); err != nil {
				return apiError(err)
			}
			return nil
		},
	}, nil
}

// Server implements build.Registry.
func (r *Registry) Server(ref string) (string, error) {
	server, err := oci.RegistryOf(ref)
	if err != nil {
		return "", apiError(err)
	}
	return server, nil
}

// hostOf returns the host of a registry's address, which may have a scheme and a path. The names of Docker Hub are one.
func hostOf(text string) string {
	if _, rest, ok := strings.Cut(text, "://"); ok {
		text = rest
	}
	host, _, _ := strings.Cut(text, "/")
	if host == "docker.io" || host == "registry-1.docker.io" {
		return name.DefaultRegistry
	}
	return host
}

var codes = []struct {
	err  error
	code api.Code
}{
	{oci.ErrReference, api.Invalid}, {oci.ErrNotFound, api.NotFound}, {oci.ErrDenied, api.Forbidden},
	{oci.ErrPlatform, api.Invalid},
	{oci.ErrUnavailable, api.Unavailable}, {oci.ErrCorrupt, api.Invalid}, {oci.ErrTooLarge, api.TooLarge},
}

// apiError returns errors that the reference, the image or the registry causes with their code.
func apiError(err error) error {
	for _, c := range codes {
		if errors.Is(err, c.err) {
			return api.Wrap(c.code, err, err.Error())
		}
	}
	return err
}

// configOf returns the configuration of an image as the base of a Dockerfile.
func configOf(c v1.Config) dockerfile.Base {
	out := dockerfile.Base{OnBuild: c.OnBuild, Config: dockerfile.Config{
		Env: map[string]string{}, Workdir: c.WorkingDir, User: c.User, Shell: c.Shell, Labels: c.Labels,
		Entrypoint: c.Entrypoint, Cmd: c.Cmd, StopSignal: c.StopSignal,
	}}
	for _, pair := range c.Env {
		key, value, _ := strings.Cut(pair, "=")
		if key != "" {
			out.Config.Env[key] = value
		}
	}
	return out
}
