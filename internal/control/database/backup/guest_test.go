//go:build e2e

package backup_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/database/backup"
	"github.com/pandastack/pandastack/internal/control/database/restore"
	"github.com/pandastack/pandastack/internal/guest/agent"
	"github.com/pandastack/pandastack/internal/guest/process"
	"github.com/pandastack/pandastack/test/pglab"
)

// room is the inside of a machine: the guest agent, with mounts and processes of its own and the files of the template,
// without a machine around it.
type room struct {
	guestapi.Guest
	t   *testing.T
	pid string // of its first process
}

// layout makes the room: what the template has in /etc and /usr/local/lib, and an own /run.
const layout = `set -eu
mount --bind "$1/etc" /etc
mount -t tmpfs tmpfs /usr/local/lib
mkdir /usr/local/lib/pandastack
cp "$1/postgres.sh" /usr/local/lib/pandastack/
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib
mkdir -p /var/lib/postgresql/data
mount --bind "$1/data" /var/lib/postgresql/data
echo ready
sleep infinity # a shell that waits takes care of processes whose parent has ended
true
`

// firstCluster makes the cluster that a new machine of the template has.
const firstCluster = `set -eu
chown postgres: "$1"
runuser -u postgres -- "$2/initdb" -D "$1" -U postgres --no-sync --data-checksums --auth-local=peer > /dev/null
echo 'local all all peer map=inside
local replication all peer map=inside' > "$1/pg_hba.conf"
echo 'inside /^.*$ all' > "$1/pg_ident.conf"
echo "unix_socket_directories = '/run/postgresql'
listen_addresses = ''
fsync = off" >> "$1/postgresql.conf"
`

