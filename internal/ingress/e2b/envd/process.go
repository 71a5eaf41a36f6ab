package envd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
	pb "github.com/pandastack/pandastack/internal/ingress/e2b/envd/proto/process"
	"github.com/pandastack/pandastack/internal/ingress/e2b/envd/proto/process/processconnect"
	"github.com/pandastack/pandastack/internal/lib/budget"
)

type processes struct{ s *Server }

var _ processconnect.ProcessHandler = (*processes)(nil)

type processKey struct {
	sandbox    string
	generation uint64
	pid        uint32
}

func parseSelector(sel *pb.ProcessSelector) (guestapi.ProcessRef, error) {
	switch x := sel.GetSelector().(type) {
	case *pb.ProcessSelector_Pid:
		return guestapi.ProcessRef{PID: x.Pid}, nil
	case *pb.ProcessSelector_Tag:
		if x.Tag != "" {
			return guestapi.ProcessRef{Tag: x.Tag}, nil
		}
	}
	return guestapi.ProcessRef{}, connect.NewError(
		connect.CodeInvalidArgument,
		errors.New("process: give a pid or a tag"),
	)
}

func (p *processes) List(
	ctx context.Context,
	_ *connect.Request[pb.ListRequest],
) (*connect.Response[pb.ListResponse], error) {
	list, err := targetOf(ctx).Guest.Processes(ctx)
	if err != nil {
		return nil, rpcError(err)
	}
	out := &pb.ListResponse{}
	memory := budget.FromContext(ctx)
	for _, i := range list {
		if i.Exit != nil {
			continue
		}
		if err := memory.Take(2 * i.Bytes()); err != nil { // the entry, and its part of the response
			return nil, budgetError(err)
		}
		out.Processes = append(out.Processes, processInfo(i))
	}
	return connect.NewResponse(out), nil
}

func processInfo(i guestapi.ProcessInfo) *pb.ProcessInfo {
	cfg := &pb.ProcessConfig{Envs: i.Env}
	if len(i.Argv) > 0 {
		cfg.Cmd, cfg.Args = i.Argv[0], i.Argv[1:]
	} else {
		cfg.Cmd, cfg.Args = "/bin/sh", []string{"-c", i.Shell}
	}
	if i.Dir != "" {
		cfg.Cwd = &i.Dir
	}
	info := &pb.ProcessInfo{Config: cfg, Pid: i.PID}
	if i.Tag != "" {
		info.Tag = &i.Tag
	}
	return info
}

func parseSize(p *pb.PTY) (*guestapi.Size, error) {
	if p == nil {
		return nil, nil
	}
	rows, cols := p.GetSize().GetRows(), p.GetSize().GetCols()
	if rows > math.MaxUint16 || cols > math.MaxUint16 {
		return nil, connect.NewError(
			connect.CodeInvalidArgument,
			fmt.Errorf("pty.size: %d rows and %d columns; the most is %d", rows, cols, math.MaxUint16),
		)
	}
	return &guestapi.Size{Rows: uint16(rows), Cols: uint16(cols)}, nil
}

func processSpec(req *pb.StartRequest, user string) (guestapi.ProcessSpec, error) {
	cfg := req.GetProcess()
	if cfg.GetCmd() == "" {
		return guestapi.ProcessSpec{}, connect.NewError(
			connect.CodeInvalidArgument,
			errors.New("process.cmd: is empty; name a program"),
		)
	}
	size, err := parseSize(req.GetPty())
	if err != nil {
		return guestapi.ProcessSpec{}, err
	}
	return guestapi.ProcessSpec{
		Argv: append(
			[]string{cfg.GetCmd()},
			cfg.GetArgs()...), Env: cfg.GetEnvs(), Dir: homeRelative(cfg.GetCwd()), User: user,
		Tag: req.GetTag(), Stdin: req.Stdin == nil || req.GetStdin(), PTY: size,
	}, nil
}

func (p *processes) Start(
	ctx context.Context,
	req *connect.Request[pb.StartRequest],
	out *connect.ServerStream[pb.StartResponse],
) error {
	spec, err := processSpec(req.Msg, requestUser(req.Header()))
	if err != nil {
		return err
	}
	if end, ok := ctx.Deadline(); ok {
		// The guest kills the command, too, in case this host is not running then.
		spec.Timeout = time.Until(end) + time.Second
	}
	t := targetOf(ctx)
	proc, err := t.Guest.Start(ctx, spec)
	if err != nil {
		if errors.Is(err, guestapi.ErrNotFound) {
			return connect.NewError(connect.CodeInvalidArgument, err)
		}
		return rpcError(err)
	}
	defer p.s.track(t, proc)()
	return follow(ctx, t, proc, req.Header(), func(e *pb.ProcessEvent) error {
		return out.Send(&pb.StartResponse{Event: e})
	})
}

