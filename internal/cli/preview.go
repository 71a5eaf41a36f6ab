package cli

import (
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
)

// sandboxPreview is the group of commands about signed URLs of ports.
func (a *app) sandboxPreview() *cobra.Command {
	return cmdutil.Group("preview", "Make, list and revoke signed URLs of a sandbox's ports",
		a.previewCreate(), a.previewList(), a.previewRevoke())
}

func (a *app) previewCreate() *cobra.Command {
	var ttl time.Duration
	var paths []string
	c := &cobra.Command{
		Use: "create ID PORT", Short: "Make a signed URL of a port that needs no key", Args: cobra.ExactArgs(2),
		Long: "Make a signed URL of a port that needs no key, and print it. It opens private ports too.",
		Example: "  pandastack sandbox preview create sbx... 3000\n" +
			"  pandastack sandbox preview create sbx... 3000 --ttl 24h --path /docs",
	}
	c.Flags().DurationVar(&ttl, "ttl", time.Hour, "the URL is valid for this time, at most a week")
	c.Flags().StringSliceVar(&paths, "path", nil, "only paths with this prefix; may be repeated (default: all)")
	c.RunE = func(c *cobra.Command, args []string) error {
		port, err := strconv.Atoi(args[1])
		if err != nil {
			return fmt.Errorf("%q is not a port from 1 to 65535", args[1])
		}
		req := api.PreviewRequest{Port: port, TTLSeconds: int64(ttl.Seconds()), Paths: paths}
		if err := req.Validate(); err != nil {
			return err
		}
		cl, id, err := a.dialSandbox(c.Context(), args[0])
		if err != nil {
			return err
		}
		p, err := cl.Sandboxes.Preview(c.Context(), id, req)
		if err != nil {
			return err
		}
		return a.PrintLine(p, p.HostURL)
	}
	return c
}

func (a *app) previewList() *cobra.Command {
	return &cobra.Command{
		Use: "list ID", Short: "List the signed URLs of a sandbox that have not expired", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cl, id, err := a.dialSandbox(c.Context(), args[0])
			if err != nil {
				return err
			}
			list, err := cl.Sandboxes.Previews(c.Context(), id)
			if err != nil {
				return err
			}
			return a.Print(list, func(w io.Writer) error {
				rows := make([][]string, 0, len(list))
				for _, p := range list {
					state := "valid"
					if p.RevokedAt != nil {
						state = "revoked"
					}
					rows = append(rows, []string{
						p.ID, strconv.Itoa(p.Port), strings.Join(p.Paths, ","), state, p.CreatedBy,
						p.ExpiresAt.Format(time.RFC3339),
					})
				}
				head := []string{"ID", "PORT", "PATHS", "STATE", "MADE WITH", "EXPIRES"}
				return cmdutil.Table(w, head, rows, "MADE WITH")
			})
		},
	}
}

func (a *app) previewRevoke() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use: "revoke ID [PREVIEW]", Short: "Revoke signed URLs of a sandbox", Args: cobra.RangeArgs(1, 2),
		Long: "Revoke a signed URL, given by its id or itself, or all of a sandbox. Open requests end.",
		Example: "  pandastack sandbox preview revoke sbx... pvw...\n" +
			"  pandastack sandbox preview revoke sbx... --all",
	}
	c.Flags().BoolVar(&all, "all", false, "revoke all of the sandbox, also those that an earlier release made")
	c.RunE = func(c *cobra.Command, args []string) error {
		if all == (len(args) == 2) {
			return fmt.Errorf("give the id of one preview, or --all")
		}
		cl, id, err := a.dialSandbox(c.Context(), args[0])
		if err != nil {
			return err
		}
		if all {
			return cl.Sandboxes.RevokePreviews(c.Context(), id)
		}
		return cl.Sandboxes.RevokePreview(c.Context(), id, previewID(args[1]))
	}
	return c
}

// previewID returns the id in a text that is the id of a preview, its token, or a URL with the token.
func previewID(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return text
	}
	if token := u.Query().Get(proxy.PreviewName); token != "" {
		return proxy.PreviewID(token)
	}
	if _, after, ok := strings.Cut(u.Path, "/v1/p/"); ok {
		text, _, _ = strings.Cut(after, "/")
	}
	if strings.Contains(text, ".") {
		return proxy.PreviewID(text)
	}
	return text
}
