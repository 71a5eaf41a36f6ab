// Package database has the commands for managed PostgreSQL databases.
package database

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
)

// waitLimit bounds how long a command waits for a database. A restore replays the log of the database.
const waitLimit = 10 * time.Minute

// Command returns the group of commands for databases.
func Command(f *cmdutil.Factory) *cobra.Command {
	c := cmdutil.Group("db", "Run PostgreSQL databases",
		create(f), list(f), show(f), connect(f), psql(f), branch(f), restore(f), update(f),
		suspend(f), wake(f), rotate(f), reset(f), upgrade(f), failover(f), adopt(f), remove(f),
		logs(f), stats(f), metrics(f), top(f),
		backups(f), backUp(f), rehearse(f),
	)
	c.Aliases = []string{"database"}
	return c
}

// run sets what a command does with a client of the API and the id in its first argument.
func run(
	f *cmdutil.Factory,
	c *cobra.Command,
	do func(ctx context.Context, d *client.Databases, id api.DatabaseID) error,
) *cobra.Command {
	if c.Args == nil {
		c.Args = cobra.ExactArgs(1)
	}
	return cmdutil.WithClient(f, c, func(ctx context.Context, cl *client.Client, args []string) error {
		id, err := cmdutil.FindDatabase(ctx, cl.Databases, args[0])
		if err != nil {
			return err
		}
		return do(ctx, cl.Databases, id)
	})
}

// started prints the URL of a database that was begun, when it can be used, or its id at once.
func started(f *cmdutil.Factory, ctx context.Context, d *client.Databases, db api.Database, wait bool) error {
	if !wait {
		return f.Print(db, func(w io.Writer) error {
			_, err := fmt.Fprintln(w, db.ID)
			return err
		})
	}
	f.Statusf("database %s", db.ID)
	ctx, cancel := context.WithTimeoutCause(ctx, waitLimit, api.Errorf(api.Timeout,
		"database %s is not running after %v: 'pandastack db get %[1]s' shows its state", db.ID, waitLimit))
	defer cancel()
	db, err := d.WaitUntilRunning(ctx, db.ID)
	if err != nil {
		return err
	}
	return f.Print(db, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, db.ConnectionURL)
		return err
	})
}

func create(f *cmdutil.Factory) *cobra.Command {
	var req api.CreateDatabaseRequest
	var size, durability string
	var idle, ttl time.Duration
	var detach bool
	c := &cobra.Command{
		Use:   "create",
		Short: "Create a database, wait until it runs, and print its URL",
		Args:  cobra.NoArgs,
		Example: "  pandastack db create --label shop --size 4g\n" +
			"  psql \"$(pandastack db create)\"",
	}
	flags := c.Flags()
	flags.StringVar(&req.Label, "label", "", "name for people")
	flags.StringVar(&size, "size", "", "memory: 1g, 4g or 16g (default 1g)")
	flags.StringVar(&req.Template, "template", "", "template with a PostgreSQL cluster (default databases.template)")
	flags.BoolVar(&req.AlwaysOn, "always-on", false, "never let it sleep")
	flags.DurationVar(&idle, "idle", 0, "time without sessions after which it sleeps")
	flags.StringVar(&durability, "durability", "", "async, or sync: commits wait for the log outside of its machine")
	flags.IntVar(&req.StorageMaxMB, "storage-max", 0, "limit of its storage in MiB")
	flags.StringArrayVar(&req.Networks, "network", nil, "network that clients may connect from, as 192.0.2.0/24")
	flags.IntVar(&req.Replicas, "replicas", 0, "read replicas")
	flags.StringArrayVar(&req.Extensions, "extension", nil, "extension that it must have, such as vector")
	flags.DurationVar(&ttl, "ttl", 0, "delete it after this time")
	flags.BoolVar(&detach, "detach", false, "print its id at once, and do not wait")
	c.RunE = func(c *cobra.Command, _ []string) error {
		req.Size, req.Durability = api.DatabaseSize(size), api.Durability(durability)
		req.IdleSeconds, req.TTLSeconds = int64(idle.Seconds()), int64(ttl.Seconds())
		cl, err := f.Dial()
		if err != nil {
			return err
		}
		db, err := cl.Databases.Create(c.Context(), req)
		if err != nil {
			return err
		}
		return started(f, c.Context(), cl.Databases, db, !detach)
	}
	return c
}

func list(f *cmdutil.Factory) *cobra.Command {
	get := func(ctx context.Context, cl *client.Client) ([]api.Database, error) { return cl.Databases.List(ctx) }
	head := []string{"ID", "LABEL", "STATUS", "SIZE", "VERSION", "AGE"}
	return cmdutil.ListCommand(f, "List databases", get, head, func(d api.Database) []string {
		return []string{
			string(d.ID), d.Label, string(d.Status), string(d.Size), d.Version, cmdutil.Age(created(d), time.Now()),
		}
	}, "VERSION")
}

func created(d api.Database) time.Time {
	return time.UnixMicro(int64(d.CreatedAt * 1e6))
}

func show(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{Use: "get ID", Short: "Show one database"}
	return run(f, c, func(ctx context.Context, d *client.Databases, id api.DatabaseID) error {
		db, err := d.Get(ctx, id)
		if err != nil {
			return err
		}
		return f.Print(db, func(w io.Writer) error { return cmdutil.Facts(w, facts(db)) })
	})
}