func (p *processes) Connect(
	ctx context.Context,
	req *connect.Request[pb.ConnectRequest],
	out *connect.ServerStream[pb.ConnectResponse],
) error {
	ref, err := parseSelector(req.Msg.GetProcess())
	if err != nil {
		return err
	}
	t := targetOf(ctx)
	proc, err := t.Guest.Attach(ctx, ref, guestexec.FromNow)
	if err != nil {
		return rpcError(err)
	}
	defer p.s.track(t, proc)()
	return follow(ctx, t, proc, req.Header(), func(e *pb.ProcessEvent) error {
		return out.Send(&pb.ConnectResponse{Event: e})
	})
}

// track registers the stream of a process for requests with input; the returned function removes and closes it.
func (s *Server) track(t Target, proc guestapi.Process) func() {
	key := processKey{t.ID, t.Generation, proc.PID()}
	s.mu.Lock()
	if _, taken := s.running[key]; !taken {
		s.running[key] = proc
	}
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		if s.running[key] == proc {
			delete(s.running, key)
		}
		s.mu.Unlock()
		// The process continues without its stream, so an error has no consequence.
		_ = proc.Close()
	}
}

// errNotSent marks an error of sending to the client, which needs no translation.
type errNotSent struct{ error }

// follow sends the events of a process until the process exits or the client goes away, which the process
// survives. When the client's deadline passes, the process and its children are killed: the deadline is the
// command's.
func follow(
	ctx context.Context,
	t Target,
	proc guestapi.Process,
	h http.Header,
	sendEvent func(*pb.ProcessEvent) error,
) error {
	send := func(e *pb.ProcessEvent) error {
		if err := sendEvent(e); err != nil {
			return errNotSent{err}
		}
		return nil
	}
	exit, err := guestexec.Follow(ctx, proc, guestexec.Sink{
		Started: func(pid uint32) error {
			return send(&pb.ProcessEvent{Event: &pb.ProcessEvent_Start{Start: &pb.ProcessEvent_StartEvent{Pid: pid}}})
		},
		Output:    func(e guestapi.Event) error { return send(dataEvent(e)) },
		IdleAfter: pingEvery(h),
		Idle: func() error {
			return send(&pb.ProcessEvent{Event: &pb.ProcessEvent_Keepalive{Keepalive: &pb.ProcessEvent_KeepAlive{}}})
		},
	})
	if err == nil {
		return sendEvent(&pb.ProcessEvent{Event: &pb.ProcessEvent_End{End: endEvent(exit)}})
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		// If this fails, the guest kills a command that Start began a second later.
		_ = guestexec.Signal(ctx, t.Guest, guestapi.ProcessRef{PID: proc.PID()}, int(syscall.SIGKILL))
		return connect.NewError(
			connect.CodeDeadlineExceeded,
			errors.New("the command did not end in time and was killed"),
		)
	}
	if e, ok := errors.AsType[errNotSent](err); ok {
		return e.error
	}
	return streamError(err)
}

// defaultPing keeps connections through proxies alive, in seconds.
const defaultPing = 90

func pingEvery(h http.Header) time.Duration {
	n, err := strconv.Atoi(h.Get("Keepalive-Ping-Interval"))
	if err != nil || n < 1 || n > 3600 {
		n = defaultPing
	}
	return time.Duration(n) * time.Second
}

func dataEvent(e guestapi.Event) *pb.ProcessEvent {
	d := &pb.ProcessEvent_DataEvent{}
	switch e.Stream {
	case guestapi.StreamStderr:
		d.Output = &pb.ProcessEvent_DataEvent_Stderr{Stderr: e.Data}
	case guestapi.StreamPTY:
		d.Output = &pb.ProcessEvent_DataEvent_Pty{Pty: e.Data}
	default:
		d.Output = &pb.ProcessEvent_DataEvent_Stdout{Stdout: e.Data}
	}
	return &pb.ProcessEvent{Event: &pb.ProcessEvent_Data{Data: d}}
}

