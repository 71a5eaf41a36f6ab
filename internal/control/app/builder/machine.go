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
	"github.com/pandastack/pandastack/internal/contract/buildevent"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
	"github.com/pandastack/pandastack/internal/control/app"
)

// box is a machine of a build.
type box struct {
	w  *work
	id api.SandboxID
	g  guestapi.Guest
}

// start makes a machine from a snapshot, or from a template if there is none.
func (w *work) start(ctx context.Context, req api.CreateRequest) (*box, error) {
	req.Metadata = w.metadata(roleBuild)
	req.Network = w.cfg.Network
	req.TimeoutSeconds = int64((w.cfg.Timeout + 10*time.Minute) / time.Second) // if this node never comes back
	made, err := w.deps.Sandboxes.Create(ctx, w.Principal, req)
	if err != nil {
		return nil, err
	}
	g, err := w.deps.Sandboxes.Guest(ctx, w.Principal, made.ID)
	if err != nil {
		return nil, err
	}
	return &box{w: w, id: made.ID, g: g}, w.did("machine")
}

// end removes a machine.
func (m *box) end(ctx context.Context) error {
	return m.w.deps.Sandboxes.Delete(ctx, m.w.Principal, m.id)
}

// layers returns the layers of the app by key.
func (w *work) layers(ctx context.Context) (map[string]api.SnapshotID, error) {
	all, err := w.deps.Finder.Snapshots(ctx, w.Principal)
	if err != nil {
		return nil, err
	}
	found := map[string]api.SnapshotID{}
	for _, s := range all {
		if s.Metadata[app.RoleKey] == roleLayer {
			found[s.Name] = s.ID
		}
	}
	return found, nil
}

// keep takes a snapshot of a machine for later builds.
func (m *box) keep(ctx context.Context, key string) (api.SnapshotID, error) {
	made, err := m.w.deps.Sandboxes.TakeSnapshot(ctx, m.w.Principal, m.id,
		api.SnapshotRequest{Name: key, Metadata: m.w.metadata(roleLayer)})
	return made.ID, err
}

// first returns the layer with the template and the program, and makes it if the app has none.
func (w *work) first(ctx context.Context) (api.SnapshotID, error) {
	name := w.cfg.Template
	if w.Settings.Template != "" {
		name = w.Settings.Template
	}
	t, err := w.deps.Templates.Resolve(ctx, w.Principal, name)
	if err != nil {
		return "", err
	}
	program, err := fileDigest(w.cfg.Program)
	if err != nil {
		return "", fmt.Errorf("the program of builds cannot be read: %w", err)
	}
	memory := max(w.Settings.MemoryMB, t.MemoryMB)
	mirrors, err := json.Marshal(w.cfg.Mirrors)
	if err != nil {
		return "", err
	}
	w.root = digest("root", t.Host, program, fmt.Sprint(memory), string(mirrors))
	known, err := w.layers(ctx)
	if err != nil {
		return "", err
	}
	if id := known[w.root]; id != "" {
		return id, nil
	}
	what := "preparing a machine of template " + t.Name
	if !t.Baked {
		what += ", which is baked first; that takes minutes"
	}
	w.Log.Append(buildevent.LevelInfo, "prepare", what)
	m, err := w.start(ctx, api.CreateRequest{Template: name, MemoryMB: memory})
	if err != nil {
		return "", err
	}
	if err := m.install(ctx); err != nil {
		return "", err
	}
	req := buildevent.Request{Mirrors: w.cfg.Mirrors.machine()}
	if err := m.run(ctx, "setup", jsonInput(req), nil); err != nil {
		return "", err
	}
	id, err := m.keep(ctx, w.root)
	if err != nil {
		return "", err
	}
	return id, errors.Join(m.end(ctx), w.did("first layer"))
}

