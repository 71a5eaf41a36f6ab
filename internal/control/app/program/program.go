// Package program starts, checks and follows the program of an app in its machine.
//
// The guest is not trusted: its responses are bounded and tell only whether it serves.
package program

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
)

// Tag is the tag of the program's process in its machine.
const Tag = "app"

// Signal is the hook of apps that want SIGUSR2 after a restore.
const Signal = "SIGUSR2"

// Ref names the program's process.
var Ref = guestapi.ProcessRef{Tag: Tag}

// Spec is a program to start.
type Spec struct {
	Command string // for the shell
	Dir     string
	User    string
	Env     map[string]string
	Hook    string // as the setting restore_hook
}

// Start starts a program.
func Start(ctx context.Context, g guestapi.ProcessManager, s Spec) error {
	command := s.Command
	if s.Hook == Signal { // it is sent to the whole group, and a shell would end with it
		command = "trap '' USR2; " + command
	}
	p, err := g.Start(ctx, guestapi.ProcessSpec{Shell: command, Dir: s.Dir, User: s.User, Env: s.Env, Tag: Tag})
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	return p.Close()
}

// FromNow makes Lines begin with what is printed next.
var FromNow = guestexec.FromNow

// Lines calls line with what a process prints, line by line, until it exits. From is advanced.
func Lines(
	ctx context.Context,
	g guestexec.Guest,
	ref guestapi.ProcessRef,
	from *guestapi.Offsets,
	line func(stream guestapi.Stream, text string),
) (guestapi.Exit, error) {
	rest := map[guestapi.Stream][]byte{}
	defer func() {
		for _, stream := range []guestapi.Stream{guestapi.StreamStdout, guestapi.StreamStderr} {
			if len(rest[stream]) > 0 {
				line(stream, string(rest[stream]))
			}
		}
	}()
	return guestexec.Attach(ctx, g, ref, *from, guestexec.Sink{Output: func(e guestapi.Event) error {
		if at := from.Of(e.Stream); at != nil {
			*at = e.Offset + int64(len(e.Data))
		}
		data := append(rest[e.Stream], e.Data...)
		for {
			i := bytes.IndexByte(data, '\n')
			if i < 0 && len(data) > maxLine {
				i = maxLine
			}
			if i < 0 {
				break
			}
			line(e.Stream, strings.TrimRight(string(data[:i]), "\r\n"))
			data = bytes.TrimPrefix(data[i:], []byte("\n"))
		}
		rest[e.Stream] = slices.Clone(data)
		return nil
	}})
}

const maxLine = 16 << 10 // bytes of a line that does not end

// checkTimeout bounds one try of a check.
const checkTimeout = 10 * time.Second

// Check tries once whether a program takes requests: whether its port accepts connections or, with a path, whether the
// response to GET has a status below 400.
func Check(ctx context.Context, g guestapi.PortDialer, port uint16, path string) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	if path == "" {
		c, err := g.DialPort(ctx, port)
		if err != nil {
			return err
		}
		return c.Close()
	}
	status, err := request(ctx, g, port, http.MethodGet, path)
	if err == nil && status >= http.StatusBadRequest {
		err = fmt.Errorf("GET %s answered with status %d", path, status)
	}
	return err
}

// request sends a request without a body and returns the status.
func request(ctx context.Context, g guestapi.PortDialer, port uint16, method, path string) (int, error) {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return g.DialPort(ctx, port) }
	transport := &http.Transport{
		DialContext:            dial,
		DisableKeepAlives:      true,
		MaxResponseHeaderBytes: 64 << 10,
	}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, method, "http://localhost:"+strconv.Itoa(int(port))+path, nil)
	if err != nil {
		return 0, err
	}
	r.Header.Set("User-Agent", "pandastack-check")
	answer, err := transport.RoundTrip(r) // a redirect is an answer
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(answer.Body, 8<<20))
	return answer.StatusCode, err
}

// interval is the time between two tries of Await.
const interval = 50 * time.Millisecond

