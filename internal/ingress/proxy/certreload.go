package proxy

import (
	"crypto/tls"
	"log/slog"
	"sync"
	"time"
)

// reloadInterval is how often a certificate is loaded anew: one that was renewed on disk, or that this program makes
// for itself and that is nearly over, is taken up without a restart.
const reloadInterval = time.Hour

// ReloadingCertificate is one that a server shows. Make one with KeepCertificate. Everything may run at once.
type ReloadingCertificate struct {
	load func(now time.Time) (tls.Certificate, error)
	log  *slog.Logger

	mu     sync.Mutex
	cert   *tls.Certificate // guarded by mu
	loaded time.Time        // guarded by mu
}

// NewReloadingCertificate loads a certificate, and from then on anew now and then. When that fails later, the one at
// hand is shown further.
func NewReloadingCertificate(load func(now time.Time) (tls.Certificate, error), log *slog.Logger) (*ReloadingCertificate, error) {
	now := time.Now()
	cert, err := load(now)
	if err != nil {
		return nil, err
	}
	return &ReloadingCertificate{load: load, log: log, cert: &cert, loaded: now}, nil
}

// Get is for tls.Config.GetCertificate.
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
		c.log.Error("certificate could not be loaded anew; the one at hand is shown further", "err", err)
		return c.cert
	}
	c.cert = &cert
	return c.cert
}
