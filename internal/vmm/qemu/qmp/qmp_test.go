package qmp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pair returns a client and the connection on which the test acts as QEMU.
func pair(t *testing.T, events func(Event)) (*Client, *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		conn, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		ends[i] = conn.(*net.UnixConn)
	}
	c := Open(ends[0], events)
	t.Cleanup(func() {
		_ = c.Close()
		_ = ends[1].Close()
	})
	return c, ends[1]
}

const greeting = `{"QMP": {"version": {"qemu": {"micro": 2, "minor": 0, "major": 10}}, "capabilities": []}}` + "\r\n"

// negotiationResponse returns QEMU's response to the first command of c.
func negotiationResponse(c *Client) string {
	return fmt.Sprintf(`{"return": {}, "id": %q}`+"\r\n", c.id)
}

// TestResponseToEarlierConnection checks that a late response to an earlier connection is not taken
// for a response on this one.
func TestResponseToEarlierConnection(t *testing.T) {
	c, qemu := pair(t, nil)
	other, _ := pair(t, nil)
	call := c.Send("query-status", nil)
	fmt.Fprint(
		qemu,
		greeting+`{"return": {}}`+"\r\n"+negotiationResponse(
			other,
		)+`{"error": {"class":"GenericError","desc":"late"}}`+"\n"+
			negotiationResponse(
				c,
			)+`{"return": {"status":"paused"}}`+"\n",
	)
	if err := c.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	var status struct{ Status string }
	if err := call.Wait(t.Context(), &status); err != nil || status.Status != "paused" {
		t.Errorf("Wait() = %+v, %v; want paused", status, err)
	}
}

func TestPipeline(t *testing.T) {
	seen := make(chan Event, 1)
	c, qemu := pair(t, func(e Event) { seen <- e })
	first := c.Send("query-status", nil)
	second := c.Send("getfd", map[string]string{"fdname": "x"})
	in := bufio.NewScanner(qemu)
	for _, want := range []string{`{"execute":"qmp_capabilities","id":"` + c.id + `"}`, `{"execute":"query-status"}`,
		`{"execute":"getfd","arguments":{"fdname":"x"}}`} {
		if !in.Scan() || in.Text() != want {
			t.Fatalf("got %q, want %q", in.Text(), want)
		}
	}
	fmt.Fprint(qemu, greeting+negotiationResponse(c)+`{"event":"RESUME","data":{"a":1},"timestamp":{}}`+"\n"+
		`{"return": {"status":"running"}}`+"\n"+`{"error": {"class":"GenericError","desc":"no descriptor"}}`+"\n")
	if err := c.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	var status struct{ Status string }
	if err := first.Wait(t.Context(), &status); err != nil || status.Status != "running" {
		t.Errorf("Wait() = %+v, %v; want running", status, err)
	}
	var refused *Error
	if err := second.Wait(t.Context(), nil); !errors.As(err, &refused) || refused.Command != "getfd" ||
		refused.Desc != "no descriptor" {
		t.Errorf("got %v, want a refusal of getfd", err)
	}
	if e := <-seen; e.Name != "RESUME" || string(e.Data) != `{"a":1}` {
		t.Errorf("got event %+v, want RESUME", e)
	}
}

func TestDescriptorIsPassed(t *testing.T) {
	c, qemu := pair(t, nil)
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	c.Send("add-fd", nil, f)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	buf, oob := make([]byte, 1), make([]byte, 128)
	for range 4096 {
		_, n, _, _, err := qemu.ReadMsgUnix(buf, oob)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			continue
		}
		msgs, err := unix.ParseSocketControlMessage(oob[:n])
		if err != nil {
			t.Fatal(err)
		}
		fds, err := unix.ParseUnixRights(&msgs[0])
		if err != nil || len(fds) != 1 {
			t.Fatalf("got descriptors %v, %v; want one", fds, err)
		}
		if buf[0] != '{' {
			t.Errorf("descriptor came with %q, want the first byte of its command", buf)
		}
		if err := unix.Close(fds[0]); err != nil {
			t.Error(err)
		}
		return
	}
	t.Fatal("got no descriptor, want one")
}

func TestWaitHonorsDeadline(t *testing.T) {
	c, _ := pair(t, nil)
	why := errors.New("waited long enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, why)
	defer cancel()
	if err := c.Do(ctx, "stop", nil, nil); !errors.Is(err, why) || !strings.Contains(err.Error(), "stop") {
		t.Errorf("Do() = %v, want the cause of the context and the command", err)
	}
}

func TestCloseFailsPendingCalls(t *testing.T) {
	for name, bytes := range map[string]string{
		"closed":    greeting,
		"rubbish":   "hello\n",
		"unasked":   `{"return":{}}` + "\n" + `{"return":{}}` + "\n",
		"too_large": strings.Repeat("x", maxLine+1),
	} {
		t.Run(name, func(t *testing.T) {
			c, qemu := pair(t, nil)
			if name == "unasked" {
				bytes = greeting + negotiationResponse(c) + bytes
			}
			calls := []*Call{c.Send("stop", nil)}
			if name != "unasked" {
				calls = append(calls, c.Send("cont", nil))
			}
			go func() {
				_, _ = io.WriteString(qemu, bytes)
				_ = qemu.CloseWrite()
			}()
			select {
			case <-c.Done():
			case <-time.After(time.Minute):
				t.Fatal("the connection has not ended after a minute")
			}
			if c.Err() == nil {
				t.Error("Err() = nil, want the reason")
			}
			for _, call := range calls {
				err := call.Wait(t.Context(), nil)
				if name != "unasked" && !errors.Is(err, ErrClosed) {
					t.Errorf("Wait() = %v, want ErrClosed", err)
				}
			}
			if err := c.Do(t.Context(), "cont", nil, nil); !errors.Is(err, ErrClosed) {
				t.Errorf("Do() after the end = %v, want ErrClosed", err)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{strings.TrimSpace(greeting), `{"return":{}}`, `{"return":[]}`, `{"event":"STOP"}`,
		`{"error":{"class":"a","desc":"b"}}`, `{"error":null}`, `[]`, `{"return":null}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := parse(line)
		if err == nil && !m.greeting && m.event == "" && m.err == nil && m.data == nil {
			t.Errorf("parse(%q) returned an empty message without error", line)
		}
	})
}
