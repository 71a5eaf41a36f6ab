package activity

import (
	"context"
	"io"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// defaultsGuest is a guest with the defaults of its sandbox: requests that name no user use the sandbox's, and programs
// of that user without a directory start in the sandbox's.
type defaultsGuest struct {
	guestapi.Guest
	user, dir string
}

// WithDefaults returns g with a default user and directory; "" leaves the guest's own.
func WithDefaults(g guestapi.Guest, user, dir string) guestapi.Guest {
	return &defaultsGuest{Guest: g, user: user, dir: dir}
}

func (g *defaultsGuest) as(user string) string {
	if user == "" {
		return g.user
	}
	return user
}

func (g *defaultsGuest) Start(ctx context.Context, spec guestapi.ProcessSpec) (guestapi.Process, error) {
	spec.User = g.as(spec.User)
	if spec.Dir == "" && spec.User == g.user {
		spec.Dir = g.dir
	}
	return g.Guest.Start(ctx, spec)
}

func (g *defaultsGuest) Stat(ctx context.Context, path, user string) (guestapi.FileInfo, error) {
	return g.Guest.Stat(ctx, path, g.as(user))
}

func (g *defaultsGuest) List(ctx context.Context, path, user string, depth int) ([]guestapi.FileInfo, error) {
	return g.Guest.List(ctx, path, g.as(user), depth)
}

func (g *defaultsGuest) Read(
	ctx context.Context,
	path, user string,
	offset, length int64,
) (guestapi.FileInfo, io.ReadCloser, error) {
	return g.Guest.Read(ctx, path, g.as(user), offset, length)
}

func (g *defaultsGuest) Write(
	ctx context.Context,
	path string,
	opt guestapi.WriteOptions,
	r io.Reader,
) (guestapi.FileInfo, error) {
	opt.User = g.as(opt.User)
	return g.Guest.Write(ctx, path, opt, r)
}

func (g *defaultsGuest) Move(ctx context.Context, from, to, user string) (guestapi.FileInfo, error) {
	return g.Guest.Move(ctx, from, to, g.as(user))
}

func (g *defaultsGuest) Remove(ctx context.Context, path, user string, recursive bool) error {
	return g.Guest.Remove(ctx, path, g.as(user), recursive)
}

func (g *defaultsGuest) MakeDir(ctx context.Context, path, user string) (guestapi.FileInfo, error) {
	return g.Guest.MakeDir(ctx, path, g.as(user))
}

func (g *defaultsGuest) Watch(ctx context.Context, path, user string, recursive bool) (guestapi.Watcher, error) {
	return g.Guest.Watch(ctx, path, g.as(user), recursive)
}
