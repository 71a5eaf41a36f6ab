package fctest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/pandastack/pandastack/internal/vmm/fake"
	"github.com/pandastack/pandastack/internal/vmm/firecracker/fcapi"
)

// monitor is the one machine of this process.
type monitor struct {
	version  fcapi.Version
	settings settings
	dir      string          // of the program
	ctx      context.Context // of the process
	over     chan int        // receives the exit code

	mu         sync.Mutex // held during each request
	phase      string     // fcapi.StateNone, StateRunning or StatePaused
	configured bool       // a boot-specific resource was set, which forbids a load
	fatal      bool       // an error of the current request ends the process
	broken     bool       // a load has failed; another request aborts the process
	shape      shape
	memory     memory
	guest      *fake.Guest
	vsock      *vsock
	captured   bool            // a snapshot was made since the last resume
	metadata   json.RawMessage // content of the metadata service; never part of a snapshot
}

// fault is an error response to a request.
type fault struct {
	text string
	http bool // an error of the HTTP server, whose body has another member
}

func (f fault) Error() string { return f.text }

func bad(format string, args ...any) error { return fault{text: fmt.Sprintf(format, args...)} }

// badHTTP is an error of the HTTP server, before a request reaches the API.
func badHTTP(format string, args ...any) error { return fault{fmt.Sprintf(format, args...), true} }

// ServeHTTP handles one request at a time, like the single API thread of Firecracker.
func (m *monitor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken {
		m.exit(exitAbort)
		<-m.ctx.Done()
		return
	}
	body, err := m.body(r)
	op := r.Method + " " + r.URL.Path
	do := ""
	var out any
	if err == nil {
		err = m.note(op, string(body))
		do = m.fault(op)
	}
	switch do {
	case Refuse:
		err = bad("refused by the test")
	case Die:
		m.exit(exitSyscall)
		<-m.ctx.Done()
	case Hang:
		<-m.ctx.Done()
	}
	if err == nil {
		out, err = m.handle(r.Method, r.URL.Path, body)
	}
	if do == Cut {
		m.exit(exitSyscall)
		<-m.ctx.Done()
	}
	m.respond(w, out, err)
	if m.fatal {
		_ = http.NewResponseController(w).Flush() // the process exits next
		m.broken = true
		m.exit(exitGeneric)
	}
}

// body reads the body of a request by the rules of Firecracker's HTTP server. The real one goes on to
// parse the rest of a body that is too large as further requests.
func (m *monitor) body(r *http.Request) ([]byte, error) {
	switch {
	case len(r.TransferEncoding) > 0:
		return nil, badHTTP("Unsupported header. Key:Transfer-Encoding")
	case r.Method == http.MethodGet && r.ContentLength != 0:
		return nil, bad("GET request cannot have a body.")
	case r.Method != http.MethodGet && r.ContentLength <= 0:
		return nil, bad("Empty %s request.", r.Method)
	case r.ContentLength > int64(m.settings.payload):
		return nil, badHTTP(
			"Request payload with size %d is larger than the limit of %d allowed by server.",
			r.ContentLength,
			m.settings.payload,
		)
	}
	return io.ReadAll(r.Body)
}

