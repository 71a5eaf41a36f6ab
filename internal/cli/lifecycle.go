package cli

import (
	"context"
	"fmt"
	"io"
	"sort"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
)

// dialSandbox returns a client, and the sandbox id that arg contains.
func (a *app) dialSandbox(ctx context.Context, arg string) (*client.Client, api.SandboxID, error) {
	cl, err := a.Dial()
	if err != nil {
		return nil, "", err
	}
	id, err := cmdutil.FindSandbox(ctx, cl.Sandboxes, arg)
	return cl, id, err
}

// transition returns a command that changes the state of a sandbox and prints the new state.
func (a *app) transition(
	use, short string,
	do func(*client.Sandboxes) func(context.Context, api.SandboxID) error,
) *cobra.Command {
	return &cobra.Command{
		Use:   use + " ID",
		Short: short,
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cl, id, err := a.dialSandbox(c.Context(), args[0])
			if err != nil {
				return err
			}
			began := time.Now()
			if err := do(cl.Sandboxes)(c.Context(), id); err != nil {
				return err
			}
			took := time.Since(began)
			s, err := cl.Sandboxes.Get(c.Context(), id)
			if err != nil {
				return err
			}
			a.Statusf("%s is %s (%d ms)", id, s.Status, took.Milliseconds())
			if a.JSON {
				return cmdutil.WriteJSON(a.Stdout, s)
			}
			return nil
		},
	}
}

func (a *app) sandboxHibernate() *cobra.Command {
	return a.transition(
		"hibernate",
		"Write a sandbox with its memory to disk and stop it; the next use wakes it",
		func(s *client.Sandboxes) func(context.Context, api.SandboxID) error { return s.Hibernate },
	)
}

func (a *app) sandboxWake() *cobra.Command {
	return a.transition(
		"wake",
		"Restore a hibernated sandbox, or boot a failed one from its disk",
		func(s *client.Sandboxes) func(context.Context, api.SandboxID) error { return s.Wake },
	)
}

func (a *app) sandboxPause() *cobra.Command {
	return a.transition(
		"pause",
		"Pause a sandbox and keep it in memory",
		func(s *client.Sandboxes) func(context.Context, api.SandboxID) error { return s.Pause },
	)
}

func (a *app) sandboxResume() *cobra.Command {
	return a.transition(
		"resume",
		"Resume a paused sandbox",
		func(s *client.Sandboxes) func(context.Context, api.SandboxID) error { return s.Resume },
	)
}

func (a *app) sandboxLifecycle() *cobra.Command {
	var ttl, timeout time.Duration
	var persistent bool
	c := &cobra.Command{
		Use:   "lifecycle ID",
		Short: "Show or change when a sandbox is deleted",
		Args:  cobra.ExactArgs(1),
	}
	f := c.Flags()
	f.DurationVar(&ttl, "ttl", 0, "delete after this time without use; 0s is never")
	f.DurationVar(&timeout, "timeout", 0, "delete after this time from now, used or not; 0s is never")
	f.BoolVar(&persistent, "persistent", false, "never delete when idle")
	c.RunE = func(c *cobra.Command, args []string) error {
		cl, id, err := a.dialSandbox(c.Context(), args[0])
		if err != nil {
			return err
		}
		var patch api.LifecyclePatch
		if f.Changed("ttl") {
			patch.TTLSeconds = seconds(ttl)
		}
		if f.Changed("timeout") {
			patch.TimeoutSeconds = seconds(timeout)
		}
		if f.Changed("persistent") {
			patch.Persistent = &persistent
		}
		l, err := cl.Sandboxes.Lifecycle(c.Context(), id)
		if err == nil && patch != (api.LifecyclePatch{}) {
			l, err = cl.Sandboxes.SetLifecycle(c.Context(), id, patch)
		}
		if err != nil {
			return err
		}
		return a.Print(l, func(w io.Writer) error {
			expires := "never"
			if l.ExpiresAt != nil {
				expires = l.ExpiresAt.Format(time.RFC3339)
			}
			return cmdutil.Facts(w, []cmdutil.Fact{
				{"deleted when idle for", (time.Duration(l.TTLSeconds) * time.Second).String() + " (0s: never)"},
				{"idle for", (time.Duration(l.IdleSeconds) * time.Second).String()},
				{"persistent", strconv.FormatBool(l.Persistent)},
				{"deleted at", expires},
			})
		})
	}
	return c
}

