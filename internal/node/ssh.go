package node

import (
	"context"
	"crypto/ed25519"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/ingress/access"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/sshapi"
	"github.com/pandastack/pandastack/internal/ingress/sshgate"
	"github.com/pandastack/pandastack/internal/lib/durable"
)

// sshHostKey is the file of the key by which clients recognize the SSH gateway.
const sshHostKey = "ssh_host_ed25519_key"

// listenSSH listens on the address of the SSH gateway. It returns nil if there is none.
func (n *node) listenSSH(ctx context.Context) (net.Listener, error) {
	if n.Config.SSH.Listen == "" {
		return nil, nil
	}
	return n.listenAt(ctx, n.Config.SSH.Listen, "--ssh-listen (empty: no SSH gateway)")
}

// sshGateway is the SSH gateway with its keys. The zero value is that of a node without one.
type sshGateway struct {
	gate *sshgate.Gate
	api  sshapi.API
}

// sshGateway creates the SSH gateway.
func (n *node) sshGateway(f *services, guard *access.Guard) (g sshGateway, err error) {
	if n.ssh == nil {
		return g, nil
	}
	key, err := hostKey(n.path(sshHostKey))
	if err != nil {
		return g, err
	}
	g.gate, err = sshgate.New(sshgate.Config{
		HostKeys: []ssh.Signer{key}, Sandboxes: f.sandboxes, Keys: f.sshKeys, Principals: f.keys, Guard: guard,
		Audit: f.log, HalfOpen: n.shares.logins, Buffers: n.shares.memory, Log: n.Log,
	})
	if err != nil {
		return g, err
	}
	at, err := n.sshAddress()
	if err != nil {
		return g, err
	}
	at.HostKeys = []string{strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key.PublicKey())))}
	g.api = sshapi.API{Keys: f.sshKeys, Gateway: &at}
	return g, nil
}

// sshAddress returns where users reach the gateway.
func (n *node) sshAddress() (api.SSHGateway, error) {
	host, port, err := net.SplitHostPort(localAddress(n.ssh))
	if err != nil {
		return api.SSHGateway{}, err
	}
	if u, err := url.Parse(n.Config.PublicURL); err == nil && u.Hostname() != "" {
		host = u.Hostname()
	}
	if n.Config.SSH.Public != "" {
		if host, port, err = net.SplitHostPort(n.Config.SSH.Public); err != nil {
			return api.SSHGateway{}, err
		}
	}
	number, err := strconv.Atoi(port)
	return api.SSHGateway{Host: host, Port: number}, err
}

// run serves SSH until the node stops.
func (g sshGateway) run(ctx context.Context, n *node) {
	if g.gate != nil {
		n.run(ctx, "SSH gateway", func(ctx context.Context) error { return g.gate.Serve(ctx, n.ssh) })
	}
}

// hostKey returns the key in a file. The first call creates it.
func hostKey(path string) (ssh.Signer, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		_, private, err := ed25519.GenerateKey(nil)
		if err != nil {
			return nil, err
		}
		block, err := ssh.MarshalPrivateKey(private, "")
		if err != nil {
			return nil, err
		}
		if err := durable.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			return nil, err
		}
		return ssh.NewSignerFromKey(private)
	}
	if err != nil {
		return nil, err
	}
	key, err := ssh.ParsePrivateKey(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; restore it from a backup, or remove it to get a new one", path, err)
	}
	return key, nil
}
