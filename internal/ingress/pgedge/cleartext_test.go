package pgedge_test

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// A connection whose transport is encrypted by others sends its password, and is a session like all others.
func TestCleartext(t *testing.T) {
	e := start(t)
	peer := netip.MustParseAddr("192.0.2.1")
	var serving sync.WaitGroup
	t.Cleanup(serving.Wait)
	connect := func(pass, host string) (*pgconn.PgConn, error) {
		return e.connect(t, func(c *pgconn.Config) {
			c.TLSConfig, c.Password = nil, pass
			c.DialFunc = func(context.Context, string, string) (net.Conn, error) {
				near, far := net.Pipe()
				serving.Go(func() { e.ServeCleartext(t.Context(), far, peer, host) })
				return near, nil
			}
		})
	}
	conn, err := connect(password, "one."+suffix)
	if err != nil {
		t.Fatal(err)
	}
	query(t, conn, "x", "SELECT 1")
	if a := e.Activity("one"); a.Sessions != 1 {
		t.Errorf("Activity() = %+v, want the session", a)
	}
	for _, host := range []string{"one.", "two."} {
		_, err = connect("wrong", host+suffix)
		want(t, err, "28P01", "password authentication failed")
	}
	_, err = connect(password, "elsewhere.test")
	want(t, err, "28000", "does not name a database")
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "the session ends", func() bool { return e.Activity("one").Sessions == 0 })
}
