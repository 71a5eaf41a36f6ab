package oci

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// Limits bound an image. A zero field means the default.
type Limits struct {
	MaxLayers  int   // default 500
	MaxEntries int   // entries of all layers together; default 1,000,000
	MaxBytes   int64 // uncompressed bytes of all layers together; default 32 GiB
	MaxRatio   int64 // compression ratio of a layer larger than RatioFrom; default 300
	RatioFrom  int64 // bytes; default 256 MiB
	MaxIndex   int64 // bytes of memory for the names and attributes of all entries together; default 256 MiB
}

func (l Limits) withDefaults() Limits {
	if l.MaxLayers == 0 {
		l.MaxLayers = 500
	}
	if l.MaxEntries == 0 {
		l.MaxEntries = 1_000_000
	}
	if l.MaxBytes == 0 {
		l.MaxBytes = 32 << 30
	}
	if l.MaxRatio == 0 {
		l.MaxRatio = 300
	}
	if l.RatioFrom == 0 {
		l.RatioFrom = 256 << 20
	}
	if l.MaxIndex == 0 {
		l.MaxIndex = 256 << 20
	}
	return l
}

// Credentials are the credentials of a registry: a user name and password, or a token.
type Credentials struct {
	Username, Password string
	Token              string // bearer token
}

// Options are the options of a Puller.
type Options struct {
	Dir         string // existing directory for layers, which no other Puller uses; required
	CacheBytes  int64  // limit of the verified layers kept there, least recently used removed first; 0: none
	Credentials func(registry string) (Credentials, bool)
	// Insecure are the registries, "host:port", that may be reached over plain HTTP and may have any address.
	Insecure []string
	// Allow are networks, besides the public ones, whose registries may be reached. None opens metadata services.
	Allow    []netip.Prefix
	Platform string // such as "linux/arm64/v8"; "": Linux on this processor
	Limits   Limits
	Retries  int           // interruptions without a byte between them that a layer survives; default 5
	Wait     time.Duration // pause before the first retry, doubled each time; default 500 ms
	Stall    time.Duration // time without a byte after which a connection counts as interrupted; default 60 s
	// Progress, if not nil, receives the compressed bytes of a layer fetched so far. Calls may be concurrent.
	Progress func(layer int, done, total int64)
}

// Puller pulls images.
type Puller struct {
	opt       Options
	platform  v1.Platform
	transport http.RoundTripper
	take      func(bytes int64) error // nil: nothing
}

// WithTake returns a Puller that calls take before it writes bytes of layers to its directory.
//
// An error of take ends Flatten, and is in its error. Calls may be concurrent.
func (p *Puller) WithTake(take func(bytes int64) error) *Puller {
	other := *p
	other.take = take
	return &other
}

// New makes a Puller.
func New(opt Options) (*Puller, error) {
	if opt.Dir == "" {
		return nil, errors.New("oci: no directory given")
	}
	if opt.Platform == "" {
		opt.Platform = "linux/" + runtime.GOARCH
	}
	platform, err := v1.ParsePlatform(opt.Platform)
	if err != nil || platform.OS == "" || platform.Architecture == "" {
		return nil, fmt.Errorf("oci: %q is not a platform: use os/architecture", opt.Platform)
	}
	opt.Limits = opt.Limits.withDefaults()
	if opt.Retries == 0 {
		opt.Retries = 5
	}
	if opt.Wait == 0 {
		opt.Wait = 500 * time.Millisecond
	}
	if opt.Stall == 0 {
		opt.Stall = time.Minute
	}
	return &Puller{opt: opt, platform: *platform, transport: newTransport(opt)}, nil
}

// Layer is one layer of an image.
type Layer struct {
	Digest string // digest of the blob
	DiffID string // digest of the uncompressed tar stream
	Size   int64  // bytes of the blob
}

// Image is a resolved image without its files.
type Image struct {
	Ref      string // reference with the digest of the manifest, so that it always means this image
	Digest   string // digest of the manifest
	Platform string
	Config   v1.Config // environment, user, entry point and the like
	Layers   []Layer   // lowest first
	Bytes    int64     // compressed bytes of all blobs

	repository name.Repository
}

// Resolve finds the image of a reference for the platform of p. It verifies its manifest and configuration.
func (p *Puller) Resolve(ctx context.Context, ref string) (*Image, error) {
	parsed, err := p.parse(ref)
	if err != nil {
		return nil, err
	}
	fail := func(err error) error { return fmt.Errorf("resolve image %s: %w", ref, classify(ctx, err)) }
	desc, err := remote.Get(parsed, p.options(ctx, parsed)...)
	if err != nil {
		return nil, fail(err)
	}
	var img v1.Image
	if desc.MediaType.IsIndex() {
		img, err = p.selectPlatform(desc)
	} else if desc.MediaType.IsSchema1() {
		err = fmt.Errorf("%w: the manifest has the obsolete schema 1", ErrCorrupt)
	} else {
		img, err = desc.Image()
	}
	if err != nil {
		return nil, fail(err)
	}
	out, err := p.describe(img, parsed)
	if err != nil {
		return nil, fail(err)
	}
	return out, nil
}

