// Package systemd tells systemd the state of this process, as sd_notify(3) describes it.
package systemd

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// Messages.
const (
	Ready    = "READY=1"    // the start of the service has finished
	Stopping = "STOPPING=1" // its stop has begun
	Alive    = "WATCHDOG=1" // it works
)

// Manager is the systemd that started this process. The zero Manager is none: its methods do nothing.
type Manager struct {
	// Socket is the datagram socket that takes messages: NOTIFY_SOCKET.
	Socket string
	// Watchdog is the longest time between two messages Alive, 0 if none are expected: WATCHDOG_USEC.
	Watchdog time.Duration
}

// FromEnv returns the manager that environment variables name. pid is the ID of this process.
func FromEnv(env map[string]string, pid int) (Manager, error) {
	m := Manager{Socket: env["NOTIFY_SOCKET"]}
	if m.Socket == "" {
		return Manager{}, nil
	}
	if !strings.HasPrefix(m.Socket, "/") && !strings.HasPrefix(m.Socket, "@") {
		return Manager{}, fmt.Errorf("NOTIFY_SOCKET: %q is neither a path nor an abstract socket", m.Socket)
	}
	if p := env["WATCHDOG_PID"]; p != "" && p != strconv.Itoa(pid) { // the watchdog is for another process
		return m, nil
	}
	if text := env["WATCHDOG_USEC"]; text != "" {
		us, err := strconv.ParseUint(text, 10, 63)
		if err != nil || us == 0 || us > uint64((1<<63-1)/time.Microsecond) {
			return Manager{}, fmt.Errorf("WATCHDOG_USEC: %q is not a number of microseconds", text)
		}
		m.Watchdog = time.Duration(us) * time.Microsecond
	}
	return m, nil
}

// sendLimit bounds how long a message waits for systemd to read earlier ones.
const sendLimit = time.Second

// Notify sends a message.
func (m Manager) Notify(message string) error {
	if m.Socket == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: m.Socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	defer conn.Close() //nolint:errcheck // nothing is buffered
	if err := conn.SetWriteDeadline(time.Now().Add(sendLimit)); err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	if _, err := conn.Write([]byte(message)); err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	return nil
}
