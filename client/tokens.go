package client

import (
	"context"

	"github.com/pandastack/pandastack/api"
)

// Tokens are the calls on the keys of the caller's workspace.
type Tokens struct{ c *Client }

// List returns the keys, newest first.
func (t *Tokens) List(ctx context.Context) ([]api.Token, error) {
	var out api.TokenList
	err := t.c.do(ctx, get(apiPath("me", "tokens")), &out)
	return out.Items, err
}

// Create creates a key, which is shown only once.
func (t *Tokens) Create(ctx context.Context, req api.TokenRequest) (api.TokenCreated, error) {
	var out api.TokenCreated
	err := t.c.do(ctx, post(apiPath("me", "tokens"), req), &out)
	return out, err
}

// Rotate makes a key with the rights of another one, which ends after the overlap.
func (t *Tokens) Rotate(ctx context.Context, prefix string, req api.RotateRequest) (api.TokenCreated, error) {
	var out api.TokenCreated
	err := t.c.do(ctx, post(apiPath("me", "tokens", prefix, "rotate"), req), &out)
	return out, err
}

// Revoke revokes a key at once.
func (t *Tokens) Revoke(ctx context.Context, prefix string) error {
	rq := del(apiPath("me", "tokens", prefix))
	rq.idempotent = false // a second response would be not_found
	return t.c.do(ctx, rq, nil)
}
