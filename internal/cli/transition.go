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
)

// dialSandbox makes a client and reads an id.
func (a *app) dialSandbox(arg string) (*client.Client, api.SandboxID, error) {
	id, err := api.ParseSandboxID(arg)
	if err != nil {
		return nil, "", err
	}
	cl, err := a.dial()
	return cl, id, err
}

// move makes a command that changes the state of sandboxes and shows where each arrived.
func (a *app) move(
	use, short string,
	do func(*client.Sandboxes) func(context.Context, api.SandboxID) error,
) *cobra.Command {
	return &cobra.Command{
		Use:   use + " ID",
		Short: short,
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cl, id, err := a.dialSandbox(args[0])
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
			a.statusf("%s is %s (%d ms)", id, s.Status, took.Milliseconds())
			if a.json {
				return writeJSON(a.Stdout, s)
			}
			return nil
		},
	}
}

func (a *app) sandboxHibernate() *cobra.Command {
	return a.move(
		"hibernate",
		"Put a sandbox on disk with its memory; use wakes it",
		func(s *client.Sandboxes) func(context.Context, api.SandboxID) error { return s.Hibernate },
	)
}

func (a *app) sandboxWake() *cobra.Command {
	return a.move(
		"wake",
		"Bring a hibernated sandbox back, or boot a failed one from its disk",
		func(s *client.Sandboxes) func(context.Context, api.SandboxID) error { return s.Wake },
	)
}

func (a *app) sandboxPause() *cobra.Command {
	return a.move(
		"pause",
		"Stop a sandbox in memory",
		func(s *client.Sandboxes) func(context.Context, api.SandboxID) error { return s.Pause },
	)
}

func (a *app) sandboxResume() *cobra.Command {
	return a.move(
		"resume",
		"Let a paused sandbox go on",
		func(s *client.Sandboxes) func(context.Context, api.SandboxID) error { return s.Resume },
	)
}

func (a *app) sandboxLifecycle() *cobra.Command {
	var ttl, timeout time.Duration
	var persistent bool
	c := &cobra.Command{
		Use:   "lifecycle ID",
		Short: "Show or change when a sandbox ends by itself",
		Args:  cobra.ExactArgs(1),
	}
	f := c.Flags()
	f.DurationVar(&ttl, "ttl", 0, "delete after so long without use; 0s is never")
	f.DurationVar(&timeout, "timeout", 0, "delete so long from now, used or not; 0s is never")
	f.BoolVar(&persistent, "persistent", false, "never reaped for being idle")
	c.RunE = func(c *cobra.Command, args []string) error {
		cl, id, err := a.dialSandbox(args[0])
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
		return a.print(l, func(w io.Writer) error {
			expires := "never"
			if l.ExpiresAt != nil {
				expires = l.ExpiresAt.Format(time.RFC3339)
			}
			return facts(
				w,
				"deleted when idle for",
				(time.Duration(l.TTLSeconds)*time.Second).String()+" (0s: never)",
				"idle for",
				(time.Duration(l.IdleSeconds) * time.Second).String(),
				"persistent",
				strconv.FormatBool(l.Persistent),
				"deleted at",
				expires,
			)
		})
	}
	return c
}

func (a *app) sandboxLogs() *cobra.Command {
	var stream string
	var follow, events bool
	c := &cobra.Command{
		Use:   "logs ID",
		Short: "Show what a sandbox printed, alive or after its end",
		Args:  cobra.ExactArgs(1),
	}
	c.Flags().StringVar(&stream, "stream", "both", "stdout, stderr or both")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on as more comes")
	c.Flags().BoolVar(&events, "events", false, "what happened to it instead of what it printed")
	c.RunE = func(c *cobra.Command, args []string) error {
		cl, id, err := a.dialSandbox(args[0])
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
		if a.json {
			text, err := io.ReadAll(r)
			if err != nil {
				return err
			}
			return writeJSON(a.Stdout, map[string]string{"logs": string(text)})
		}
		_, err = io.Copy(a.Stdout, r)
		return err
	}
	return c
}

func (a *app) events(ctx context.Context, cl *client.Client, id api.SandboxID, follow bool) error {
	show := func(e api.Event) error {
		return a.print(e, func(w io.Writer) error {
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
	if a.json {
		return writeJSON(a.Stdout, list)
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
		Short: "List the ports programs listen on, and how to reach them",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cl, id, err := a.dialSandbox(args[0])
			if err != nil {
				return err
			}
			list, err := cl.Sandboxes.Ports(c.Context(), id)
			if err != nil {
				return err
			}
			return a.print(list, func(w io.Writer) error {
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
				return table(w, []string{"PORT", "LABEL", "LISTENING", "PROGRAM", "ADDRESS"}, rows)
			})
		},
	}
}

func (a *app) sandboxMetrics() *cobra.Command {
	return &cobra.Command{
		Use:   "metrics ID",
		Short: "Show what a sandbox takes on its host, and what its inside says",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cl, id, err := a.dialSandbox(args[0])
			if err != nil {
				return err
			}
			u, err := cl.Sandboxes.Usage(c.Context(), id)
			if err != nil {
				return err
			}
			return a.print(u, func(w io.Writer) error {
				all := []string{
					"up for",
					time.Duration(u.UptimeSeconds * float64(time.Second)).Round(time.Second).String(),
					"processor",
					fmt.Sprintf("%.1f %% of one, %.1f s in all", u.HostCPUPercent, u.HostCPUSeconds),
					"memory on the host",
					size(u.HostPSSBytes) + " (its share), " + size(u.HostRSSBytes) + " (with what it shares)",
					"threads",
					strconv.Itoa(u.Threads),
				}
				if g := u.Guest; g != nil {
					all = append(
						all,
						"memory inside",
						size(g.MemTotalBytes-g.MemAvailableBytes)+" of "+size(g.MemTotalBytes),
						"disk inside",
						size(g.DiskUsedBytes)+" of "+size(g.DiskTotalBytes),
						"load inside",
						fmt.Sprintf("%.2f", g.Load1),
						"processes inside",
						strconv.Itoa(g.Processes),
					)
				}
				return facts(w, all...)
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
