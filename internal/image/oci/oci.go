package oci

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// What can be wrong with an image, its registry or the request. Errors of this package wrap one of them where they
// are not those of the context or of the directory.
var (
	ErrReference   = errors.New("bad image reference")
	ErrNotFound    = errors.New("image not found")
	ErrDenied      = errors.New("registry denied access")
	ErrPlatform    = errors.New("image is for another platform")
	ErrUnavailable = errors.New("registry unavailable")
	ErrCorrupt     = errors.New("image is corrupt")   // digests that do not match, malformed manifests and layers
	ErrTooLarge    = errors.New("image is too large") // beyond Limits
)

// Limits bound an image. A zero field means the default.
type Limits struct {
	MaxLayers  int   // default 500
	MaxEntries int   // entries of all layers together, default 1,000,000
	MaxBytes   int64 // all layers uncompressed, default 32 GiB
	MaxRatio   int64 // bytes of a layer over its compressed size, once it is larger than RatioFrom; default 300
	RatioFrom  int64 // bytes; default 256 MiB
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
	return l
}

// Credentials of a registry: a user and password, or a token.
type Credentials struct {
	Username, Password string
	Token              string // bearer token
}

// Options of a Puller.
type Options struct {
	Dir         string // an existing directory for layers, of this Puller alone; required
	CacheBytes  int64  // verified layers kept there, least recently used removed first; 0: none
	Credentials func(registry string) (Credentials, bool)
	Insecure    []string // registries, "host:port", that may be reached over plain HTTP
	Platform    string   // "linux/arm64/v8"; "": linux on this processor
	Limits      Limits
	Transport   http.RoundTripper // nil: the environment's proxy, no link-local addresses
	Retries     int               // connections cut in a row, without a byte between, that a layer survives; default 5
	Wait        time.Duration     // before the first of them is tried again, doubled each time; default 500 ms
	Stall       time.Duration     // without a byte, after which a connection counts as cut; default 60 s
	// Progress, if not nil, is told the compressed bytes fetched so far of the given layer. It may be called at once.
	Progress func(layer int, done, total int64)
}

// Puller pulls images.
type Puller struct {
	opt      Options
	platform v1.Platform
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
		return nil, fmt.Errorf("oci: %q is no platform", opt.Platform)
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
	if opt.Transport == nil {
		opt.Transport = newTransport()
	}
	return &Puller{opt, *platform}, nil
}

// newTransport reaches registries wherever they are but at link-local addresses, where clouds keep secrets: by
// the addresses that names turn out to have, and by those that a proxy would be asked for.
func newTransport() http.RoundTripper {
	dialer := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second,
		Control: func(_, address string, _ syscall.RawConn) error {
			host, _, err := net.SplitHostPort(address)
			if err == nil {
				err = checkAddress(host)
			}
			return err
		}}
	return addressFilter{
		&http.Transport{Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, ForceAttemptHTTP2: true,
			IdleConnTimeout: 30 * time.Second, TLSHandshakeTimeout: 15 * time.Second,
			ResponseHeaderTimeout: 60 * time.Second,
			DisableCompression:    true},
	}
}

// checkAddress refuses what no registry is at. A name is not an address yet.
func checkAddress(host string) error {
	if ip := net.ParseIP(host); ip != nil && (ip.IsLinkLocalUnicast() || ip.IsMulticast() || ip.IsUnspecified()) {
		return fmt.Errorf("%w: %s is no address of a registry", ErrReference, host)
	}
	return nil
}

// addressFilter refuses requests to addresses that no registry is at, redirected ones included.
type addressFilter struct{ http.RoundTripper }

func (g addressFilter) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := checkAddress(r.URL.Hostname()); err != nil {
		return nil, err
	}
	return g.RoundTripper.RoundTrip(r)
}

// Layer is one layer of an image.
type Layer struct {
	Digest string // of the blob
	DiffID string // of the tar stream in it
	Size   int64  // of the blob, bytes
}

// Image is a resolved image: everything about it but its files.
type Image struct {
	Ref      string // with the digest of the manifest, so that it always means this image
	Digest   string // of the manifest
	Platform string
	Config   v1.Config // environment, user, entry point and the like, as the image says
	Layers   []Layer   // lowest first
	Bytes    int64     // of all blobs, compressed

	repository name.Repository
}

// Resolve finds the image of a reference for the platform of p and verifies its manifest and configuration.
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
		err = fmt.Errorf("%w: its manifest is of the obsolete schema 1", ErrCorrupt)
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

// parse reads a reference and refuses plain HTTP that was not allowed.
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
		err = fmt.Errorf("registry %s would be reached over plain HTTP, which is not allowed for it", registry)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrReference, err)
	}
	return parsed, nil
}

func (p *Puller) options(ctx context.Context, ref name.Reference) []remote.Option {
	return []remote.Option{
		remote.WithContext(ctx),
		remote.WithTransport(p.opt.Transport),
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

// selectPlatform picks the image of an index for the platform.
func (p *Puller) selectPlatform(desc *remote.Descriptor) (v1.Image, error) {
	index, err := desc.ImageIndex()
	if err != nil {
		return nil, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
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
	return nil, fmt.Errorf("%w: it is there for %s, not for %s", ErrPlatform, strings.Join(has, ", "), p.platform)
}

// describe reads manifest and configuration, both verified by the library against their digests.
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
			"%w: it is an artifact, not an image: its configuration is %.100q",
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
		return nil, fmt.Errorf("%w: it is for %s, not for %s", ErrPlatform, platform, p.platform)
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

// layers takes the layers of a manifest into img.
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

// classify gives an error of the library one of the errors of this package.
func classify(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	for _, known := range []error{ErrReference, ErrNotFound, ErrDenied, ErrPlatform, ErrUnavailable, ErrCorrupt,
		ErrTooLarge} {
		if errors.Is(err, known) {
			return err
		}
	}
	if t, ok := errors.AsType[*transport.Error](err); ok {
		return fmt.Errorf("%w: %w", statusError(t.StatusCode), err)
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return fmt.Errorf("%w: %w", ErrCorrupt, err)
}

func statusError(status int) error {
	switch status {
	case http.StatusNotFound:
		return ErrNotFound
	case http.StatusUnauthorized, http.StatusForbidden:
		return ErrDenied
	}
	return ErrUnavailable
}
