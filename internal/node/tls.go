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

	"github.com/pandastack/pandastack/internal/ingress/proxy"
)

// listenTLS takes the address of the API over TLS; nil if it is not to be served so.
func (n *node) listenTLS(ctx context.Context) (net.Listener, error) {
	if n.Config.TLS.Listen == "" {
		return nil, nil
	}
	return n.listenAt(ctx, n.Config.TLS.Listen, "--tls-listen")
}

// serveTLS answers requests over TLS and HTTP/2, and tells where and what clients have to trust: nothing, ""
// for a certificate that was configured.
func (n *node) serveTLS(ctx context.Context, l net.Listener, handler http.Handler) (address, caFile string, err error) {
	load := func(time.Time) (tls.Certificate, error) {
		return tls.LoadX509KeyPair(n.Config.TLS.Cert, n.Config.TLS.Key)
	}
	name, names := n.names(l)
	if n.Config.TLS.Cert == "" {
		dir := n.path("tls")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return "", "", err
		}
		load = func(now time.Time) (cert tls.Certificate, err error) {
			cert, caFile, err = proxy.PrivateTLS(dir, names, now)
			return cert, err
		}
	}
	kept, err := proxy.NewReloadingCertificate(load, n.Log)
	if err != nil {
		return "", "", fmt.Errorf("TLS: %w", err)
	}
	n.serve(ctx, l, handler, &tls.Config{GetCertificate: kept.Get, MinVersion: tls.VersionTLS12})
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return "", "", err
	}
	if port != "443" {
		name = net.JoinHostPort(name, port)
	}
	return "https://" + name, caFile, nil
}

// names are what a certificate of this node's own has to hold, and the one that users are told: that of the
// public address, else localhost, and below it a wildcard for the ports of sandboxes.
func (n *node) names(l net.Listener) (told string, all []string) {
	told = "localhost"
	if u, err := url.Parse(n.Config.PublicURL); err == nil && u.Hostname() != "" {
		told = u.Hostname()
	}
	all = []string{told, "localhost", "*.localhost", "127.0.0.1", "::1"}
	// Node.js takes no wildcard below a single label, so that a domain is needed for what it reaches by name.
	if net.ParseIP(told) == nil && told != "localhost" {
		all = append(all, "*."+told)
	}
	if host, _, err := net.SplitHostPort(l.Addr().String()); err == nil {
		if ip := net.ParseIP(host); ip != nil && !ip.IsUnspecified() {
			all = append(all, ip.String())
		}
	}
	slices.Sort(all)
	return told, slices.Compact(all)
}