func (m *monitor) respond(w http.ResponseWriter, out any, err error) {
	status := http.StatusNoContent
	if err != nil {
		status = http.StatusBadRequest
		member := "fault_message"
		if f, ok := errors.AsType[fault](err); ok && f.http {
			member = "error"
			w.Header().Set("Connection", "close")
		}
		out = map[string]string{member: err.Error()}
	} else if out != nil {
		status = http.StatusOK
	}
	w.Header().Set("Server", "Firecracker API")
	if out == nil {
		w.WriteHeader(status)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(out) // the client may have disconnected
}

// route handles one kind of request.
type route struct {
	when func(*monitor) error
	do   func(m *monitor, id string, body []byte) (any, error)
}

// handle finds the route of a request and runs it.
func (m *monitor) handle(method, path string, body []byte) (any, error) {
	op, id := method+" "+path, ""
	for _, prefix := range []string{"/drives/", "/network-interfaces/"} {
		if rest, ok := strings.CutPrefix(path, prefix); ok {
			op, id = method+" "+prefix, rest
			if strings.Trim(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != "" || id == "" {
				return nil, bad("API Resource IDs can only contain alphanumeric characters and underscores.")
			}
		}
	}
	r, ok := routes()[op]
	if !ok || strings.Contains(op, "/hotplug/") && !m.version.AtLeast(1, 14) {
		return nil, bad("Invalid request method and/or path: %s %s.", method, path)
	}
	if fields, ok := schemas[op]; ok {
		if err := check(m.version, fields, body); err != nil {
			return nil, bad("%v", err)
		}
	}
	if r.when != nil {
		if err := r.when(m); err != nil {
			return nil, err
		}
	}
	return r.do(m, id, body)
}

// The states in which requests are allowed.

func preBoot(m *monitor) error {
	if m.phase != fcapi.StateNone {
		return bad("The requested operation is not supported after starting the microVM.")
	}
	m.configured = true
	return nil
}

func unbooted(m *monitor) error {
	if m.phase != fcapi.StateNone {
		return bad("The requested operation is not supported after starting the microVM.")
	}
	return nil
}

func fresh(m *monitor) error {
	if m.phase != fcapi.StateNone {
		return bad("The requested operation is not supported after starting the microVM.")
	}
	if m.configured {
		return bad(
			"Load snapshot error: Loading a microVM snapshot not allowed after configuring boot-specific resources.",
		)
	}
	return nil
}

func booted(m *monitor) error {
	if m.phase == fcapi.StateNone {
		return bad("The requested operation is not supported before starting the microVM.")
	}
	return nil
}

func isPaused(m *monitor) error {
	if m.phase != fcapi.StatePaused {
		return bad("Create snapshot error: Snapshot can be created only when the microVM is paused.")
	}
	return nil
}

func routes() map[string]route {
	return map[string]route{
		"GET /": {do: func(m *monitor, _ string, _ []byte) (any, error) {
			return map[string]string{
				"id":          m.settings.id,
				"state":       m.phase,
				"vmm_version": m.version.String(),
				"app_name":    "Firecracker",
			}, nil
		}},
		"GET /version": {do: func(m *monitor, _ string, _ []byte) (any, error) {
			return map[string]string{"firecracker_version": m.version.String()}, nil
		}},
		"GET /hotplug/memory":        {booted, (*monitor).getHotplug},
		"PUT /boot-source":           {preBoot, (*monitor).putBoot},
		"PUT /machine-config":        {preBoot, (*monitor).putMachine},
		"PUT /drives/":               {preBoot, (*monitor).putDrive},
		"PATCH /drives/":             {booted, (*monitor).patchDrive},
		"PUT /network-interfaces/":   {preBoot, (*monitor).putNetwork},
		"PATCH /network-interfaces/": {booted, (*monitor).patchNetwork},
		"PUT /vsock":                 {preBoot, (*monitor).putVsock},
		"PUT /entropy": {
			preBoot,
			func(m *monitor, _ string, _ []byte) (any, error) { m.shape.Entropy = true; return nil, nil },
		},
		"PUT /balloon":          {preBoot, (*monitor).putBalloon},
		"PATCH /balloon":        {booted, (*monitor).patchBalloon},
		"PUT /hotplug/memory":   {preBoot, (*monitor).putHotplug},
		"PATCH /hotplug/memory": {booted, (*monitor).patchHotplug},
		"PUT /mmds/config":      {preBoot, (*monitor).putMetadataService},
		"PUT /mmds":             {nil, (*monitor).putMetadata},
		"PUT /logger":           {unbooted, func(*monitor, string, []byte) (any, error) { return nil, nil }},
		"PUT /actions":          {nil, (*monitor).act},
		"PATCH /vm":             {booted, (*monitor).patchState},
		"PUT /snapshot/create":  {isPaused, (*monitor).create},
		"PUT /snapshot/load":    {fresh, (*monitor).load},
	}
}
