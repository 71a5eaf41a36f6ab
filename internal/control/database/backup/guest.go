package backup

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
	"github.com/pandastack/pandastack/internal/control/database/restore"
)

const (
	// socket is the server's in a guest, serverTag the name of its process, and serve what starts it: all as in the
	// templates of PostgreSQL.
	socket    = "/run/postgresql/.s.PGSQL.5432"
	serverTag = "postgres"
	serve     = "exec sh /usr/local/lib/pandastack/postgres.sh serve"
	// stopLimit bounds the end of a server in a guest.
	stopLimit = time.Minute
	maxOutput = 4096
)

// stopScript ends the server at once and removes its data: nothing of it is wanted any more.
const stopScript = `set -eu
facts=/etc/pandastack/postgres.json
data=$(jq -er .data $facts)
bin=$(jq -er .bindir $facts)
[ ! -e "$data/postmaster.pid" ] || runuser -u postgres -- "$bin/pg_ctl" -D "$data" -m immediate -w -t 30 -s stop || true
! pgrep -x postgres > /dev/null || pkill -KILL -x postgres || true
while pgrep -x postgres > /dev/null; do sleep 0.05; done
find "$data" -mindepth 1 -delete
`

// haltScript ends the server and keeps its data.
const haltScript = `set -eu
facts=/etc/pandastack/postgres.json
data=$(jq -er .data $facts)
bin=$(jq -er .bindir $facts)
[ ! -e "$data/postmaster.pid" ] || runuser -u postgres -- "$bin/pg_ctl" -D "$data" -m fast -w -t 30 -s stop || true
! pgrep -x postgres > /dev/null || pkill -KILL -x postgres || true
while pgrep -x postgres > /dev/null; do sleep 0.05; done
`

// unpackScript writes the files that come as a tar archive, and syncScript makes them durable.
const (
	unpackScript = `set -eu
data=$(jq -er .data /etc/pandastack/postgres.json)
runuser -u postgres -- tar -x -f - -C "$data"
`
	syncScript = `sync -f "$data"
`
)

// Guest is the part of guestapi.Guest that a GuestServer needs.
type Guest interface {
	guestexec.Guest
	DialSocket(ctx context.Context, path string) (net.Conn, error)
	Processes(ctx context.Context) ([]guestapi.ProcessInfo, error)
}

// GuestServer is the server in a machine of a template of PostgreSQL.
type GuestServer struct{ Guest Guest }

// Dial implements Server.
func (g GuestServer) Dial(ctx context.Context) (net.Conn, error) {
	return g.Guest.DialSocket(ctx, socket)
}

// Replace implements Server.
func (g GuestServer) Replace(ctx context.Context, write func(restore.Sink) error) error {
	return g.load(ctx, stopScript, files(write), "")
}

// Load is Replace with a tar archive. The script after runs in the data directory before the server is started.
func (g GuestServer) Load(ctx context.Context, write func(io.Writer) error, after string) error {
	return g.load(ctx, stopScript, write, after)
}

// Amend implements Standby.
func (g GuestServer) Amend(ctx context.Context, write func(restore.Sink) error) error {
	return g.load(ctx, haltScript, files(write), "")
}

// files returns a function that writes a tar archive with what write writes.
func files(write func(restore.Sink) error) func(io.Writer) error {
	return func(w io.Writer) error {
		out := tar.NewWriter(w)
		if err := write(restore.TarSink{W: out}); err != nil {
			return err
		}
		return out.Close()
	}
}

// load stops the server by a script, unpacks the archive that write writes, and starts the server.
func (g GuestServer) load(ctx context.Context, script string, write func(io.Writer) error, after string) error {
	stop, cancel := context.WithTimeoutCause(ctx, stopLimit, errors.New("the server in the machine did not end"))
	defer cancel()
	if err := g.run(stop, script, nil); err != nil {
		return fmt.Errorf("stop the server: %w", err)
	}
	if after != "" {
		after = "cd \"$data\"\nrunuser -u postgres -- sh -eu <<'END-OF-SCRIPT'\n" + after + "END-OF-SCRIPT\n"
	}
	err := g.run(ctx, unpackScript+after+syncScript, func(_ context.Context, w io.Writer) error { return write(w) })
	if err != nil {
		return fmt.Errorf("write the data directory: %w", err)
	}
	p, err := g.Guest.Start(ctx, guestapi.ProcessSpec{Shell: serve, User: "root", Tag: serverTag})
	if err != nil {
		return fmt.Errorf("start the server: %w", err)
	}
	return p.Close()
}

// Check implements Server.
func (g GuestServer) Check(ctx context.Context) error {
	all, err := g.Guest.Processes(ctx)
	if err != nil {
		return err
	}
	for _, p := range all {
		if p.Tag == serverTag && p.Exit == nil {
			return nil
		}
	}
	out := guestexec.NewBuffer(guestexec.Limit{Bytes: maxOutput, Keep: guestexec.Tail})
	_, err = guestexec.Attach(ctx, g.Guest, guestapi.ProcessRef{Tag: serverTag}, guestapi.Offsets{},
		guestexec.Sink{Output: func(e guestapi.Event) error { out.Add(e.Data); return nil }})
	if err != nil {
		return fmt.Errorf("it does not run, and its log cannot be read: %w", err)
	}
	return errors.New(text(out.Output().Data))
}

// run runs a script as root.
func (g GuestServer) run(ctx context.Context, script string, input func(context.Context, io.Writer) error) error {
	tail := guestexec.Limit{Bytes: maxOutput, Keep: guestexec.Tail}
	got, err := guestexec.Run(ctx, g.Guest, guestexec.Command{
		Spec: guestapi.ProcessSpec{Argv: []string{"sh", "-c", script}, User: "root"}, Input: input,
	}, guestexec.Limits{Stdout: tail, Stderr: tail})
	switch {
	case err != nil:
		return err
	case got.Exit.Code != 0:
		output := text(append(got.Stdout.Data, got.Stderr.Data...))
		return errors.Join(fmt.Errorf("exit code %d: %s", got.Exit.Code, output), got.InputErr)
	}
	return got.InputErr
}

// text makes the output of a guest fit for a message.
func text(output []byte) string {
	lines := strings.FieldsFunc(string(output), func(r rune) bool { return r == '\n' || r == '\r' })
	for i, line := range lines {
		lines[i] = guestapi.Printable(line)
	}
	return strings.Join(lines, "; ")
}
