package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
)

// TestEdgeOfDatabases connects to the edge of a node by a name that its own certificate is for.
func TestEdgeOfDatabases(t *testing.T) {
	n := newNode(t, "PANDASTACK_LISTEN=127.0.0.1:0", "PANDASTACK_DATABASES_LISTEN=127.0.0.1:0")
	host := hosttest.New()
	t.Cleanup(host.Close)
	t.Cleanup(func() {
		if err := n.undo.UnwindWithin(context.WithoutCancel(t.Context()), time.Minute); err != nil {
			t.Error(err)
		}
	})
	var err error
	if n.pg, err = n.listenDatabases(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n.cert, err = n.certificate(n.pg); err != nil {
		t.Fatal(err)
	}
	_, edge, _, err := n.control(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}
	n.run(t.Context(), "edge", func(ctx context.Context) error { return edge.Serve(ctx, n.pg) })
	ca, err := os.ReadFile(n.cert.caFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	cfg, err := pgx.ParseConfig("postgresql://pandastack:wrong@dbsaaaaaaaaaaaaaaaaaaaa.db.localhost/pandastack" +
		"?sslmode=require")
	if err != nil {
		t.Fatal(err)
	}
	cfg.TLSConfig = &tls.Config{ServerName: "dbsaaaaaaaaaaaaaaaaaaaa.db.localhost", RootCAs: roots}
	cfg.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"127.0.0.1"}, nil }
	cfg.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", n.pg.Addr().String())
	}
	_, err = pgx.ConnectConfig(t.Context(), cfg)
	if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != "28P01" {
		t.Errorf("a database that does not exist: %v, want error 28P01", err)
	}
}
