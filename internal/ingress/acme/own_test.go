package acme_test

import (
	"runtime"
	"testing"
)

const ownName = "panda.example.com"

// until waits for a condition that another goroutine brings about.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for !ok() {
		if t.Context().Err() != nil {
			t.Fatalf("not reached: %s", what)
		}
		runtime.Gosched()
	}
}

// A name of the server has a certificate issued without a handshake that asks for it, and is served with that from then
// on; other names that no app has are not.
func TestOwnName(t *testing.T) {
	for _, byHTTP := range []bool{false, true} {
		f := newOwnFixture(t, byHTTP, []string{ownName}, false)
		until(t, "a certificate of the authority", func() bool { return f.handshake(ownName) == nil })
		if n := f.ca.orders.Load(); n != 1 {
			t.Errorf("%d orders, want 1", n)
		}
		before := f.fallback.Load()
		if err := f.handshake("other.example.com"); err == nil || f.fallback.Load() != before+1 {
			t.Errorf("handshake of an unknown name: %v, want the certificate of the server", err)
		}
	}
}

// While no certificate is issued for a name of the server, handshakes have the server's own one, at once.
func TestOwnNameThatIsRefused(t *testing.T) {
	f := newOwnFixture(t, false, []string{ownName}, true)
	until(t, "a refused order", func() bool { return len(f.names.failed()) > 0 })
	before, orders := f.fallback.Load(), f.ca.orders.Load()
	for range 3 {
		if err := f.handshake(ownName); err == nil {
			t.Error("a handshake has a certificate that was never issued")
		}
	}
	if n := f.fallback.Load() - before; n != 3 {
		t.Errorf("%d handshakes with the certificate of the server, want 3", n)
	}
	if n := f.ca.orders.Load(); n != orders {
		t.Errorf("handshakes made %d orders", n-orders)
	}
}
