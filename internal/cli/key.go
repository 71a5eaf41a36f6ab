package cli

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
	"github.com/pandastack/pandastack/internal/cli/values"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/lib/config"
	"github.com/pandastack/pandastack/internal/lib/durable"
	"github.com/pandastack/pandastack/internal/node"
)

func (a *app) keys() *cobra.Command {
	return cmdutil.Group("key", "Create, rotate and revoke API keys",
		a.keyCreate(), a.keyList(), a.keyRotate(), a.keyRevoke())
}

func (a *app) keyCreate() *cobra.Command {
	var req api.TokenRequest
	var role, expires, workspace string
	var scopes []string
	var offline, save bool
	c := &cobra.Command{
		Use:   "create",
		Short: "Create a key and print it; it cannot be shown again",
		Long: "Create a key and print it; it cannot be shown again. It may do at most what your key may do.\n" +
			"With --offline root on the host of a node makes a key in the node's data directory, whether the node\n" +
			"runs or not: this is the way back if all keys are lost.",
		Args: cobra.NoArgs,
	}
	f := c.Flags()
	f.StringVar(&req.Label, "label", "", "label of the key")
	f.StringVar(&role, "role", string(api.RoleDeveloper), "owner, admin, developer or viewer")
	f.StringSliceVar(&scopes, "scopes", nil, "only these scopes of the role, such as read,exec")
	f.StringVar(&expires, "expires", "", "time until the key expires, such as 90d or 12h (default never)")
	f.StringSliceVar(&req.CIDRs, "cidr", nil, "only from this address or network; may be repeated")
	f.BoolVar(&req.Operator, "operator", false, "the key may operate the node")
	f.StringVar(&workspace, "workspace", "", "workspace of the key (default the caller's); for operators")
	f.IntVar(&req.ExpiresInDays, "expires-in-days", 0, "days until the key expires; 0 is never")
	f.BoolVar(&offline, "offline", false, "write to the data directory of the node on this machine")
	f.BoolVar(&save, "save", false, "with --offline: the command line of root uses the key from now on")
	c.RunE = func(c *cobra.Command, _ []string) error {
		req.Role, req.Workspace = api.Role(role), api.Workspace(workspace)
		for _, s := range scopes {
			req.Scopes = append(req.Scopes, api.Scope(s))
		}
		if expires != "" {
			d, err := values.Period("expires", expires)
			if err != nil {
				return err
			}
			at := time.Now().UTC().Add(d)
			req.ExpiresAt = &at
		}
		if save && !offline {
			return errors.New("--save: give --offline, too")
		}
		k, err := a.createKey(c.Context(), req, offline, save)
		if err != nil {
			return err
		}
		return a.printToken(k)
	}
	return c
}

func (a *app) printToken(k api.TokenCreated) error {
	return a.PrintLine(k, k.Token)
}

func (a *app) createKey(ctx context.Context, req api.TokenRequest, offline, save bool) (api.TokenCreated, error) {
	if !offline {
		cl, err := a.Dial()
		if err != nil {
			return api.TokenCreated{}, err
		}
		return cl.Tokens.Create(ctx, req)
	}
	if err := req.Validate(); err != nil {
		return api.TokenCreated{}, err
	}
	l, err := a.node(nil)
	if err != nil {
		return api.TokenCreated{}, err
	}
	ask := auth.KeyRequest{
		Workspace: req.Workspace, Label: req.Label, Role: req.Role, Operator: req.Operator, Scopes: req.Scopes,
		CIDRs: req.CIDRs,
	}
	if req.ExpiresAt != nil {
		ask.Expires = *req.ExpiresAt
	}
	k, token, err := node.CreateKey(ctx, &l.Node, ask)
	if err != nil {
		return api.TokenCreated{}, local(err)
	}
	if save {
		if err := node.SaveKey(l.DataDir, token); err != nil {
			return api.TokenCreated{}, local(err)
		}
	}
	return api.TokenCreated{
		Token: token, Prefix: k.Prefix, Label: k.Label, Name: k.Label, Admin: k.Admin(), Role: k.Role,
		Operator: k.Operator, Scopes: k.Scopes, CIDRs: k.CIDRs, Workspace: k.Workspace, CreatedAt: k.Created,
		ExpiresAt: req.ExpiresAt,
	}, nil
}