func (a *app) sandboxLogs() *cobra.Command {
	var stream string
	var follow, events bool
	c := &cobra.Command{
		Use:   "logs ID",
		Short: "Show the output of a sandbox, also after its end",
		Args:  cobra.ExactArgs(1),
	}
	c.Flags().StringVar(&stream, "stream", "both", "stdout, stderr or both")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "wait for more output")
	c.Flags().BoolVar(&events, "events", false, "show events instead of output")
	c.RunE = func(c *cobra.Command, args []string) error {
		cl, id, err := a.dialSandbox(c.Context(), args[0])
		switch {
		case err != nil:
			return err
		case events:
			return a.events(c.Context(), cl, id, follow)
		case follow:
			return cl.Sandboxes.FollowLogs(c.Context(), id, stream, func(line string) error {
				_, err := fmt.Fprintln(a.Stdout, line)
				return err
			})
		}
		r, err := cl.Sandboxes.Logs(c.Context(), id, stream)
		if err != nil {
			return err
		}
		defer r.Close()
		if a.JSON {
			text, err := io.ReadAll(r)
			if err != nil {
				return err
			}
			return cmdutil.WriteJSON(a.Stdout, map[string]string{"logs": string(text)})
		}
		_, err = io.Copy(a.Stdout, r)
		return err
	}
	return c
}

func (a *app) events(ctx context.Context, cl *client.Client, id api.SandboxID, follow bool) error {
	show := func(e api.Event) error {
		return a.Print(e, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "%s  %s  %v\n", e.Time.Format(time.RFC3339), e.Type, e.Payload)
			return err
		})
	}
	if follow {
		return cl.Sandboxes.FollowEvents(ctx, id, show)
	}
	list, err := cl.Sandboxes.Events(ctx, id, 0)
	if err != nil {
		return err
	}
	if a.JSON {
		return cmdutil.WriteJSON(a.Stdout, list)
	}
	for _, e := range list {
		if err := show(e); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) sandboxPorts() *cobra.Command {
	return &cobra.Command{
		Use:   "ports ID",
		Short: "List the ports that programs listen on, with their URLs",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cl, id, err := a.dialSandbox(c.Context(), args[0])
			if err != nil {
				return err
			}
			list, err := cl.Sandboxes.Ports(c.Context(), id)
			if err != nil {
				return err
			}
			return a.Print(list, func(w io.Writer) error {
				rows := make([][]string, 0, len(list))
				for _, p := range list {
					rows = append(
						rows,
						[]string{
							strconv.Itoa(p.Port),
							p.Label,
							strconv.FormatBool(p.Listening),
							p.Program,
							cl.Sandboxes.ProxyURL(id, p.Port),
						},
					)
				}
				head := []string{"PORT", "LABEL", "LISTENING", "PROGRAM", "URL"}
				return cmdutil.Table(w, head, rows, "LISTENING", "LABEL", "PROGRAM")
			})
		},
	}
}

func (a *app) sandboxMetrics() *cobra.Command {
	return &cobra.Command{
		Use:   "metrics ID",
		Short: "Show the resources that a sandbox uses, on the host and in the guest",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cl, id, err := a.dialSandbox(c.Context(), args[0])
			if err != nil {
				return err
			}
			u, err := cl.Sandboxes.Usage(c.Context(), id)
			if err != nil {
				return err
			}
			return a.Print(u, func(w io.Writer) error {
				all := []cmdutil.Fact{
					{"up for", time.Duration(u.UptimeSeconds * float64(time.Second)).Round(time.Second).String()},
					{"processor", fmt.Sprintf("%.1f %% of one, %.1f s in total", u.HostCPUPercent, u.HostCPUSeconds)},
					{
						"memory on the host",
						cmdutil.Size(u.HostPSSBytes) + " (PSS), " + cmdutil.Size(u.HostRSSBytes) + " (RSS)",
					},
					{"threads", strconv.Itoa(u.Threads)},
				}
				if g := u.Guest; g != nil {
					all = append(all, []cmdutil.Fact{
						{
							"memory in the guest",
							cmdutil.Size(g.MemTotalBytes-g.MemAvailableBytes) + " of " + cmdutil.Size(g.MemTotalBytes),
						},
						{"disk in the guest", cmdutil.Size(g.DiskUsedBytes) + " of " + cmdutil.Size(g.DiskTotalBytes)},
						{"load in the guest", fmt.Sprintf("%.2f", g.Load1)},
						{"processes in the guest", strconv.Itoa(g.Processes)},
					}...)
				}
				return cmdutil.Facts(w, all)
			})
		},
	}
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
