package builder

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/fnruntime"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
	"github.com/pandastack/pandastack/internal/control/function/program"
)

// Bounds of what machines say.
const (
	maxRaw   = 64 << 20 // bytes that the program may print in one run
	maxLines = 20_000   // lines of the log of one run
)

// machine is a machine of a build.
type machine struct {
	*work
	id    api.SandboxID
	guest guestapi.Guest
}

// start makes a machine from a layer, or from the template if there is none.
func (w *work) start(ctx context.Context, layer api.SnapshotID, network *api.Network) (*machine, error) {
	req := api.CreateRequest{FromSnapshot: layer, Metadata: w.metadata(RoleBuild), Network: network,
		TimeoutSeconds: int64((w.cfg.Timeout + 10*time.Minute) / time.Second)} // if this process never comes back
	if layer == "" {
		req.Template, req.MemoryMB = w.template.Name, w.memory()
		if !w.template.Baked {
			w.Log.Append("info", "prepare", "template "+w.template.Name+" is baked first; that takes minutes")
		}
	}
	made, err := w.boxes.Create(ctx, w.Principal, req)
	if err != nil {
		return nil, err
	}
	g, err := w.boxes.Guest(ctx, w.Principal, made.ID)
	if err != nil {
		return nil, err
	}
	m := &machine{work: w, id: made.ID, guest: g}
	if layer != "" {
		return m, w.did("machine")
	}
	f, err := os.Open(w.cfg.Program)
	if err != nil {
		return nil, fmt.Errorf("the program of functions cannot be read: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	opt := guestapi.WriteOptions{User: "root", Mode: 0o755, Size: info.Size()}
	if _, err = g.Write(ctx, fnruntime.Program, opt, f); err != nil {
		return nil, err
	}
	return m, w.did("machine")
}

// trust lets programs in the machine reach and trust the mirrors.
func (m *machine) trust(ctx context.Context) error {
	for file, text := range map[string]string{
		"/etc/ssl/certs/ca-certificates.crt": m.cfg.Mirrors.Certificates,
		"/etc/hosts":                         strings.Join(m.cfg.Mirrors.Hosts, "\n"),
	} {
		if text == "" {
			continue
		}
		status, err := guestexec.Stream(ctx, m.guest, guestexec.Command{
			Spec: guestapi.ProcessSpec{Shell: "cat >>" + file, User: "root", Dir: "/"},
			Input: func(_ context.Context, w io.Writer) error {
				_, err := io.WriteString(w, "\n"+text+"\n")
				return err
			},
		}, guestexec.Sink{Output: func(guestapi.Event) error { return nil }})
		if err == nil && (status.Exit.Code != 0 || status.InputErr != nil) {
			err = fmt.Errorf("writing %s in a machine of a build: %w", file, status.InputErr)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// push writes a bundle into the machine.
func (m *machine) push(ctx context.Context, open func(context.Context) (io.ReadCloser, error)) error {
	r, err := open(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	opt := guestapi.WriteOptions{User: "root", Mode: 0o600, Size: -1}
	if _, err := m.guest.Write(ctx, fnruntime.Bundle, opt, r); err != nil {
		if errors.Is(err, guestapi.ErrNoSpace) {
			return api.Errorf(api.Invalid, "code: the bundle does not fit on the disk of template %s", m.template.Name).
				With("field", "code")
		}
		return err
	}
	return m.did("push")
}

// unpack brings the code into the machine.
func (m *machine) unpack(ctx context.Context) error {
	if err := m.push(ctx, m.Open); err != nil {
		return err
	}
	return m.run(ctx, fnruntime.BuildRequest{Runtime: string(m.Runtime), Entrypoint: m.Entrypoint})
}

// run runs the program's verb build.
func (m *machine) run(ctx context.Context, req fnruntime.BuildRequest) error {
	data, err := json.Marshal(req)
	if err != nil {
		return err
	}
	d := fnruntime.NewDecoder()
	var failed string
	raw, lines, done := 0, 0, false
	other := guestexec.NewBuffer(guestexec.Limit{Bytes: 4 << 10, Keep: guestexec.Tail})
	status, err := guestexec.Stream(ctx, m.guest, guestexec.Command{
		Spec: guestapi.ProcessSpec{Argv: []string{fnruntime.Program, "build"}, User: "root", Dir: "/"},
		Input: func(_ context.Context, w io.Writer) error {
			_, err := w.Write(data)
			return err
		},
	}, guestexec.Sink{Output: func(e guestapi.Event) error {
		if raw += len(e.Data); raw > maxRaw {
			return api.Errorf(api.TooLarge, "the build printed more than %d MiB", maxRaw>>20)
		}
		if e.Stream != guestapi.StreamStdout {
			other.Add(e.Data)
			return nil
		}
		_, err := d.Write(e.Data, func(e fnruntime.Event) error {
			switch e.Kind {
			case fnruntime.KindLog:
				if lines++; lines <= maxLines {
					m.Log.Append("info", "install", e.Line)
				}
			case fnruntime.KindError:
				failed = e.Error
			case fnruntime.KindResult:
				done = true
			}
			return nil
		})
		return err
	}})
	switch {
	case err != nil:
		return err
	case failed != "":
		return api.Errorf(api.Invalid, "%s", failed)
	case status.Exit.OutOfMemory:
		return outOfMemory("the build")
	case status.Exit.Code != 0 || !done:
		return api.Errorf(api.Unavailable, "the build ended with status %d: %s%s", status.Exit.Code,
			status.Exit.Error, strings.TrimSpace(string(other.Output().Data)))
	}
	return m.did("build")
}

func outOfMemory(what string) error {
	return api.Errorf(api.Invalid, "%s ran out of memory: set settings.memory_mb to more", what).
		With("field", "settings.memory_mb")
}

// Tag is the tag of the program's process in the machine.
const Tag = "function"

// load starts the program and waits until it has loaded the handler, and returns the handler's style.
func (m *machine) load(ctx context.Context) (style string, err error) {
	data, err := json.Marshal(fnruntime.Serve{Runtime: string(m.Runtime), Entrypoint: m.Entrypoint, Name: m.Name,
		Version: m.Version, Env: m.Env, MemoryMB: m.memory()})
	if err != nil {
		return "", err
	}
	p, err := m.guest.Start(ctx, guestapi.ProcessSpec{
		Argv: []string{fnruntime.Program, "serve"}, User: "root", Dir: "/", Tag: Tag, Stdin: true,
	})
	if err != nil {
		return "", err
	}
	defer p.Close()
	if _, err := io.Copy(processInput{p}, bytes.NewReader(data)); err != nil {
		return "", err
	}
	if err := p.CloseInput(); err != nil {
		return "", err
	}
	if err := m.did("serve"); err != nil {
		return "", err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	followed := make(chan struct{})
	defer func() { <-followed }() // before p is closed
	defer cancel(errLoaded)
	go func() {
		defer close(followed)
		m.follow(ctx, p, cancel)
	}()
	return m.await(ctx)
}

var errLoaded = errors.New("the handler is loaded")

type processInput struct{ p guestapi.Process }

func (w processInput) Write(b []byte) (int, error) { return w.p.Write(b) }

// follow writes what the program prints to the log. When it exits, ended is called with the reason.
func (m *machine) follow(ctx context.Context, p guestapi.Process, ended context.CancelCauseFunc) {
	n := 0
	rest := map[guestapi.Stream][]byte{}
	exit, err := guestexec.Follow(ctx, p, guestexec.Sink{Output: func(e guestapi.Event) error {
		data := append(rest[e.Stream], e.Data...)
		for {
			line, after, found := bytes.Cut(data, []byte("\n"))
			if !found && len(data) <= maxLine {
				break
			}
			if n++; n <= maxLines {
				m.Log.Append("info", "load", strings.ToValidUTF8(string(line), "?"))
			}
			data = after
		}
		rest[e.Stream] = bytes.Clone(data)
		return nil
	}})
	switch {
	case ctx.Err() != nil:
	case err != nil:
		ended(err)
	case exit.OutOfMemory:
		ended(outOfMemory("loading the handler"))
	default:
		ended(api.Errorf(api.Invalid, "the function's program ended with status %d while it loaded the handler",
			exit.Code))
	}
}

const maxLine = 8 << 10 // bytes of a line that does not end

// await waits for the handler and warms it up.
func (m *machine) await(ctx context.Context) (style string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, m.cfg.LoadTimeout, api.Errorf(api.Invalid,
		"the handler was not loaded within %s: do less when the module is imported", m.cfg.LoadTimeout))
	defer cancel()
	call := program.Open(m.guest)
	defer call.Close()
	style, err = call.Ready(ctx)
	if failed, ok := errors.AsType[*program.Failed](err); ok {
		return "", m.failure(failed)
	}
	if err == nil {
		err = m.did("ready")
	}
	if err == nil && m.WarmUp != nil {
		if err = m.warm(ctx, call); err == nil {
			m.Log.Append("info", "warm-up", "the request of the warm-up was answered")
		}
	}
	if because := context.Cause(ctx); err != nil && because != nil && !errors.Is(because, errLoaded) {
		err = because
	}
	return style, err
}

// failure is the error of a handler that could not be loaded.
func (m *machine) failure(f *program.Failed) error {
	for line := range strings.Lines(f.Stack) {
		m.Log.Append("error", "load", strings.TrimRight(line, "\n"))
	}
	return api.Errorf(api.Invalid, "the handler could not be loaded: %s", f.Error()).
		With("type", f.Type).With("stack", f.Stack)
}

// warm makes the request that the user wants before the capture.
func (m *machine) warm(ctx context.Context, p *program.Program) error {
	call := m.call()
	var failure *fnruntime.Failure
	var err error
	if m.WarmUp.Path != "" {
		failure, err = p.Get(ctx, call, m.WarmUp.Path)
	} else {
		var res program.Result
		res, err = p.Event(ctx, call, m.WarmUp.Event)
		failure = res.Failure
	}
	if err == nil && failure != nil {
		err = fmt.Errorf("%s: %s", failure.Type, failure.Message)
	}
	if err != nil {
		return api.Wrap(api.Invalid, err, "settings.warm_up: the request failed: "+err.Error()).
			With("field", "settings.warm_up")
	}
	return m.did("warm-up")
}
