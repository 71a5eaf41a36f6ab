package workspace

import (
	"context"
	"net/netip"

	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/quota"
)

// Keys authenticates callers, and refuses those of suspended workspaces unless they operate the node.
type Keys struct {
	*auth.Keys
	Quotas *quota.Quotas
}

// Authenticate returns the caller with a token. The error has the code unauthenticated if the token is not valid, and
// workspace_suspended for a suspended workspace.
func (k Keys) Authenticate(ctx context.Context, token string, from netip.Addr) (auth.Principal, error) {
	p, err := k.Keys.Authenticate(ctx, token, from)
	if err != nil || p.Operator {
		return p, err
	}
	if err := k.Quotas.CheckActive(ctx, p.Workspace); err != nil {
		return auth.Principal{}, err
	}
	return p, nil
}
