package hosttest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// httpd is a server of HTTP on a port. It responds to GET with the file below /srv, to / without a file with "ok",
// and adds the path of every POST to /srv/posts. The number in /srv/status is the status of every response. A machine
// that is restored has the server again.
func (s *shell) httpd(args []string) int {
	port, err := strconv.ParseUint(strings.Join(args, ""), 10, 16)
	if err != nil {
		return 2
	}
	g := s.p.g
	g.pmu.Lock()
	if g.ports[uint16(port)] != nil {
		g.pmu.Unlock()
		s.p.print(guestapi.StreamStderr, "httpd: address in use\n")
		return 1
	}
	g.ports[uint16(port)] = func(c net.Conn) { s.serve(c) }
	s.p.serves = true
	close(s.p.serving)
	g.pmu.Unlock()
	s.p.print(guestapi.StreamStdout, fmt.Sprintf("listening on %d\n", port))
	<-s.ctx.Done()
	g.pmu.Lock()
	defer g.pmu.Unlock()
	delete(g.ports, uint16(port))
	return 0
}

// serve serves one request.
func (s *shell) serve(c net.Conn) {
	r, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return
	}
	if r.Method == http.MethodPost {
		s.script("echo " + r.URL.Path + " >> /srv/posts")
	}
	read := func(path string) (string, bool) {
		_, file, err := s.p.g.Read(s.ctx, path, "", 0, -1)
		if err != nil {
			return "", false
		}
		data, err := io.ReadAll(file)
		return string(data), err == nil
	}
	status := http.StatusOK
	body, ok := read("/srv" + r.URL.Path)
	switch {
	case !ok && r.URL.Path == "/":
		body = "ok"
	case !ok && r.Method == http.MethodGet:
		status = http.StatusNotFound
	}
	if text, ok := read("/srv/status"); ok {
		if n, err := strconv.Atoi(strings.TrimSpace(text)); err == nil {
			status = n
		}
	}
	response := http.Response{ProtoMajor: 1, ProtoMinor: 1, StatusCode: status, ContentLength: int64(len(body)),
		Body: io.NopCloser(strings.NewReader(body)), Close: true}
	_ = response.Write(c) // the client may have left
}

// server is a server to start again.
type server struct {
	ctx  context.Context // without an end
	spec guestapi.ProcessSpec
}

// servers returns the servers that run in a guest.
func (g *guest) servers() (all []server) {
	g.pmu.Lock()
	defer g.pmu.Unlock()
	for _, pid := range slices.Sorted(maps.Keys(g.procs)) {
		if p := g.procs[pid]; p.serves && !p.ended() {
			all = append(all, server{context.WithoutCancel(p.ctx), p.spec})
		}
	}
	return all
}

// resume starts servers that a captured guest had, and waits until they accept connections, as they did.
func (g *guest) resume(all []server) {
	for _, v := range all {
		started, err := g.launch(v.ctx, v.spec)
		if err != nil { // the guest is new: it has no process with the tag
			continue
		}
		p := started.(*follower).p
		select {
		case <-p.serving:
		case <-p.ctx.Done():
		}
	}
}
