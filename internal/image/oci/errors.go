package oci

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/pandastack/pandastack/internal/lib/netguard"
)

// Errors that an image, its registry or the request causes. All errors of this package wrap one of them, except those
// of contexts and of the directory.
var (
	ErrReference   = errors.New("bad image reference")
	ErrNotFound    = errors.New("image not found")
	ErrDenied      = errors.New("registry denied access")
	ErrPlatform    = errors.New("image is for another platform")
	ErrUnavailable = errors.New("registry unavailable")
	ErrCorrupt     = errors.New("image is corrupt")   // digest mismatch, malformed manifest or layer
	ErrTooLarge    = errors.New("image is too large") // beyond Limits
)

// classify returns one of the errors of this package for an error of the library or of an HTTP client.
//
// The errors of both quote what the server sent. A server may be another than the user can reach, so that only the
// kind of the error and the status are returned.
func classify(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	dns, isDNS := errors.AsType[*net.DNSError](err)
	if errors.Is(err, netguard.ErrNotPublic) || isDNS && dns.IsNotFound {
		return errUnreachable
	}
	for _, known := range []error{errPlainHTTP, ErrReference, ErrNotFound, ErrDenied, ErrPlatform, ErrUnavailable,
		ErrCorrupt, ErrTooLarge} {
		if errors.Is(err, known) {
			if _, isRequest := errors.AsType[*url.Error](err); isRequest { // of the transport, around it a URL
				return known
			}
			return err
		}
	}
	if t, ok := errors.AsType[*transport.Error](err); ok {
		return registryError(t)
	}
	if why := interruption(err); why != "" {
		return fmt.Errorf("%w: %s", ErrUnavailable, why)
	}
	return fmt.Errorf("%w: the response of the registry is malformed, or does not match its digest", ErrCorrupt)
}

// errUnreachable does not tell names that have private addresses from those that do not exist.
var errUnreachable = fmt.Errorf("%w: the registry, or a server that it refers to, has no public address; "+
	"private networks can be added to build.allow_networks", ErrReference)

// registryError returns the status of a response, with the code of the error if it is one of the protocol's.
func registryError(e *transport.Error) error {
	text := fmt.Sprintf("status %d %s", e.StatusCode, http.StatusText(e.StatusCode))
	for _, d := range e.Errors {
		if slices.Contains(protocolCodes, d.Code) {
			text += ", " + string(d.Code)
			break
		}
	}
	return fmt.Errorf("%w: %s", statusError(e.StatusCode), text)
}

// protocolCodes are the error codes of the registry protocol that matter to who pulls.
var protocolCodes = []transport.ErrorCode{
	transport.BlobUnknownErrorCode, transport.ManifestInvalidErrorCode, transport.ManifestUnknownErrorCode,
	transport.NameInvalidErrorCode, transport.NameUnknownErrorCode, transport.TagInvalidErrorCode,
	transport.UnauthorizedErrorCode, transport.DeniedErrorCode, transport.UnsupportedErrorCode,
	transport.TooManyRequestsErrorCode, transport.UnavailableErrorCode,
}

// interruption returns why a connection failed or ended early; "" if err means something else.
func interruption(err error) string {
	network, isNetwork := errors.AsType[net.Error](err)
	op, isOp := errors.AsType[*net.OpError](err)
	_, isCert := errors.AsType[*tls.CertificateVerificationError](err)
	switch {
	case errors.Is(err, errStalled):
		return errStalled.Error()
	case isCert:
		return "its certificate is not valid for its name, expired, or not trusted by this host"
	case isNetwork && network.Timeout():
		return "it does not respond"
	case isOp && op.Op == "dial":
		return "it does not accept connections"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "it ended the connection"
	case isNetwork:
		return "the connection failed"
	}
	return ""
}

// statusError returns the error of this package for an HTTP status.
func statusError(status int) error {
	switch status {
	case http.StatusNotFound:
		return ErrNotFound
	case http.StatusUnauthorized, http.StatusForbidden:
		return ErrDenied
	}
	return ErrUnavailable
}
