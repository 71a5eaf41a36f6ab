package storetest

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Postgres starts a PostgreSQL server for a test, on a socket in a directory of its own.
//
// The server is stopped with the test.
// The returned function makes an empty database and returns its address. Without a server program the test is skipped.
func Postgres(t *testing.T) func(t *testing.T) string {
	t.Helper()
	bins, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(bins) == 0 {
		t.Skip("probe postgres: no PostgreSQL server in /usr/lib/postgresql")
	}
	bin := slices.Max(bins)
	dir, err := os.MkdirTemp("", "pspg") // short: a socket's path has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	cred := unprivileged(t, dir)
	initdb(t, bin, dir, cred)
	startPostgres(t, bin, dir, cred)
	var n atomic.Int64
	return func(t *testing.T) string {
		t.Helper()
		name := fmt.Sprint("t", n.Add(1))
		admin, err := sql.Open("pgx", address(dir, "postgres"))
		if err != nil {
			t.Fatal(err)
		}
		defer admin.Close()
		if _, err := admin.ExecContext(t.Context(), "CREATE DATABASE "+name); err != nil {
			t.Fatal(err)
		}
		return address(dir, name)
	}
}

func address(dir, database string) string {
	return "postgres:///" + database + "?user=pandastack&host=" + url.QueryEscape(dir)
}

// unprivileged gives dir to a user that may run PostgreSQL, which refuses root.
func unprivileged(t *testing.T, dir string) *syscall.SysProcAttr {
	t.Helper()
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Getuid() != 0 {
		return attr
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err1 != nil || err2 != nil {
			continue
		}
		if err := os.Chown(dir, uid, gid); err != nil {
			t.Fatal(err)
		}
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		return attr
	}
	t.Skip("probe postgres: neither user postgres nor user nobody exists to run PostgreSQL")
	return nil
}

func initdb(t *testing.T, bin, dir string, attr *syscall.SysProcAttr) {
	t.Helper()
	cmd := exec.CommandContext(
		t.Context(),
		filepath.Join(bin, "initdb"),
		"-D",
		filepath.Join(dir, "data"),
		"-U",
		"pandastack",
		"-A",
		"trust",
		"-E",
		"UTF8",
		"--locale=C",
		"--no-sync",
		"--no-instructions",
	)
	cmd.SysProcAttr, cmd.Dir, cmd.Env = attr, dir, []string{"PATH=/usr/bin:/bin", "TZ=UTC"}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
}

func startPostgres(t *testing.T, bin, dir string, attr *syscall.SysProcAttr) {
	t.Helper()
	var log bytes.Buffer
	cmd := exec.CommandContext(
		context.WithoutCancel(t.Context()),
		filepath.Join(bin, "postgres"),
		"-D",
		filepath.Join(dir, "data"),
		"-k",
		dir,
		"-c",
		"listen_addresses=",
		"-c",
		"fsync=off",
		"-c",
		"shared_buffers=16MB",
		"-c",
		"max_connections=60",
	)
	cmd.SysProcAttr, cmd.Dir, cmd.Env, cmd.Stderr = attr, dir, []string{"PATH=/usr/bin:/bin", "TZ=UTC"}, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	gone := make(chan error, 1)
	go func() { gone <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGQUIT) // it may be gone, which the next line shows
		select {
		case <-gone:
		case <-time.After(30 * time.Second):
			t.Error("PostgreSQL does not stop")
			_ = cmd.Process.Kill()
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	db, err := sql.Open("pgx", address(dir, "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for db.PingContext(ctx) != nil {
		select {
		case err := <-gone:
			gone <- err
			t.Fatalf("PostgreSQL ended: %v\n%s", err, log.String())
		case <-ctx.Done():
			t.Fatal("PostgreSQL does not answer")
		case <-time.After(20 * time.Millisecond):
		}
	}
}
