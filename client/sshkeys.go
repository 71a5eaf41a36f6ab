package client

import (
	"context"

	"github.com/pandastack/pandastack/api"
)

// SSHKeys are the calls on the public keys for SSH of the caller's workspace.
type SSHKeys struct{ c *Client }

// Gateway says how to reach sandboxes over SSH.
func (s *SSHKeys) Gateway(ctx context.Context) (api.SSHGateway, error) {
	var out api.SSHGateway
	err := s.c.do(ctx, get(apiPath("ssh")), &out)
	return out, err
}

// List returns the keys, newest first.
func (s *SSHKeys) List(ctx context.Context) ([]api.SSHKey, error) {
	var out []api.SSHKey
	err := s.c.do(ctx, get(apiPath("ssh-keys")), &out)
	return out, err
}

// Add adds a public key, which gets the rights of the API key of the client.
func (s *SSHKeys) Add(ctx context.Context, req api.AddSSHKeyRequest) (api.SSHKey, error) {
	var out api.SSHKey
	err := s.c.do(ctx, post(apiPath("ssh-keys"), req), &out)
	return out, err
}

// Delete deletes a key. Connections that use it end.
func (s *SSHKeys) Delete(ctx context.Context, id api.SSHKeyID) error {
	rq := del(apiPath("ssh-keys", string(id)))
	rq.idempotent = false // a second response would be not_found
	return s.c.do(ctx, rq, nil)
}
