package proxy

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"testing"
	"time"
)

func TestKeepCertificate(t *testing.T) {
	loads, fault := 0, error(nil)
	c, err := NewReloadingCertificate(func(time.Time) (tls.Certificate, error) {
		loads++
		return tls.Certificate{OCSPStaple: []byte{byte(loads)}}, fault
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for _, step := range []struct {
		after time.Duration
		fault error
		want  byte
	}{
		{time.Minute, nil, 1}, {reloadInterval + time.Minute, nil, 2}, {reloadInterval + 2*time.Minute, nil, 2},
		{3 * reloadInterval, errors.New("no such file"), 2}, {5 * reloadInterval, nil, 4},
	} {
		fault = step.fault
		if got := c.at(now.Add(step.after)).OCSPStaple[0]; got != step.want {
			t.Errorf("after %v: got certificate %d, want %d", step.after, got, step.want)
		}
	}
	broken := func(time.Time) (tls.Certificate, error) { return tls.Certificate{}, errors.New("none") }
	if _, err := NewReloadingCertificate(broken, nil); err == nil {
		t.Error("NewReloadingCertificate of a failed load succeeded, want its error")
	}
}
