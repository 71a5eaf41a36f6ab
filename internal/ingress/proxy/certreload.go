package proxy

import (
	"crypto/tls"
	"log/slog"
	"sync"
	"time"
)

// reloadInterval is how often a certificate is loaded again, so that one that was renewed on disk, or that this program
// makes and that is about to expire, is replaced without a restart.
const reloadInterval = time.Hour

// ReloadingCertificate is a certificate that is reloaded while a server uses it. All methods may run at once.
type ReloadingCertificate struct {
	load func(now time.Time) (tls.Certificate, error)
	log  *slog.Logger

	mu     sync.Mutex
	cert   *tls.Certificate // guarded by mu
	loaded time.Time        // guarded by mu
}

// NewReloadingCertificate loads a certificate and reloads it every hour of use.
//
// If a later load fails, the certificate stays as it is.
func NewReloadingCertificate(
	load func(now time.Time) (tls.Certificate, error),
	log *slog.Logger,
) (*ReloadingCertificate, error) {
	now := time.Now()
	cert, err := load(now)
	if err != nil {
		return nil, err
	}
	return &ReloadingCertificate{load: load, log: log, cert: &cert, loaded: now}, nil
}

// Get implements tls.Config.GetCertificate.
func (c *ReloadingCertificate) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return c.at(time.Now()), nil
}

func (c *ReloadingCertificate) at(now time.Time) *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.loaded) < reloadInterval {
		return c.cert
	}
	c.loaded = now
	cert, err := c.load(now)
	if err != nil {
		c.log.Error("certificate could not be reloaded; the current one stays in use", "err", err)
		return c.cert
	}
	c.cert = &cert
	return c.cert
}
