package integrationtest

import (
	"context"
	"crypto/ed25519"
	"log/slog"
	"net"

	"golang.org/x/crypto/ssh"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/audit"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/control/sshkey"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/ingress/access"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/sshapi"
	"github.com/pandastack/pandastack/internal/ingress/sshgate"
	"github.com/pandastack/pandastack/internal/lib/budget"
)

// startSSH starts the SSH gateway of a node. Its host key changes with every start.
func (w *Platform) startSSH(
	ctx context.Context,
	db *store.DB,
	keys *auth.Keys,
	boxes *sandbox.Service,
	guard *access.Guard,
	log *slog.Logger,
) sshapi.API {
	w.t.Helper()
	_, private, err := ed25519.GenerateKey(nil)
	w.must(err)
	host, err := ssh.NewSignerFromKey(private)
	w.must(err)
	public, err := sshkey.New(db)
	w.must(err)
	entries, err := audit.New(audit.Config{}, db, log)
	w.must(err)
	w.runUntilStop(entries.Run)
	gate, err := sshgate.New(sshgate.Config{
		HostKeys: []ssh.Signer{host}, Sandboxes: boxes, Keys: public, Principals: keys, Guard: guard, Audit: entries,
		HalfOpen: budget.New(budget.Config{Name: "logins", Total: 64, Levels: []budget.Level{{Name: "address"}}}),
		Log:      log,
	})
	w.must(err)
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	w.must(err)
	w.SSH = l.Addr().String()
	w.runUntilStop(func(ctx context.Context) error { return gate.Serve(ctx, l) })
	at := &api.SSHGateway{
		Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, //nolint:forcetypeassert // it listens on TCP
		HostKeys: []string{string(ssh.MarshalAuthorizedKey(host.PublicKey()))},
	}
	return sshapi.API{Keys: public, Gateway: at}
}
