package httpapi

import (
	"cmp"
	"strconv"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/execstream"
)

// begin returns the guest for a command, and sets the sandbox's user and directory where the command names none.
func (rq *request) begin(req *api.ExecRequest) (guestapi.Guest, error) {
	g, box, err := rq.enter()
	if err != nil {
		return nil, err
	}
	if req.User == "" {
		req.User = box.User
	}
	if req.Cwd == "" {
		req.Cwd = box.Workdir
	}
	return g, nil
}

func exec(rq *request, req api.ExecRequest) (api.ExecResult, error) {
	g, err := rq.begin(&req)
	if err != nil {
		return api.ExecResult{}, err
	}
	if req.Background {
		return execstream.Background(rq.r.Context(), g, req)
	}
	return execstream.Exec(rq.r.Context(), g, req)
}

func execStream(rq *request) error {
	var req api.ExecRequest
	if err := rq.decode(&req); err != nil {
		return err
	}
	if req.Background {
		return api.Errorf(api.Invalid, "background: is not possible here: "+
			"use exec, and follow the process at processes/{pid}/stream").
			With("field", "background")
	}
	g, err := rq.begin(&req)
	if err != nil {
		return err
	}
	return execstream.ToSSE(rq.r.Context(), g, req, func() *execstream.SSE { return execstream.NewSSE(rq.w) })
}

// socketOnly refuses requests that are no WebSocket handshake.
func socketOnly(rq *request) error {
	if !rq.upgrade() {
		return api.Errorf(api.Invalid, "this path is a WebSocket: send the headers of an upgrade")
	}
	return nil
}

func execSocket(rq *request) error {
	if err := socketOnly(rq); err != nil {
		return err
	}
	var defaults api.ExecRequest
	g, err := rq.begin(&defaults)
	if err != nil {
		return err
	}
	conn, err := execstream.Accept(rq.w, rq.r)
	if err != nil {
		return err
	}
	return execstream.ExecMux(rq.r.Context(), g, conn, defaults)
}

func execPTY(rq *request) error { return terminal(rq, execstream.Terminal{}) }

func execSSH(rq *request) error { return terminal(rq, execstream.Terminal{Silent: true}) }

// execShared joins a terminal that other clients may use too.
func execShared(rq *request) error {
	name := cmp.Or(rq.r.URL.Query().Get("session"), "shared")
	if !api.ValidTemplateName(name) {
		return api.Errorf(api.Invalid, "session: %q is not a name: use 1 to 64 of a-z A-Z 0-9 . _ -", truncate(name)).
			With("field", "session")
	}
	return terminal(rq, execstream.Terminal{Shared: name, ReadOnly: rq.boolParam("readonly")})
}

// terminal starts the program of t before the upgrade, so that a failure is an HTTP error.
func terminal(rq *request, t execstream.Terminal) error {
	if err := socketOnly(rq); err != nil {
		return err
	}
	rows, err := rq.intParam("rows", 1, 2000, 24)
	if err != nil {
		return err
	}
	cols, err := rq.intParam("cols", 1, 2000, 80)
	if err != nil {
		return err
	}
	q := rq.r.URL.Query()
	req := api.ExecRequest{Cmd: q.Get("cmd"), Cwd: q.Get("cwd"), User: q.Get("user")}
	if req.Cmd == "" {
		req.Cmd = "login shell" // only to be valid
	}
	if err := req.Validate(); err != nil {
		return err
	}
	g, err := rq.begin(&req)
	if err != nil {
		return err
	}
	t.Size = guestapi.Size{Rows: uint16(rows), Cols: uint16(cols)}
	t.Cmd, t.Cwd, t.User = q.Get("cmd"), req.Cwd, req.User
	p, err := t.Start(rq.r.Context(), g)
	if err != nil {
		return err
	}
	conn, err := execstream.Accept(rq.w, rq.r, "pds-pty")
	if err != nil {
		_ = p.Close() // the error of the handshake says more
		return err
	}
	t.PTY(rq.r.Context(), g, p, conn)
	return nil
}

func listProcesses(rq *request) ([]api.Process, error) {
	g, err := rq.guest()
	if err != nil {
		return nil, err
	}
	infos, err := g.Processes(rq.r.Context())
	if err != nil {
		return nil, hosterror.OfGuest(err, "processes")
	}
	out := make([]api.Process, 0, len(infos))
	for _, p := range infos {
		out = append(out, execstream.Process(p))
	}
	return out, nil
}

// process returns the process in the path.
func (rq *request) process() (guestapi.ProcessRef, error) {
	pid, err := strconv.ParseUint(rq.r.PathValue("pid"), 10, 32)
	if err != nil || pid == 0 {
		return guestapi.ProcessRef{}, api.Errorf(
			api.NotFound,
			"process %q not found: processes are named by pid",
			truncate(rq.r.PathValue("pid")),
		)
	}
	return guestapi.ProcessRef{PID: uint32(pid)}, nil
}

func signalProcess(rq *request, req api.SignalRequest) error {
	ref, err := rq.process()
	if err != nil {
		return err
	}
	g, err := rq.guest()
	if err != nil {
		return err
	}
	return hosterror.OfGuest(g.Signal(rq.r.Context(), ref, req.Signal, req.Group), "process")
}

func attachProcess(rq *request) error {
	ref, err := rq.process()
	if err != nil {
		return err
	}
	from, err := execstream.ParseOffsets(rq.r.Header.Get("Last-Event-ID"))
	if err != nil {
		return err
	}
	g, err := rq.guest()
	if err != nil {
		return err
	}
	return execstream.AttachSSE(rq.r.Context(), g, ref, from, func() *execstream.SSE { return execstream.NewSSE(rq.w) })
}
