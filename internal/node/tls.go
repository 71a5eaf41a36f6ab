package node

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"time"

	"github.com/pandastack/pandastack/internal/ingress/acme"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
)

// listenTLS listens on the address of the API over TLS. It returns nil if TLS is not configured.
func (n *node) listenTLS(ctx context.Context) (net.Listener, error) {
	if n.Config.TLS.Listen == "" {
		return nil, nil
	}
	return n.listenAt(ctx, n.Config.TLS.Listen, "--tls-listen")
}

// certificate is the certificate of a node.
type certificate struct {
	*proxy.ReloadingCertificate
	name   string // host name of the node
	caFile string // certificate that clients have to trust; empty if the configuration names a certificate
}

// certificate loads the certificate that the configuration names, or that the node issues itself.
func (n *node) certificate(listeners ...net.Listener) (c certificate, err error) {
	load := func(time.Time) (tls.Certificate, error) {
		return tls.LoadX509KeyPair(n.Config.TLS.Cert, n.Config.TLS.Key)
	}
	name, names := n.certificateNames(listeners...)
	c.name = name
	if n.Config.TLS.Cert == "" {
		dir := n.path("tls")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return c, err
		}
		var caFile string
		load = func(now time.Time) (cert tls.Certificate, err error) {
			cert, caFile, err = proxy.PrivateTLS(dir, names, now)
			return cert, err
		}
		defer func() { c.caFile = caFile }()
	}
	if c.ReloadingCertificate, err = proxy.NewReloadingCertificate(load, n.Log); err != nil {
		return c, fmt.Errorf("TLS: %w", err)
	}
	return c, nil
}

// serveTLS serves requests over TLS, with HTTP/2. It returns the URL, and the CA certificate that clients have to
// trust, which is empty if the configuration names a certificate.
func (n *node) serveTLS(ctx context.Context, l net.Listener, handler http.Handler) (address, caFile string, err error) {
	secure := &tls.Config{GetCertificate: n.cert.Get, MinVersion: tls.VersionTLS12}
	if n.acme != nil {
		secure.GetCertificate, secure.NextProtos = n.acme.Certificate, acme.Protocols()
	}
	n.serve(ctx, l, handler, secure)
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return "", "", err
	}
	name := n.cert.name
	if port != "443" {
		name = net.JoinHostPort(name, port)
	}
	return "https://" + name, n.cert.caFile, nil
}

// certificateNames returns the host name of this node, which is that of the public URL or localhost, and all names of
// a certificate that the node issues itself: the host name, wildcards below it and below the domains of previews and
// databases, and the addresses of listeners.
func (n *node) certificateNames(listeners ...net.Listener) (name string, all []string) {
	name = "localhost"
	if u, err := url.Parse(n.Config.PublicURL); err == nil && u.Hostname() != "" {
		name = u.Hostname()
	}
	all = []string{name, "localhost", "*.localhost", "127.0.0.1", "::1"}
	// Node.js rejects a wildcard below a single label, so its clients need a public URL with a domain.
	if net.ParseIP(name) == nil && name != "localhost" {
		all = append(all, "*."+name)
	}
	if d := n.Config.Preview.Domain; d != "" {
		all = append(all, "*."+proxy.Hostname(d))
	}
	all = append(all, "*."+n.appSuffix())
	if n.Config.Databases.Listen != "" {
		all = append(all, "*."+n.databaseSuffix())
	}
	for _, l := range listeners {
		if l == nil {
			continue
		}
		if host, _, err := net.SplitHostPort(l.Addr().String()); err == nil {
			if ip := net.ParseIP(host); ip != nil && !ip.IsUnspecified() {
				all = append(all, ip.String())
			}
		}
	}
	slices.Sort(all)
	return name, slices.Compact(all)
}
