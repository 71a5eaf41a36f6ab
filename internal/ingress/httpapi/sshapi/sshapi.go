// Package sshapi are the calls on SSH keys as the API offers them.
//
// It checks ids; the service does the rest. It must not know routes or how bodies are decoded.
package sshapi

import (
	"context"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
)

// Keys are the methods of *sshkey.Keys that this API uses.
type Keys interface {
	Add(ctx context.Context, p auth.Principal, req api.AddSSHKeyRequest) (api.SSHKey, error)
	List(ctx context.Context, p auth.Principal) ([]api.SSHKey, error)
	Delete(ctx context.Context, p auth.Principal, id api.SSHKeyID) error
}

// Caller is a caller and the SSH key of its call, whose id is as in the path.
type Caller struct {
	Principal auth.Principal
	Key       string
}

// API has the service, and how the gateway is reached; without them SSH is unsupported.
type API struct {
	Keys    Keys
	Gateway *api.SSHGateway
}

func (a API) check() error {
	if a.Keys == nil || a.Gateway == nil {
		return api.Errorf(api.Unsupported, "this server has no SSH gateway: its operator sets ssh.listen to have one")
	}
	return nil
}

// Reach says how to reach the gateway.
func (a API) Reach(_ context.Context, _ Caller) (api.SSHGateway, error) {
	if err := a.check(); err != nil {
		return api.SSHGateway{}, err
	}
	return *a.Gateway, nil
}

// Add adds a key with the rights of the caller's API key.
func (a API) Add(ctx context.Context, c Caller, req api.AddSSHKeyRequest) (api.SSHKey, error) {
	if err := a.check(); err != nil {
		return api.SSHKey{}, err
	}
	return a.Keys.Add(ctx, c.Principal, req)
}

// List returns the keys of the caller's workspace, newest first.
func (a API) List(ctx context.Context, c Caller) ([]api.SSHKey, error) {
	if err := a.check(); err != nil {
		return nil, err
	}
	return a.Keys.List(ctx, c.Principal)
}

// Delete removes a key.
func (a API) Delete(ctx context.Context, c Caller) error {
	if err := a.check(); err != nil {
		return err
	}
	id, err := api.ParseSSHKeyID(c.Key)
	if err != nil {
		return err
	}
	return a.Keys.Delete(ctx, c.Principal, id)
}
