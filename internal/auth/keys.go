package auth

import (
	"context"
	"time"

	"github.com/pandastack/pandastack/api"
)

// KeyRequest describes a key to make.
type KeyRequest struct {
	Label   string
	Admin   bool
	Expires time.Duration // from now; 0: never
}

// Key is a key as it may be shown. Times that do not apply are zero.
type Key struct {
	Prefix                     string
	Workspace                  api.Workspace
	Label                      string
	Admin                      bool
	Created, LastUsed, Expires time.Time
}

// Keys makes, checks and revokes API keys.
type Keys struct{}

var errLater = api.Errorf(api.Unsupported, "not there yet")

// Authenticate tells who shows this token; unauthenticated if it does not hold.
func (k *Keys) Authenticate(ctx context.Context, token string) (Principal, error) {
	return Principal{}, errLater
}

// First makes the first admin key of the default workspace if there is no key at all, and answers it
// this once; "" when there are keys.
func (k *Keys) First(ctx context.Context) (token string, err error) { return "", errLater }

// Create makes a key in the caller's workspace. The token is shown this once. Callers that are not Admin
// are forbidden, here and below.
func (k *Keys) Create(ctx context.Context, p Principal, req KeyRequest) (Key, string, error) {
	return Key{}, "", errLater
}

// List answers the keys of the caller's workspace, newest first.
func (k *Keys) List(ctx context.Context, p Principal) ([]Key, error) { return nil, errLater }

// Revoke ends a key of the caller's workspace at once; not_found if there is none with this prefix.
func (k *Keys) Revoke(ctx context.Context, p Principal, prefix string) error { return errLater }
