package process

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
)

// TestPortForward forwards two ports, one of which is closed, until the command is interrupted.
func TestPortForward(t *testing.T) {
	id := string(api.NewSandboxID())
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/sandboxes/"+id+"/ports/80/connect" || r.Header.Get("Authorization") != "Bearer pds_test" {
			w.WriteHeader(http.StatusBadGateway)
			_ = json.NewEncoder(w).Encode(api.Errorf(api.Unreachable, "nothing listens"))
			return
		}
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		for { // an echo, in both kinds of messages
			kind, data, err := ws.Read(r.Context())
			if err != nil || ws.Write(r.Context(), kind, data) != nil {
				return
			}
		}
	}))
	defer srv.Close()
	said, tell := io.Pipe()
	f := &cmdutil.Factory{Stdout: io.Discard, Stderr: tell, Dial: func() (*client.Client, error) {
		return client.New(srv.URL, "pds_test")
	}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := PortForward(f)
	c.SilenceUsage, c.SilenceErrors = true, true
	c.SetArgs([]string{id, "0:80", "0:81"})
	done := make(chan error, 1)
	go func() {
		done <- c.ExecuteContext(ctx)
		_ = tell.Close()
	}()
	line := func() string {
		t.Helper()
		var b strings.Builder
		for one := make([]byte, 1); ; {
			if _, err := io.ReadFull(said, one); err != nil {
				t.Fatalf("%v after %q", err, b.String())
			}
			if one[0] == '\n' {
				return b.String()
			}
			b.Write(one)
		}
	}
	send := func(address, text string) (string, error) {
		t.Helper()
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			return "", err // it was closed already
		}
		got, err := io.ReadAll(conn)
		return string(got), err
	}
	address := regexp.MustCompile(`^(127\.0\.0\.1:[0-9]+) is port ([0-9]+) of sbx`)
	open, closed := address.FindStringSubmatch(line()), address.FindStringSubmatch(line())
	if open == nil || closed == nil || open[2] != "80" || closed[2] != "81" {
		t.Fatalf("the command says %v and %v", open, closed)
	}
	for range 2 {
		if got, err := send(open[1], "hello"); err != nil || got != "hello" {
			t.Errorf("the open port returns %q, %v", got, err)
		}
	}
	answer := make(chan string)
	go func() {
		got, _ := send(closed[1], "x") // reset or closed
		answer <- got
	}()
	if got := line(); !strings.Contains(got, "port 81") || !strings.Contains(got, "nothing listens") {
		t.Errorf("for the closed port the command says %q", got)
	}
	if got := <-answer; got != "" {
		t.Errorf("the closed port returns %q", got)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("interrupted: %v", err)
	}
}

func TestParseForwarding(t *testing.T) {
	for text, want := range map[string]forwarding{
		"8080:80": {local: 8080, remote: 80}, "5432": {local: 5432, remote: 5432}, "0:80": {remote: 80},
	} {
		if got, err := parseForwarding(text); err != nil || got != want {
			t.Errorf("parseForwarding(%q) = %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "0", "80:0", "70000", "a:80", "80:", ":80", "1:2:3", "-1:80"} {
		if got, err := parseForwarding(text); err == nil {
			t.Errorf("parseForwarding(%q) = %+v, want an error", text, got)
		}
	}
}
