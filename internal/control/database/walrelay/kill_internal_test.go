package walrelay

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/wal"
	"github.com/pandastack/pandastack/internal/lib/blob"
)

// relayEnv makes the test binary relay the sample log into a spool and a store below a directory, and kill itself
// before a step: "directory step". It prints what it acknowledged.
const relayEnv = "PANDASTACK_TEST_RELAY"

// serverEnv makes the test binary relay from a server until it is killed: "socket user spool store", and the password
// in passwordEnv.
const (
	serverEnv   = "PANDASTACK_TEST_RELAY_SERVER"
	passwordEnv = "PANDASTACK_TEST_RELAY_PASSWORD"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(serverEnv); text != "" {
		fmt.Fprintln(os.Stderr, relayFromServer(text))
		os.Exit(1)
	}
	if text := os.Getenv(relayEnv); text != "" {
		if err := relayUntilKilled(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func relayFromServer(text string) error {
	var socket, user, spool, directory string
	if _, err := fmt.Sscan(text, &socket, &user, &spool, &directory); err != nil {
		return err
	}
	store, err := blob.Open(context.Background(), "file://"+directory, blob.Options{})
	if err != nil {
		return err
	}
	a, err := archiveOf(store)
	if err != nil {
		return err
	}
	cfg := relayConfig(a, spool)
	cfg.Server.User, cfg.Server.Password, cfg.Partial = user, os.Getenv(passwordEnv), 50*time.Millisecond
	cfg.Server.Dial = func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}
	r, err := New(cfg)
	if err != nil {
		return err
	}
	return r.Run(context.Background())
}

func relayUntilKilled(text string) error {
	var dir string
	var kill int
	if _, err := fmt.Sscan(text, &dir, &kill); err != nil {
		return err
	}
	store, err := blob.Open(context.Background(), "file://"+filepath.Join(dir, "store"), blob.Options{})
	if err != nil {
		return err
	}
	n := 0
	step := func(string) error {
		if n++; n == kill {
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		return nil
	}
	a, err := archiveOf(store)
	if err != nil {
		return err
	}
	r, err := newRelay(relayConfig(a, filepath.Join(dir, "spool")), step)
	if err != nil {
		return err
	}
	l := sampleLog()
	for at := l.Start() + 7<<20; ; at += 7 << 20 {
		acked, err := run(r, l, min(at, l.End()))
		if err != nil {
			return err
		}
		fmt.Println("acknowledged", uint64(acked))
		if err := upload(context.Background(), r); err != nil {
			return err
		}
		if at >= l.End() {
			return nil
		}
	}
}

// A relay that is killed before any step has lost nothing that it acknowledged, and the next one continues.
func TestKillBeforeEveryStep(t *testing.T) {
	for kill := 1; kill < 200; kill += 1 + kill/8 {
		dir := t.TempDir()
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", relayEnv, dir, kill))
		out, err := cmd.Output()
		killed := err != nil && cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
		if err != nil && !killed {
			t.Fatalf("%v\n%s", err, err.(*exec.ExitError).Stderr)
		}
		var acked wal.LSN
		for lines := bufio.NewScanner(strings.NewReader(string(out))); lines.Scan(); {
			var n uint64
			if _, err := fmt.Sscanf(lines.Text(), "acknowledged %d", &n); err != nil {
				t.Fatal(err)
			}
			acked = wal.LSN(n)
		}
		checkSpool(t, dir, acked)
		if !killed {
			break
		}
	}
}

// checkSpool checks that the spool and the archive together have the log up to a position, and continues to the end.
func checkSpool(t *testing.T, dir string, acked wal.LSN) {
	t.Helper()
	store, err := blob.Open(t.Context(), "file://"+filepath.Join(dir, "store"), blob.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	g := newRig(t)
	g.dir, g.a = filepath.Join(dir, "spool"), newArchive(t, store)
	l := sampleLog()
	r := g.relay()
	if err := upload(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if acked > 0 {
		g.checkArchive(l, acked-60_100) // records are up to 60,040 bytes long; one may be incomplete
	}
	if _, err := run(r, l, l.End()); err != nil {
		t.Fatal(err)
	}
	if err := upload(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	g.checkArchive(l, l.End())
}