func facts(db api.Database) []cmdutil.Fact {
	sleeps := "after " + (time.Duration(db.IdleSeconds) * time.Second).String() + " without sessions"
	if db.AlwaysOn {
		sleeps = "never"
	}
	all := []cmdutil.Fact{
		{"id", string(db.ID)},
		{"label", db.Label},
		{"status", string(db.Status)},
		{"error", db.Error},
		{"version", db.Version},
		{"size", string(db.Size)},
		{"durability", string(db.Durability)},
		{"sleeps", sleeps},
		{"branch of", string(db.ClonedFrom)},
		{"created", created(db).UTC().Format(time.RFC3339)},
		{"url", db.ConnectionURL},
		{"url through the pooler", db.PoolerURL},
	}
	if db.ExpiresAt != nil {
		all = append(all, cmdutil.Fact{"deleted at", db.ExpiresAt.Format(time.RFC3339)})
	}
	if db.Replicas > 0 {
		all = append(all, cmdutil.Fact{"read replicas", fmt.Sprint(db.Replicas)},
			cmdutil.Fact{"url of the read replicas", db.ReadOnlyURL},
			cmdutil.Fact{"url through their poolers", db.ReadOnlyPoolerURL})
	}
	for i, r := range db.ReplicaStates {
		all = append(all, cmdutil.Fact{fmt.Sprintf("read replica %d", i+1), replica(r)})
	}
	if db.StorageMaxMB > 0 {
		all = append(all, cmdutil.Fact{"storage up to", cmdutil.Size(int64(db.StorageMaxMB) << 20)})
	}
	return all
}

// replica describes a read replica in a line.
func replica(r api.DatabaseReplica) string {
	text := string(r.Status)
	if r.SandboxID != "" {
		text += " on " + string(r.SandboxID)
	}
	if r.MeasuredAt != nil {
		text += fmt.Sprintf(", %d bytes and %.1fs behind", r.LagBytes, r.LagSeconds)
	}
	if r.Error != "" {
		text += ": " + r.Error
	}
	return text
}

func connect(f *cmdutil.Factory) *cobra.Command {
	c := &cobra.Command{Use: "connect ID", Short: "Print how to connect to a database, with its password"}
	return run(f, c, func(ctx context.Context, d *client.Databases, id api.DatabaseID) error {
		conn, err := d.Connection(ctx, id)
		if err != nil {
			return err
		}
		return f.Print(conn, func(w io.Writer) error {
			return cmdutil.Facts(w, []cmdutil.Fact{
				{"url", conn.ConnectionURL},
				{"url through the pooler", conn.PoolerURL},
				{"url of the read replicas", conn.ReadOnlyURL},
				{"url through their poolers", conn.ReadOnlyPoolerURL},
				{"query broker", conn.BrokerURL},
				{"broker token", conn.BrokerToken},
			})
		})
	})
}

// moment has the flags that choose a moment of the past.
type moment struct {
	at, lsn, name string
	xid           uint32
}

func (m *moment) register(c *cobra.Command) {
	c.Flags().StringVar(&m.at, "at", "", "time: RFC 3339, or how long ago, such as 10m")
	c.Flags().StringVar(&m.lsn, "lsn", "", "position of the log")
	c.Flags().Uint32Var(&m.xid, "xid", 0, "transaction, which is included")
	c.Flags().StringVar(&m.name, "name", "", "restore point, made with pg_create_restore_point")
}

// set puts the moment into a request.
func (m *moment) set(req *api.CloneDatabaseRequest, now time.Time) error {
	req.TargetLSN, req.TargetXID, req.TargetName = m.lsn, m.xid, m.name
	if m.at == "" {
		return nil
	}
	at, err := time.Parse(time.RFC3339, m.at)
	if err != nil {
		ago, err := time.ParseDuration(m.at)
		if err != nil || ago < 0 {
			return fmt.Errorf("--at %q is neither a time like 2026-01-02T15:04:05Z nor how long ago, such as 10m", m.at)
		}
		at = now.Add(-ago)
	}
	req.TargetTime = &at
	return nil
}

// copies returns a command that makes a database of another one.
func copies(f *cmdutil.Factory, c *cobra.Command, past bool) *cobra.Command {
	var req api.CloneDatabaseRequest
	var size string
	var ttl time.Duration
	var detach bool
	var when moment
	if past {
		when.register(c)
		c.MarkFlagsOneRequired("at", "lsn", "xid", "name")
		c.MarkFlagsMutuallyExclusive("at", "lsn", "xid", "name")
	} else {
		c.Flags().BoolVar(&req.SchemaOnly, "schema-only", false, "without rows of tables")
	}
	c.Flags().StringVar(&req.Label, "label", "", "name for people")
	c.Flags().StringVar(&size, "size", "", "memory: 1g, 4g or 16g (default that of the database)")
	c.Flags().DurationVar(&ttl, "ttl", 0, "delete it after this time")
	c.Flags().BoolVar(&detach, "detach", false, "print its id at once, and do not wait")
	return run(f, c, func(ctx context.Context, d *client.Databases, id api.DatabaseID) error {
		req.Size, req.TTLSeconds = api.DatabaseSize(size), int64(ttl.Seconds())
		if err := when.set(&req, time.Now()); err != nil {
			return err
		}
		db, err := d.Clone(ctx, id, req)
		if err != nil {
			return err
		}
		return started(f, ctx, d, db, !detach)
	})
}

func branch(f *cmdutil.Factory) *cobra.Command {
	return copies(f, &cobra.Command{
		Use:   "branch ID",
		Short: "Make a database with what another one has now, and print its URL",
	}, false)
}

func restore(f *cmdutil.Factory) *cobra.Command {
	return copies(f, &cobra.Command{
		Use:   "restore ID",
		Short: "Make a database with what another one had at a moment of the past, and print its URL",
		Example: "  pandastack db restore dbs... --at 2026-01-02T15:04:05Z\n" +
			"  pandastack db restore dbs... --at 10m --label before-the-migration",
	}, true)
}
