package sshgate

import (
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/pandastack/pandastack/api"
)

// No payload makes the gate forward to elsewhere.
func FuzzParseDirect(f *testing.F) {
	id := api.NewSandboxID()
	for _, host := range []string{"localhost", "127.0.0.1", "::1", "[::1]", "0.0.0.0", "example.com", string(id), ""} {
		f.Add(ssh.Marshal(&direct{Host: host, Port: 80}))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		port, err := parseDirect(data, id)
		if err != nil {
			return
		}
		var d direct
		if ssh.Unmarshal(data, &d) != nil || port == 0 || uint32(port) != d.Port {
			t.Errorf("parseDirect(%q) = %d", data, port)
		}
		host := strings.ToLower(d.Host)
		for _, local := range []string{"localhost", "127.", ":", "[", "0", string(id)} {
			if strings.HasPrefix(host, local) {
				return
			}
		}
		t.Errorf("parseDirect() forwards to %q", d.Host)
	})
}

// What a client says before its program starts is refused or bounded, and never a panic.
func FuzzSessionRequests(f *testing.F) {
	f.Add("env", ssh.Marshal(&struct{ Name, Value string }{"A", "b"}))
	f.Add("pty-req", ssh.Marshal(&struct {
		Term                      string
		Cols, Rows, Width, Height uint32
		Modes                     string
	}{"xterm", 1 << 31, 0, 0, 0, ""}))
	f.Add("window-change", ssh.Marshal(&struct{ Cols, Rows, Width, Height uint32 }{1, 2, 3, 4}))
	f.Add("signal", ssh.Marshal(&struct{ Name string }{"KILL"}))
	f.Add("exec", ssh.Marshal(&struct{ Command string }{"a\x00b"}))
	f.Add("subsystem", ssh.Marshal(&struct{ Name string }{"sftp"}))
	f.Fuzz(func(t *testing.T, kind string, payload []byte) {
		s := &session{env: map[string]string{}}
		for range 2 {
			s.request(t.Context(), &ssh.Request{Type: kind, Payload: payload}, false)
		}
		for name, value := range s.env {
			if name == "" || strings.ContainsAny(name+value, "\x00") || strings.Contains(name, "=") {
				t.Errorf("the variable %q has the value %q", name, value)
			}
		}
		if s.size != nil && (s.size.Rows == 0 || s.size.Rows > maxCells || s.size.Cols == 0 || s.size.Cols > maxCells) {
			t.Errorf("the size of the terminal is %+v", s.size)
		}
	})
}

func FuzzParseName(f *testing.F) {
	id := string(api.NewSandboxID())
	for _, name := range []string{id, id + "+root", id + "+", "+", id + "+a+b", "root"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		got, user, err := parseName(name)
		if err == nil && (!got.Valid() || name != string(got) && name != string(got)+"+"+user) {
			t.Errorf("parseName(%q) = %q, %q", name, got, user)
		}
	})
}