// install copies the program into a machine.
func (m *box) install(ctx context.Context) error {
	f, err := os.Open(m.w.cfg.Program)
	if err != nil {
		return fmt.Errorf("the program of builds cannot be read: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	_, err = m.g.Write(ctx, buildevent.Program, guestapi.WriteOptions{User: "root", Mode: 0o755, Size: info.Size()}, f)
	return err
}

// input writes the standard input of a program.
type input = func(ctx context.Context, w io.Writer) error

// jsonInput is the input of a verb that reads a request.
func jsonInput(req buildevent.Request) input {
	return func(_ context.Context, w io.Writer) error {
		data, err := json.Marshal(req)
		if err != nil {
			return err
		}
		_, err = io.Copy(w, bytes.NewReader(data))
		return err
	}
}

// verbSpec is one run of the program.
func verbSpec(verb string, more ...string) guestapi.ProcessSpec {
	return guestapi.ProcessSpec{Argv: append([]string{buildevent.Program, verb}, more...), User: "root", Dir: "/"}
}

// maxRaw bounds what the program may print in one run, whatever it says: its own limit is lower.
const maxRaw = 4 * buildevent.MaxOutput

// run runs a verb and hands its events on; each gets those that are not lines. The error of a run that failed is an
// *api.Error.
func (m *box) run(ctx context.Context, verb string, in input, each func(buildevent.Event)) error {
	d := buildevent.NewDecoder()
	var failed *buildevent.Failure
	var step string
	raw, other := 0, guestexec.NewBuffer(guestexec.Limit{Bytes: 4 << 10, Keep: guestexec.Tail})
	m.w.tail = nil
	status, err := guestexec.Stream(ctx, m.g, guestexec.Command{Spec: verbSpec(verb), Input: in}, guestexec.Sink{
		Output: func(e guestapi.Event) error {
			if raw += len(e.Data); raw > maxRaw {
				return api.Errorf(api.TooLarge, "the build printed more than %d MiB", maxRaw>>20)
			}
			if e.Stream != guestapi.StreamStdout {
				other.Add(e.Data)
				return nil
			}
			_, err := d.Write(e.Data, func(e buildevent.Event) error {
				switch {
				case e.Kind == buildevent.KindLog:
					m.w.line(e)
				case e.Kind == buildevent.KindError:
					failed, step = e.Error, e.Step
				case each != nil:
					each(e)
				}
				return nil
			})
			return err
		},
	})
	switch {
	case err != nil:
		return m.lost(err)
	case failed != nil:
		return m.w.failure(failed, step)
	case status.Exit.OutOfMemory:
		return api.Errorf(api.Invalid, "%s ran out of memory: set memory_mb to more", verb).With("field", "memory_mb")
	case status.Exit.Code != 0 || status.Exit.Error != "":
		return api.Errorf(api.Unavailable, "%s of the build ended with status %d: %s%s", verb, status.Exit.Code,
			status.Exit.Error, strings.TrimSpace(string(other.Output().Data)))
	}
	return nil
}

// feed runs a verb whose input is a stream, which must have been written to its end.
func (m *box) feed(ctx context.Context, verb string, write input) error {
	var fault error
	err := m.run(ctx, verb, func(ctx context.Context, w io.Writer) error {
		fault = write(ctx, w)
		return fault
	}, nil)
	if err == nil && fault != nil {
		return api.Wrap(api.Unavailable, fault,
			"the source could not be copied into the machine of the build: deploy again")
	}
	return err
}

// lost explains an error of a guest: a machine that is gone most often ran out of memory or disk.
func (m *box) lost(err error) error {
	if errors.Is(err, guestapi.ErrLost) {
		return api.Wrap(api.Unavailable, err, "the machine of the build was lost: deploy again")
	}
	return err
}

// line passes a line of output on, until there is too much.
func (w *work) line(e buildevent.Event) {
	if w.tail = append(w.tail, e.Line); len(w.tail) > tailLines {
		w.tail = w.tail[1:]
	}
	if w.silenced && e.Level == buildevent.LevelInfo {
		return
	}
	w.passed += int64(len(e.Line)) + 64
	if !w.silenced && w.passed > buildevent.MaxOutput {
		w.silenced = true
		e.Level, e.Line = buildevent.LevelWarn,
			fmt.Sprintf("the output of the build has more than %d MiB: the rest is left out", buildevent.MaxOutput>>20)
	}
	w.Log.Append(e.Level, e.Step, e.Line)
}

// tailLines is how many of the last lines an error has.
const tailLines = 40

// codes are the codes of failures for users.
var codes = map[string]api.Code{
	buildevent.CodeInvalid: api.Invalid, buildevent.CodeTimeout: api.Timeout, buildevent.CodeNoSpace: api.NoSpace,
	buildevent.CodeTooLarge: api.TooLarge, buildevent.CodeUnavailable: api.Unavailable,
	buildevent.CodeBuildFailed: api.Invalid,
}

// failure makes what the program reported an error for the user: the step, what is wrong, what helps, and if a command
// failed the end of what it printed.
func (w *work) failure(f *buildevent.Failure, step string) error {
	text := f.Error()
	if step != "" {
		text = step + ": " + text
	}
	w.Log.Append(buildevent.LevelError, step, text)
	if f.Code == buildevent.CodeBuildFailed && len(w.tail) > 0 {
		text += "\n" + strings.Join(w.tail, "\n")
	}
	e := &api.Error{Code: codes[f.Code], Message: w.masked(text)}
	if f.Field != "" {
		e = e.With("field", f.Field)
	}
	if step != "" {
		e = e.With("step", step)
	}
	return e
}

// masked removes the values of secrets from a text.
func (w *work) masked(text string) string {
	for _, v := range w.Variables {
		if v.Secret && len(v.Value) >= 4 {
			text = strings.ReplaceAll(text, v.Value, api.MaskedValue)
		}
	}
	if len(w.Settings.GitToken) >= 4 {
		text = strings.ReplaceAll(text, w.Settings.GitToken, api.MaskedValue)
	}
	return text
}

// pass gives a machine the source and the plan of another.
func (m *box) pass(ctx context.Context, to *box) error {
	return to.feed(ctx, "restore", func(ctx context.Context, w io.Writer) error {
		return m.stream(ctx, verbSpec("pack"), w, m.w.cfg.SourceBytes*2+buildevent.MaxLine)
	})
}

// stream writes what a run of a program in a machine prints, at most limit bytes.
func (m *box) stream(ctx context.Context, spec guestapi.ProcessSpec, w io.Writer, limit int64) error {
	other := guestexec.NewBuffer(guestexec.Limit{Bytes: 4 << 10, Keep: guestexec.Tail})
	status, err := guestexec.Stream(ctx, m.g, guestexec.Command{Spec: spec}, guestexec.Sink{
		Output: func(e guestapi.Event) error {
			if e.Stream != guestapi.StreamStdout {
				other.Add(e.Data)
				return nil
			}
			if limit -= int64(len(e.Data)); limit < 0 {
				return api.Errorf(api.TooLarge, "the files of the app are too large")
			}
			_, err := w.Write(e.Data)
			return err
		},
	})
	if err != nil {
		return m.lost(err)
	}
	if status.Exit.Code != 0 {
		return api.Errorf(api.Unavailable, "%s of the build failed: %s", spec.Argv[1],
			strings.TrimSpace(string(other.Output().Data)))
	}
	return nil
}
