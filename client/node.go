package client

import (
	"context"
	"io"

	"github.com/pandastack/pandastack/api"
)

// Me returns who the key is.
func (c *Client) Me(ctx context.Context) (api.Me, error) {
	var out api.Me
	err := c.do(ctx, get(apiPath("me")), &out)
	return out, err
}

// Health reports whether the server works. It needs no key.
func (c *Client) Health(ctx context.Context) (api.Health, error) {
	var out api.Health
	err := c.do(ctx, call{method: "GET", path: "/healthz"}, &out)
	return out, err
}

// Version returns the version of the server. It needs no key.
func (c *Client) Version(ctx context.Context) (api.Version, error) {
	var out api.Version
	err := c.do(ctx, get("/version"), &out)
	return out, err
}

// Capacity returns what the node has and has promised.
func (c *Client) Capacity(ctx context.Context) (api.Capacity, error) {
	var out api.Capacity
	err := c.do(ctx, get(apiPath("capacity")), &out)
	return out, err
}

// Metrics returns the server's metrics in the text format of Prometheus. It needs an operator's key.
func (c *Client) Metrics(ctx context.Context) (string, error) {
	res, err := c.send(ctx, get("/metrics"))
	if err != nil {
		return "", err
	}
	defer res.Body.Close() //nolint:errcheck // it has been read
	data, err := io.ReadAll(io.LimitReader(res.Body, maxResponse))
	if err != nil {
		return "", transportError(ctx, err)
	}
	return string(data), nil
}