func newRoom(t *testing.T) *room {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("probe root: the test makes namespaces")
	}
	bin := filepath.Join(pglab.Install(t), "bin")
	dir, err := os.MkdirTemp("/tmp", "room") // not t.TempDir: only its owner can enter that
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	const data = "/var/lib/postgresql/data"
	facts, err := json.Marshal(map[string]string{"data": data, "bindir": bin})
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile("../../../../templates/postgres-16/postgres.sh")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\npostgres:x:64999:64999::/:/bin/sh\n",
		"etc/group":  "root:x:0:\npostgres:x:64999:\n", "etc/pandastack/postgres.json": string(facts),
		"postgres.sh": string(script), "data/": "",
	}
	for name, content := range files {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "/") {
			err = os.MkdirAll(at, 0o700)
		} else {
			err = os.WriteFile(at, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"pam.d", "security", "ld.so.cache", "nsswitch.conf", "login.defs"} {
		copyEtc(t, filepath.Join("/etc", name), filepath.Join(dir, "etc", name))
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	r := &room{t: t, pid: enter(t, dir)}
	a := agent.New(agent.Config{Reaper: process.NewReaper(false)})
	t.Cleanup(a.Close)
	r.Guest = a
	r.run(firstCluster, data, bin)
	p, err := r.Start(t.Context(), guestapi.ProcessSpec{
		Shell: "exec sh /usr/local/lib/pandastack/postgres.sh serve", User: "root", Tag: "postgres",
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	return r
}

// copyEtc copies a file or directory of this host that programs of the room read, if there is one.
func copyEtc(t *testing.T, from, to string) {
	t.Helper()
	if _, err := os.Stat(from); err != nil {
		return
	}
	if out, err := exec.CommandContext(t.Context(), "cp", "-rL", from, to).CombinedOutput(); err != nil {
		t.Fatalf("copy %s: %v\n%s", from, err, out)
	}
}

// enter makes the namespaces and returns the first process in them, which ends them with the test.
func enter(t *testing.T, dir string) (pid string) {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "unshare", "--mount", "--pid", "--fork",
		"--kill-child", "--mount-proc", "sh", "-c", layout, "sh", dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	ready := make([]byte, 6)
	if n, err := out.Read(ready); err != nil || string(ready[:n]) != "ready\n" {
		t.Fatalf("make a room: %q, %v\n%s", ready[:n], err, stderr.String())
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(children))
}

func (r *room) command(argv ...string) []string {
	return append([]string{"nsenter", "-t", r.pid, "-m", "-p", "--"}, argv...)
}

// run runs a script in the room.
func (r *room) run(script string, args ...string) {
	r.t.Helper()
	argv := r.command(append([]string{"sh", "-c", script, "sh"}, args...)...)
	if out, err := exec.CommandContext(r.t.Context(), argv[0], argv[1:]...).CombinedOutput(); err != nil {
		r.t.Fatalf("%v\n%s", err, out)
	}
}

// Start implements guestapi.ProcessManager.
func (r *room) Start(ctx context.Context, spec guestapi.ProcessSpec) (guestapi.Process, error) {
	if spec.Shell != "" {
		spec.Argv, spec.Shell = []string{"sh", "-c", spec.Shell}, ""
	}
	spec.Argv, spec.Dir = r.command(spec.Argv...), "/"
	return r.Guest.Start(ctx, spec)
}

// DialSocket implements guestapi.PortDialer.
func (r *room) DialSocket(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", "/proc/"+r.pid+"/root"+path)
}

// value returns the first value of a query.
func (r *room) value(sql string) string {
	r.t.Helper()
	config, err := pgx.ParseConfig("host=localhost user=postgres dbname=postgres sslmode=disable")
	if err != nil {
		r.t.Fatal(err)
	}
	config.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return backup.GuestServer{Guest: r}.Dial(ctx)
	}
	conn, err := pgx.ConnectConfig(r.t.Context(), config)
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(r.t.Context()))
	var text string
	if err := conn.QueryRow(r.t.Context(), sql).Scan(&text); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
	return text
}

// waitReady waits until the first server of a room accepts connections.
func (l *lab) waitReady(r *room) {
	l.Helper()
	l.wait("the server of the room", func() bool {
		conn, err := r.DialSocket(l.Context(), "/run/postgresql/.s.PGSQL.5432")
		if err != nil {
			if failed := (backup.GuestServer{Guest: r}).Check(l.Context()); failed != nil {
				l.Fatal(failed)
			}
			return false
		}
		_ = conn.Close() // it was only tried
		return true
	})
}

// A moment is restored into the server of a guest, as the template has it, also when the server there has been killed.
func TestGuestServer(t *testing.T) {
	r := newRoom(t)
	l := newLab(t)
	l.waitReady(r)
	l.server.Exec("alter system set unix_socket_directories = '/run/postgresql'")
	l.server.Exec("alter system set listen_addresses = ''")
	l.trust()
	k := l.keep(nil)
	l.begin(k, false)
	l.waitFor(k, "a base backup", func(s backup.Status) bool { return !s.Based.IsZero() })
	l.server.Exec("create table a (b int, c text);" +
		"insert into a select n, repeat(md5(n::text), 8) from generate_series(1, 300000) n")
	moment := l.server.Value("select clock_timestamp()::text")
	at, err := time.Parse("2006-01-02 15:04:05.999999-07", moment)
	if err != nil {
		t.Fatal(err)
	}
	l.server.Exec("delete from a")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for _, kill := range []bool{false, true} {
		if kill {
			r.run("pkill -KILL -o -x postgres")
		}
		done, err := k.Restore(ctx, backup.RestoreRequest{
			From: id, Target: restore.Target{Time: at}, Into: backup.GuestServer{Guest: r},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("restored %d MiB in %v", done.Bytes>>20, done.Took)
		if got := r.value("select count(*)::text from a"); got != "300000" {
			t.Errorf("%s rows, want 300000", got)
		}
	}
	// What does not start is reported with the server's reason.
	_, err = k.Restore(ctx, backup.RestoreRequest{From: id, Target: restore.Target{Time: at}, Into: broken{r}})
	if err == nil || !strings.Contains(err.Error(), "unrecognized configuration parameter") {
		t.Errorf("Restore of a server that does not start = %v, want its reason", err)
	}
}

// broken is a server whose configuration is wrong after it was replaced.
type broken struct{ *room }

// Replace implements backup.Server.
func (b broken) Replace(ctx context.Context, write func(restore.Sink) error) error {
	return backup.GuestServer{Guest: b}.Replace(ctx, func(sink restore.Sink) error {
		if err := write(sink); err != nil {
			return err
		}
		text := "nonsense = on\n"
		return sink.File("postgresql.conf", int64(len(text)), strings.NewReader(text))
	})
}

// Dial implements backup.Server.
func (b broken) Dial(ctx context.Context) (net.Conn, error) {
	return backup.GuestServer{Guest: b}.Dial(ctx)
}

// Check implements backup.Server.
func (b broken) Check(ctx context.Context) error { return backup.GuestServer{Guest: b}.Check(ctx) }