func (a *app) keyList() *cobra.Command {
	get := func(ctx context.Context, cl *client.Client) ([]api.Token, error) { return cl.Tokens.List(ctx) }
	head := []string{"PREFIX", "LABEL", "ROLE", "SCOPES", "FROM", "AGE", "LAST USED", "EXPIRES"}
	return cmdutil.ListCommand(a.Factory, "List keys", get, head,
		func(k api.Token) []string { return keyRow(k, time.Now()) }, "SCOPES", "FROM", "AGE")
}

func keyRow(k api.Token, now time.Time) []string {
	used, expires, scopes, role := "never", "never", "all", string(k.Role)
	if k.LastUsedAt != nil {
		used = cmdutil.Age(*k.LastUsedAt, now) + " ago"
	}
	if k.ExpiresAt != nil {
		expires = k.ExpiresAt.Format("2006-01-02 15:04")
	}
	if len(k.Scopes) < len(k.Role.Scopes(k.Operator)) {
		words := []string{}
		for _, s := range k.Scopes {
			words = append(words, string(s))
		}
		scopes = strings.Join(words, ",")
	}
	if k.Operator {
		role += ", operator"
	}
	from := "anywhere"
	if len(k.CIDRs) > 0 {
		from = strings.Join(k.CIDRs, ",")
	}
	return []string{k.Prefix, k.Label, role, scopes, from, cmdutil.Age(k.CreatedAt, now), used, expires}
}

func (a *app) keyRotate() *cobra.Command {
	var overlap string
	c := &cobra.Command{
		Use:   "rotate PREFIX",
		Short: "Create a key with the rights of another one, which ends after an overlap, and print it",
		Args:  cobra.ExactArgs(1),
	}
	c.Flags().StringVar(&overlap, "overlap", "24h", "how long the old key still works, such as 7d; 0s ends it at once")
	c.RunE = func(c *cobra.Command, args []string) error {
		d, err := values.Period("overlap", overlap)
		if err != nil {
			return err
		}
		cl, err := a.Dial()
		if err != nil {
			return err
		}
		seconds := int64(d.Seconds())
		k, err := cl.Tokens.Rotate(c.Context(), args[0], api.RotateRequest{OverlapSeconds: &seconds})
		if err != nil {
			return err
		}
		a.saveRotated(k)
		return a.printToken(k)
	}
	return c
}

// saveRotated replaces the key of the command line of root by the one that it was rotated to.
func (a *app) saveRotated(k api.TokenCreated) {
	dir := config.DataDir(a.dataDir, a.Env)
	var access config.NodeAccess
	err := durable.ReadJSON(config.NodeFile(dir), &access)
	if err != nil || auth.PrefixOf(access.APIKey) != k.Replaces {
		return // the file is of another user, or has another key
	}
	if err := node.SaveKey(dir, k.Token); err != nil {
		a.Statusf("pandastack: warning: %s still has the old key: %v", config.NodeFile(dir), err)
	}
}

func (a *app) keyRevoke() *cobra.Command {
	return &cobra.Command{
		Use:   "revoke PREFIX",
		Short: "Revoke a key with immediate effect",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := a.Dial()
			if err != nil {
				return err
			}
			if err := cl.Tokens.Revoke(c.Context(), args[0]); err != nil {
				return err
			}
			a.Statusf("%s revoked", args[0])
			if a.JSON {
				return cmdutil.WriteJSON(a.Stdout, map[string]string{"revoked": args[0]})
			}
			return nil
		},
	}
}