// Await returns nil when a program takes requests. Exited, which may be nil, ends the wait: it holds how the program
// exited. The error says what the user can do.
func Await(
	ctx context.Context,
	g guestapi.PortDialer,
	port uint16,
	h api.AppHealth,
	limit time.Duration,
	exited <-chan guestapi.Exit,
) error {
	end := time.NewTimer(limit)
	defer end.Stop()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		err := Check(ctx, g, port, h.Path)
		if err == nil {
			return nil
		}
		if errors.Is(err, guestapi.ErrLost) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case exit := <-exited:
			return Exited(exit)
		case <-end.C:
			return silent(ctx, g, port, h, limit, err)
		case <-tick.C:
		}
	}
}

// Exited says how a program ended.
func Exited(exit guestapi.Exit) *api.Error {
	switch {
	case exit.OutOfMemory:
		return api.Errorf(api.Invalid, "the start command was killed because its machine had no memory left: "+
			"use a template with more")
	case exit.Error != "":
		return api.Errorf(api.Invalid, "the start command could not be run: %.300s", exit.Error)
	case exit.Signal != 0:
		return api.Errorf(api.Invalid, "the start command was ended by signal %d", exit.Signal)
	}
	return api.Errorf(api.Invalid, "the start command exited with code %d: it must keep running", exit.Code)
}

// silent says why a program does not take requests.
func silent(
	ctx context.Context,
	g guestapi.PortDialer,
	port uint16,
	h api.AppHealth,
	limit time.Duration,
	last error,
) error {
	if h.Path != "" && !errors.Is(last, guestapi.ErrRefused) {
		return api.Errorf(api.Invalid, "health.path: %s did not answer with success within %s: %.300s", h.Path,
			limit, last.Error())
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	found, err := g.Ports(ctx)
	if err != nil {
		return err
	}
	var others []string
	for _, p := range found {
		if name := strconv.Itoa(int(p.Port)); p.Port != port && p.Port >= 1024 && !slices.Contains(others, name) {
			others = append(others, name)
		}
	}
	hint := "let the app listen on the port that the variable PORT names"
	if len(others) > 0 {
		hint = "it listens on " + strings.Join(others[:min(len(others), 5)], ", ") + ": " + hint + ", or set port"
	}
	return api.Errorf(api.Unreachable, "nothing accepted connections on port %d within %s: %s", port, limit, hint)
}

// Warm requests paths of a program once. An answer of any status will do.
func Warm(ctx context.Context, g guestapi.PortDialer, port uint16, paths []string) error {
	ctx, cancel := context.WithTimeout(ctx, warmTimeout)
	defer cancel()
	for _, path := range paths {
		if _, err := request(ctx, g, port, http.MethodGet, path); err != nil {
			return api.Wrap(api.Invalid, err, fmt.Sprintf("warm: %.100s was not answered: %.300s", path, err.Error()))
		}
	}
	return nil
}

// warmTimeout bounds the requests of Warm.
const warmTimeout = 2 * time.Minute

// rehearsals is how often Rehearse makes its requests: later rounds run code that runs only the second time.
const rehearsals = 3

// Rehearse makes the first requests of a program several times.
//
// They are those of Warm, or without any the one of the health check, or else that of the root, whose response does not
// matter.
func Rehearse(ctx context.Context, g guestapi.PortDialer, port uint16, warm []string, health string) error {
	for range rehearsals {
		if len(warm) > 0 {
			if err := Warm(ctx, g, port, warm); err != nil {
				return err
			}
			continue
		}
		if err := Check(ctx, g, port, cmp.Or(health, "/")); err != nil && ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// hookTimeout bounds what a program does after a restore before requests come.
const hookTimeout = 10 * time.Second

// Restored tells a program that it was restored, in the way that it has asked for.
func Restored(ctx context.Context, g guestapi.Guest, port uint16, hook string) error {
	if hook == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, hookTimeout)
	defer cancel()
	if hook == Signal {
		return g.Signal(ctx, Ref, int(syscall.SIGUSR2), true)
	}
	status, err := request(ctx, g, port, http.MethodPost, hook)
	if err == nil && status >= http.StatusBadRequest {
		err = fmt.Errorf("POST %s answered with status %d", hook, status)
	}
	if err != nil {
		return api.Wrap(api.Unavailable, err, "restore_hook: "+cmp.Or(err.Error(), "it failed"))
	}
	return nil
}
