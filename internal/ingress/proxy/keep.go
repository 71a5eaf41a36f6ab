package proxy

import (
	"crypto/tls"
	"log/slog"
	"sync"
	"time"
)

// lookAgain is how often a certificate is loaded anew: one that was renewed on disk, or that this program makes
// for itself and that is nearly over, is taken up without a restart.
const lookAgain = time.Hour

// Certificate is one that a server shows. Make one with KeepCertificate. Everything may run at once.
type Certificate struct {
	load func(now time.Time) (tls.Certificate, error)
	log  *slog.Logger

	mu     sync.Mutex
	cert   *tls.Certificate // guarded by mu
	loaded time.Time        // guarded by mu
}

// KeepCertificate loads a certificate, and from then on anew now and then. When that fails later, the one at
// hand is shown further.
func KeepCertificate(load func(now time.Time) (tls.Certificate, error), log *slog.Logger) (*Certificate, error) {
	now := time.Now()
	cert, err := load(now)
	if err != nil {
		return nil, err
	}
	return &Certificate{load: load, log: log, cert: &cert, loaded: now}, nil
}

// Get is for tls.Config.GetCertificate.
func (c *Certificate) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return c.at(time.Now()), nil
}

func (c *Certificate) at(now time.Time) *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.loaded) < lookAgain {
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
