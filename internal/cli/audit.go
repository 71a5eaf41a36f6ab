package cli

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
	"github.com/pandastack/pandastack/internal/cli/values"
)

func (a *app) audit() *cobra.Command {
	return cmdutil.Group("audit", "Read the audit log", a.auditList(), a.auditExport())
}

// auditFlags select entries of the audit log.
type auditFlags struct {
	since, until string
	filter       client.AuditFilter
}

func (f *auditFlags) register(set *pflag.FlagSet) {
	set.StringVar(&f.since, "since", "", "not before this time (RFC 3339), or a duration ago such as 7d")
	set.StringVar(&f.until, "until", "", "before this time (RFC 3339), or a duration ago")
	set.StringVar(&f.filter.Target, "target", "", "only what was done to this id")
	set.BoolVar(&f.filter.All, "all", false, "all workspaces, and callers without a valid key; for operators")
}

// selected returns the filter with its times.
func (f *auditFlags) selected() (client.AuditFilter, error) {
	for _, one := range []struct {
		flag, text string
		at         *time.Time
	}{{"since", f.since, &f.filter.Since}, {"until", f.until, &f.filter.Until}} {
		if one.text == "" {
			continue
		}
		if t, err := time.Parse(time.RFC3339, one.text); err == nil {
			*one.at = t
			continue
		}
		ago, err := values.Period(one.flag, one.text)
		if err != nil {
			return f.filter, fmt.Errorf(
				"--%s: %q is neither a time such as 2026-01-02T15:04:05Z nor a duration such as 7d",
				one.flag, one.text)
		}
		*one.at = time.Now().Add(-ago)
	}
	return f.filter, nil
}

// dial returns a client and the filter.
func (f *auditFlags) dial(a *app) (*client.Client, client.AuditFilter, error) {
	filter, err := f.selected()
	if err != nil {
		return nil, filter, err
	}
	cl, err := a.Dial()
	return cl, filter, err
}

func (a *app) auditList() *cobra.Command {
	var f auditFlags
	c := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List the newest entries", Args: cobra.NoArgs}
	f.register(c.Flags())
	c.Flags().IntVar(&f.filter.Limit, "limit", 100, "at most so many, up to 1000")
	c.RunE = func(c *cobra.Command, _ []string) error {
		cl, filter, err := f.dial(a)
		if err != nil {
			return err
		}
		list, err := cl.Audit.List(c.Context(), filter)
		if err != nil {
			return err
		}
		head := []string{"TIME", "WORKSPACE", "KEY", "FROM", "ACTION", "TARGET", "OUTCOME"}
		return cmdutil.PrintTable(a.Factory, list, head, func(e api.AuditEntry) []string {
			return []string{
				e.Time.Format(time.RFC3339), string(e.Workspace), e.Key, e.Remote, e.Action, e.Target, e.Outcome,
			}
		}, "WORKSPACE", "FROM", "KEY")
	}
	return c
}

func (a *app) auditExport() *cobra.Command {
	var f auditFlags
	c := &cobra.Command{
		Use: "export", Short: "Print all entries, oldest first, one JSON value on each line", Args: cobra.NoArgs,
	}
	f.register(c.Flags())
	c.RunE = func(c *cobra.Command, _ []string) (err error) {
		cl, filter, err := f.dial(a)
		if err != nil {
			return err
		}
		log, err := cl.Audit.Export(c.Context(), filter)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, log.Close()) }()
		if _, err := io.Copy(a.Stdout, log); err != nil {
			return local(fmt.Errorf("the export is not complete: %w", err))
		}
		return nil
	}
	return c
}