// endEvent returns the end of a process. As in Go's os/exec, the exit code after a signal is -1 and Status names it.
func endEvent(x guestapi.Exit) *pb.ProcessEvent_EndEvent {
	end := &pb.ProcessEvent_EndEvent{
		ExitCode: int32(x.Code),
		Exited:   true,
		Status:   fmt.Sprintf("exit status %d", x.Code),
	}
	if x.Signal != 0 {
		end.ExitCode, end.Exited = -1, false
		end.Status = "signal: " + syscall.Signal(x.Signal).String()
	}
	if x.OutOfMemory {
		end.Status += ": the sandbox has no memory left"
	}
	switch {
	case x.Error != "":
		end.Error = &x.Error
	case end.ExitCode != 0:
		end.Error = &end.Status
	}
	return end
}

// withProcess calls do with the stream of a process: the one that is open here, or a new one.
func (p *processes) withProcess(ctx context.Context, sel *pb.ProcessSelector, do func(guestapi.Process) error) error {
	ref, err := parseSelector(sel)
	if err != nil {
		return err
	}
	t := targetOf(ctx)
	p.s.mu.Lock()
	proc := p.s.running[processKey{t.ID, t.Generation, ref.PID}]
	p.s.mu.Unlock()
	if proc == nil {
		if proc, err = t.Guest.Attach(ctx, ref, guestexec.FromNow); err != nil {
			return rpcError(err)
		}
		defer proc.Close()
	}
	return rpcError(do(proc))
}

func (p *processes) Update(
	ctx context.Context,
	req *connect.Request[pb.UpdateRequest],
) (*connect.Response[pb.UpdateResponse], error) {
	size, err := parseSize(req.Msg.GetPty())
	if err != nil {
		return nil, err
	}
	if size == nil {
		return connect.NewResponse(&pb.UpdateResponse{}), nil
	}
	err = p.withProcess(ctx, req.Msg.GetProcess(), func(proc guestapi.Process) error { return proc.Resize(ctx, *size) })
	return connect.NewResponse(&pb.UpdateResponse{}), err
}

func inputBytes(in *pb.ProcessInput) []byte {
	if b := in.GetPty(); b != nil {
		return b
	}
	return in.GetStdin()
}

func (p *processes) SendInput(
	ctx context.Context,
	req *connect.Request[pb.SendInputRequest],
) (*connect.Response[pb.SendInputResponse], error) {
	err := p.withProcess(ctx, req.Msg.GetProcess(), func(proc guestapi.Process) error {
		_, err := proc.Write(inputBytes(req.Msg.GetInput()))
		return err
	})
	return connect.NewResponse(&pb.SendInputResponse{}), err
}

func (p *processes) CloseStdin(
	ctx context.Context,
	req *connect.Request[pb.CloseStdinRequest],
) (*connect.Response[pb.CloseStdinResponse], error) {
	err := p.withProcess(ctx, req.Msg.GetProcess(), func(proc guestapi.Process) error { return proc.CloseInput() })
	return connect.NewResponse(&pb.CloseStdinResponse{}), err
}

func (p *processes) StreamInput(
	ctx context.Context,
	in *connect.ClientStream[pb.StreamInputRequest],
) (*connect.Response[pb.StreamInputResponse], error) {
	if !in.Receive() || in.Msg().GetStart() == nil {
		return nil, connect.NewError(
			connect.CodeInvalidArgument,
			errors.New("the first message of the stream must be start"),
		)
	}
	err := p.withProcess(ctx, in.Msg().GetStart().GetProcess(), func(proc guestapi.Process) error {
		for in.Receive() {
			if data := in.Msg().GetData(); data != nil {
				if _, err := proc.Write(inputBytes(data.GetInput())); err != nil {
					return err
				}
			}
		}
		return in.Err()
	})
	return connect.NewResponse(&pb.StreamInputResponse{}), err
}

func (p *processes) SendSignal(
	ctx context.Context,
	req *connect.Request[pb.SendSignalRequest],
) (*connect.Response[pb.SendSignalResponse], error) {
	ref, err := parseSelector(req.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	sig := req.Msg.GetSignal()
	if sig != pb.Signal_SIGNAL_SIGKILL && sig != pb.Signal_SIGNAL_SIGTERM {
		return nil, connect.NewError(
			connect.CodeInvalidArgument,
			fmt.Errorf("signal: %s is not SIGNAL_SIGTERM or SIGNAL_SIGKILL", sig),
		)
	}
	// The signal goes to the whole group: the program is often a shell, and its child is meant.
	err = targetOf(ctx).Guest.Signal(ctx, ref, int(sig), true)
	return connect.NewResponse(&pb.SendSignalResponse{}), rpcError(err)
}