// parse parses a reference. It refuses plain HTTP unless the registry is in Options.Insecure.
func (p *Puller) parse(ref string) (name.Reference, error) {
	if len(ref) > 1024 {
		return nil, fmt.Errorf("%w: longer than 1024 bytes", ErrReference)
	}
	parsed, err := name.ParseReference(ref)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrReference, err)
	}
	registry := parsed.Context().RegistryStr()
	switch {
	case slices.Contains(p.opt.Insecure, registry):
		parsed, err = name.ParseReference(ref, name.Insecure)
	case parsed.Context().Scheme() != "https":
		err = fmt.Errorf("registry %s uses plain HTTP: add it to the insecure registries", registry)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrReference, err)
	}
	return parsed, nil
}

// RegistryOf returns the registry, "host" or "host:port", of a reference.
func RegistryOf(ref string) (string, error) {
	parsed, err := name.ParseReference(ref)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrReference, err)
	}
	return parsed.Context().RegistryStr(), nil
}

func (p *Puller) options(ctx context.Context, ref name.Reference) []remote.Option {
	return []remote.Option{
		remote.WithContext(ctx),
		remote.WithTransport(p.transport),
		remote.WithAuth(p.auth(ref.Context())),
		remote.WithPlatform(
			p.platform,
		),
		remote.WithRetryBackoff(remote.Backoff{Duration: p.opt.Wait, Factor: 2, Jitter: 0.1, Steps: 4}),
	}
}

func (p *Puller) auth(repo name.Repository) authn.Authenticator {
	if p.opt.Credentials == nil {
		return authn.Anonymous
	}
	c, ok := p.opt.Credentials(repo.RegistryStr())
	if !ok {
		return authn.Anonymous
	}
	return authn.FromConfig(authn.AuthConfig{Username: c.Username, Password: c.Password, RegistryToken: c.Token})
}

// selectPlatform returns the image of an index for the platform.
func (p *Puller) selectPlatform(desc *remote.Descriptor) (v1.Image, error) {
	index, err := desc.ImageIndex()
	if err != nil {
		return nil, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, fmt.Errorf("%w: its index is malformed", ErrCorrupt)
	}
	var has []string
	for _, m := range manifest.Manifests {
		if m.Platform == nil || !m.MediaType.IsImage() {
			continue
		}
		if m.Platform.Satisfies(p.platform) {
			return index.Image(m.Digest)
		}
		if s := m.Platform.String(); s != "unknown/unknown" && len(has) < 20 {
			has = append(has, s)
		}
	}
	slices.Sort(has)
	return nil, fmt.Errorf("%w: it exists for %.1000s, not for %s", ErrPlatform, strings.Join(has, ", "), p.platform)
}

// describe reads the manifest and the configuration. The library verifies both against their digests.
func (p *Puller) describe(img v1.Image, ref name.Reference) (*Image, error) {
	digest, err := img.Digest()
	if err != nil {
		return nil, err
	}
	manifest, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	if !manifest.Config.MediaType.IsConfig() {
		return nil, fmt.Errorf(
			"%w: it is an artifact, not an image: its configuration has the type %.100q",
			ErrCorrupt,
			manifest.Config.MediaType,
		)
	}
	if manifest.Config.Size > 8<<20 {
		return nil, fmt.Errorf("%w: its configuration has %d bytes", ErrTooLarge, manifest.Config.Size)
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	platform := config.Platform()
	if platform == nil || !platform.Satisfies(v1.Platform{OS: p.platform.OS, Architecture: p.platform.Architecture}) {
		return nil, fmt.Errorf("%w: it is for %.100s, not for %s", ErrPlatform, platform, p.platform)
	}
	out := &Image{
		Ref:        ref.Context().Digest(digest.String()).String(),
		Digest:     digest.String(),
		Platform:   platform.String(),
		Config:     config.Config,
		repository: ref.Context(),
	}
	return out, p.layers(out, manifest, config)
}

// layers adds the layers of a manifest to img.
func (p *Puller) layers(img *Image, manifest *v1.Manifest, config *v1.ConfigFile) error {
	if len(manifest.Layers) != len(config.RootFS.DiffIDs) {
		return fmt.Errorf(
			"%w: it has %d layers and %d DiffIDs",
			ErrCorrupt,
			len(manifest.Layers),
			len(config.RootFS.DiffIDs),
		)
	}
	if len(manifest.Layers) > p.opt.Limits.MaxLayers {
		return fmt.Errorf(
			"%w: it has %d layers, %d are allowed",
			ErrTooLarge,
			len(manifest.Layers),
			p.opt.Limits.MaxLayers,
		)
	}
	for i, l := range manifest.Layers {
		diff := config.RootFS.DiffIDs[i]
		if l.Digest.Algorithm != "sha256" || diff.Algorithm != "sha256" || len(l.Digest.Hex) != 64 ||
			len(diff.Hex) != 64 {
			return fmt.Errorf("%w: layer %d has no SHA-256 digest", ErrCorrupt, i)
		}
		if l.Size < 0 || l.Size > p.opt.Limits.MaxBytes-img.Bytes {
			return fmt.Errorf("%w: its layers have more than %d bytes", ErrTooLarge, p.opt.Limits.MaxBytes)
		}
		img.Bytes += l.Size
		img.Layers = append(img.Layers, Layer{Digest: l.Digest.String(), DiffID: diff.String(), Size: l.Size})
	}
	return nil
}
