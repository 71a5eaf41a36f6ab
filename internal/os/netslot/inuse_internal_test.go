package netslot

import (
	"context"
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// TestWhileInUse listens on an address that another socket has until the third call, and on one that it keeps.
func TestWhileInUse(t *testing.T) {
	var lc net.ListenConfig
	holder, err := lc.ListenPacket(t.Context(), "udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	calls := 0
	listen := func() (net.PacketConn, error) {
		calls++
		if calls == 3 {
			if err := holder.Close(); err != nil {
				t.Fatal(err)
			}
		}
		return lc.ListenPacket(t.Context(), "udp4", holder.LocalAddr().String())
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := whileInUse(ended, listen); !errors.Is(err, unix.EADDRINUSE) || calls != 1 {
		t.Errorf("after its end: %v after %d calls", err, calls)
	}
	got, err := whileInUse(t.Context(), listen)
	if err != nil || calls != 3 {
		t.Fatalf("%v after %d calls", err, calls)
	}
	if err := got.Close(); err != nil {
		t.Error(err)
	}
	other := errors.New("other")
	if _, err := whileInUse(t.Context(), func() (int, error) { return 0, other }); !errors.Is(err, other) {
		t.Error(err)
	}
}
