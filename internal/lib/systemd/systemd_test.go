package systemd_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/lib/systemd"
)

func TestFromEnv(t *testing.T) {
	for _, c := range []struct {
		name string
		env  map[string]string
		want systemd.Manager
		ok   bool
	}{
		{"none", map[string]string{"WATCHDOG_USEC": "5"}, systemd.Manager{}, true},
		{"socket", map[string]string{"NOTIFY_SOCKET": "/run/n"}, systemd.Manager{Socket: "/run/n"}, true},
		{"watchdog", map[string]string{"NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": "3000000"},
			systemd.Manager{Socket: "@n", Watchdog: 3 * time.Second}, true},
		{"watchdog of this process", map[string]string{
			"NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "7",
		}, systemd.Manager{Socket: "@n", Watchdog: time.Microsecond}, true},
		{"watchdog of another process", map[string]string{
			"NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "8",
		}, systemd.Manager{Socket: "@n"}, true},
		{"relative path", map[string]string{"NOTIFY_SOCKET": "n"}, systemd.Manager{}, false},
		{"no number", map[string]string{"NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": "-1"}, systemd.Manager{}, false},
		{"too long", map[string]string{"NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": "9223372036854775807"},
			systemd.Manager{}, false},
	} {
		got, err := systemd.FromEnv(c.env, 7)
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("%s: FromEnv = %+v, %v; want %+v", c.name, got, err, c.want)
		}
	}
}

func TestNotify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // of a test
	if err := (systemd.Manager{Socket: path}).Notify(systemd.Ready); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	n, err := l.Read(b)
	if err != nil || string(b[:n]) != "READY=1" {
		t.Errorf("the manager got %q, %v", b[:n], err)
	}
	for err == nil { // until the queue of the socket is full: unix(7), max_dgram_qlen
		err = (systemd.Manager{Socket: path}).Notify(systemd.Alive)
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Notify of a manager that does not read = %v, want a timeout", err)
	}
	if err := (systemd.Manager{}).Notify(systemd.Ready); err != nil {
		t.Errorf("Notify without a manager = %v", err)
	}
	if err := (systemd.Manager{Socket: path + "x"}).Notify(systemd.Ready); err == nil {
		t.Error("Notify of a socket that does not exist succeeded")
	}
}
