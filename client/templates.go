package client

import (
	"context"

	"github.com/pandastack/pandastack/api"
)

// Templates are the calls on templates.
type Templates struct{ c *Client }

// List returns all templates that the key may use.
func (t *Templates) List(ctx context.Context) ([]api.Template, error) {
	var out []api.Template
	err := t.c.do(ctx, get(apiPath("templates")), &out)
	return out, err
}

// Get returns a template by name.
func (t *Templates) Get(ctx context.Context, name string) (api.Template, error) {
	var out api.Template
	err := t.c.do(ctx, get(apiPath("templates", name)), &out)
	return out, err
}

// Bake begins to bake a template, or joins a bake that runs. Get returns the progress.
func (t *Templates) Bake(ctx context.Context, name string, req api.BakeRequest) (api.Template, error) {
	var out api.Template
	err := t.c.do(ctx, post(apiPath("templates", name, "bake"), req), &out)
	return out, err
}
