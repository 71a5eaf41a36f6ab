package fctest

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/vmm/firecracker/fcapi"
)

// Exit codes of Firecracker.
const (
	exitOK        = 0
	exitGeneric   = 1
	exitSyscall   = 148
	exitBus       = 149
	exitArguments = 153
	exitAbort     = 256 + 6 // none: the process is ended by SIGABRT
)

// Files beside the program.
const (
	faultsName   = "faults.json"
	requestsName = "requests.log"
)

// settings are the arguments of the program.
type settings struct {
	socket, id      string
	payload         int
	version, snapVs bool
}

// parse parses the command line like Firecracker, which refuses unknown arguments.
func parse(v fcapi.Version, args []string) (settings, error) {
	s := settings{}
	f := flag.NewFlagSet("firecracker", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&s.socket, "api-sock", "/run/firecracker.socket", "")
	f.StringVar(&s.id, "id", "anonymous-instance", "")
	f.IntVar(&s.payload, "http-api-max-payload-size", 51200, "")
	f.BoolVar(&s.version, "version", false, "")
	f.BoolVar(&s.snapVs, "snapshot-version", false, "")
	ignored := ""
	var off bool
	for _, n := range []string{"seccomp-filter", "start-time-us", "start-time-cpu-us", "parent-cpu-time-us",
		"config-file", "metadata",
		"log-path", "level", "module", "metrics-path", "describe-snapshot", "mmds-size-limit"} {
		f.StringVar(&ignored, n, "", "")
	}
	for _, n := range []string{"no-seccomp", "no-api", "show-level", "show-log-origin", "boot-timer"} {
		f.BoolVar(&off, n, false, "")
	}
	if v.AtLeast(1, 13) {
		f.BoolVar(&off, "enable-pci", false, "")
	}
	for _, a := range args[1:] {
		if strings.HasPrefix(a, "-") && !strings.HasPrefix(a, "--") ||
			strings.Contains(a, "=") && strings.HasPrefix(a, "--") {
			return s, fmt.Errorf("argument %q: only long names with separate values are supported", a)
		}
	}
	if err := f.Parse(args[1:]); err != nil {
		return s, err
	}
	if f.NArg() != 0 {
		return s, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if len(s.id) < 1 || len(s.id) > 64 ||
		strings.Trim(s.id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-") != "" {
		return s, fmt.Errorf("invalid instance id %q", s.id)
	}
	return s, nil
}

// run is the main function of the fake.
func run(ctx context.Context, v fcapi.Version, args []string) int {
	s, err := parse(v, args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "Arguments parsing error:", err)
		return exitArguments
	}
	if s.version {
		fmt.Printf("Firecracker v%s\n\nFirecracker exiting successfully. exit_code=0\n", v)
		return exitOK
	}
	if s.snapVs {
		fmt.Printf("v%s\n", snapshotVersion(v))
		return exitOK
	}
	m := &monitor{
		version:  v,
		settings: s,
		dir:      filepath.Dir(args[0]),
		ctx:      ctx,
		over:     make(chan int, 1),
		phase:    fcapi.StateNone,
	}
	if err := m.note("start", strings.Join(args[1:], " ")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return exitGeneric
	}
	l, err := net.Listen("unix", s.socket)
	if err != nil {
		fmt.Fprintln(os.Stderr, "Failed to open the API socket:", err)
		return exitGeneric
	}
	server := &http.Server{Handler: m, ReadHeaderTimeout: time.Minute}
	go func() {
		if err := server.Serve(newLimited(l, maxConnections)); err != nil && !errors.Is(err, http.ErrServerClosed) {
			m.exit(exitGeneric)
		}
	}()
	code := <-m.over
	if code == exitAbort {
		signal.Reset(unix.SIGABRT)
		_ = unix.Kill(os.Getpid(), unix.SIGABRT) // ends the process
		select {}
	}
	return code
}

// exit ends the program after the current response.
func (m *monitor) exit(code int) {
	select {
	case m.over <- code:
	default: // it is already exiting
	}
}

// note appends an entry to the request log.
func (m *monitor) note(op, body string) error {
	line, err := json.Marshal(Request{m.settings.id, op, body})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(m.dir, requestsName), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o666)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EROFS) {
		// In a jail, the test's directory does not exist; then the log is in the monitor's
		// directory.
		f, err = os.OpenFile(requestsName, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o666)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// fault returns how a request is to fail, or "".
func (m *monitor) fault(op string) string {
	data, err := os.ReadFile(filepath.Join(m.dir, faultsName))
	if err != nil {
		return ""
	}
	var all []Fault
	if err := json.Unmarshal(data, &all); err != nil {
		return ""
	}
	for _, f := range all {
		if (f.ID == "" || f.ID == m.settings.id) && f.Op == op {
			return f.Do
		}
	}
	return ""
}

// maxConnections is the maximum number of connections to the API.
const maxConnections = 10

// tooManyConnections is the response to a connection beyond the limit.
const tooManyConnections = "HTTP/1.1 503 \r\nServer: Firecracker API\r\nConnection: close\r\n" +
	"Content-Type: application/json\r\nContent-Length: 40\r\n\r\n{ \"error\": \"Too many open connections\" }\n"

// limited is a listener that refuses connections beyond a limit.
type limited struct {
	net.Listener
	free chan struct{}
}

func newLimited(l net.Listener, n int) *limited {
	free := make(chan struct{}, n)
	for range n {
		free <- struct{}{}
	}
	return &limited{l, free}
}

func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case <-l.free:
			return &counted{Conn: c, free: l.free}, nil
		default:
			_, _ = io.WriteString(c, tooManyConnections) // the client may have disconnected
			_ = c.Close()
		}
	}
}

type counted struct {
	net.Conn
	free chan struct{}
	once sync.Once // a server closes a connection more than once, from several goroutines
}

func (c *counted) Close() error {
	c.once.Do(func() { c.free <- struct{}{} })
	return c.Conn.Close()
}
