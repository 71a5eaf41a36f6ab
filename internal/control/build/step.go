package build

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/image/dockerfile"
)

// agent is the guest agent's own program, as any process of a guest finds it.
const agent = "/proc/1/exe"

// Bounds of what is told of a failing step.
const (
	tailLines = 15
	tailBytes = 2000
)

// runStep runs one step in the machine.
func (a *buildRun) runStep(
	ctx context.Context,
	b *buildMachine,
	st dockerfile.Step,
	files *dockerfile.Selection,
	title string,
) error {
	limit := a.s.cfg.StepTimeout
	if s := time.Duration(a.spec.StepSeconds) * time.Second; s > 0 {
		limit = min(limit, s)
	}
	user, group, _ := strings.Cut(st.User, ":")
	if group != "" && group != user {
		a.log.append(
			levelWarn,
			title,
			fmt.Sprintf("the step runs with the groups of user %s; the group %s is not taken", user, group),
		)
	}
	t := execOptions{title: title, timeout: limit}
	switch st.Kind {
	case dockerfile.KindRun:
		return b.runStep(ctx, t, st, user)
	case dockerfile.KindDir:
		if _, err := b.guest.MakeDir(ctx, st.Dir, user); err != nil && !errors.Is(err, guestapi.ErrExists) {
			return stepError(title, err.Error())
		}
		return nil
	case dockerfile.KindCopy:
		if st.Copy.From >= 0 {
			return b.copyStage(ctx, t, st)
		}
		t.stdin = func(ctx context.Context, w io.Writer) error { return writeStream(ctx, files, w) }
		return b.exec(ctx, t, unpackSpec(st.Copy))
	}
	return fmt.Errorf("a step of kind %q", st.Kind)
}

// stepError is the error of a step that the build's author has to mend.
func stepError(title, what string) error {
	return api.Errorf(api.Invalid, "step %s: %s", title, what).With("step", title)
}

// runStep runs a command.
func (b *buildMachine) runStep(ctx context.Context, t execOptions, st dockerfile.Step, user string) error {
	env := maps.Clone(st.Env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, st.Run.Proxy)
	if user == "" {
		user = "root"
	}
	if st.Run.ScriptPath != "" {
		_, err := b.guest.Write(
			ctx,
			st.Run.ScriptPath,
			guestapi.WriteOptions{User: user, Mode: 0o755, Size: int64(len(st.Run.Script))},
			strings.NewReader(st.Run.Script),
		)
		if err != nil {
			return stepError(t.title, err.Error())
		}
	}
	err := b.exec(ctx, t, guestapi.ProcessSpec{Argv: st.Run.Argv, Env: env, Dir: st.Workdir, User: user})
	if st.Run.ScriptPath != "" && err == nil {
		err = b.guest.Remove(ctx, st.Run.ScriptPath, "root", false)
	}
	return err
}

// unpackSpec is the program that takes a copied stream in the guest.
func unpackSpec(c *dockerfile.Copy) guestapi.ProcessSpec {
	argv := []string{agent, "unpack", "-dest", c.Dest}
	if c.Chown != "" {
		argv = append(argv, "-chown", c.Chown)
	}
	if c.Chmod != "" {
		argv = append(argv, "-chmod", c.Chmod)
	}
	return guestapi.ProcessSpec{Argv: argv, User: "root", Dir: "/", Stdin: true}
}

// writeStream writes the files of a context in the form that the guest takes: below "d/" what goes into the
// destination, as "f/" the file that becomes it.
func writeStream(ctx context.Context, files *dockerfile.Selection, w io.Writer) error {
	r, plain := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := files.WriteTar(ctx, plain, 0, 0)
		plain.CloseWithError(err)
		written <- err
	}()
	prefix := "f/"
	if files.Directory {
		prefix = "d/"
	}
	err := rename(r, w, prefix)
	r.CloseWithError(errors.Join(err, errors.New("nobody reads any more")))
	if werr := <-written; werr != nil && (err == nil || errors.Is(err, werr)) {
		return werr
	}
	return err
}

// rename copies a tar stream with a prefix before every name.
func rename(r io.Reader, w io.Writer, prefix string) error {
	in, out := tar.NewReader(r), tar.NewWriter(w)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return out.Close()
		}
		if err != nil {
			return err
		}
		h.Name, h.Format = prefix+h.Name, tar.FormatPAX
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
	}
}

// copyStage copies files of another stage, from a machine of it into this one.
func (b *buildMachine) copyStage(ctx context.Context, t execOptions, st dockerfile.Step) error {
	c := st.Copy
	if c.Parents || len(c.Exclude) > 0 {
		return stepError(t.title, "--parents and --exclude are not supported together with --from")
	}
	made, err := b.a.buildStage(ctx, c.From)
	if err != nil {
		return err
	}
	other, err := b.a.createMachine(ctx, made)
	if err != nil {
		return err
	}
	argv := []string{agent, "pack"}
	for _, src := range c.Sources {
		argv = append(argv, path.Join("/", src))
	}
	take := *c
	if len(c.Sources) > 1 && !strings.HasSuffix(take.Dest, "/") {
		take.Dest += "/"
	}
	if take.Chown == "" {
		take.Chown = "0:0"
	}
	t.stdin = func(ctx context.Context, w io.Writer) error {
		return other.exec(
			ctx,
			execOptions{title: t.title, timeout: t.timeout, stdout: w},
			guestapi.ProcessSpec{Argv: argv, User: "root", Dir: "/"},
		)
	}
	if err := b.exec(ctx, t, unpackSpec(&take)); err != nil {
		return err
	}
	return other.destroy(ctx)
}

// execOptions is how a program of a step is run.
type execOptions struct {
	title   string
	timeout time.Duration
	stdin   func(ctx context.Context, w io.Writer) error // nil: none
	stdout  io.Writer                                    // nil: the log
}

// exec runs a program in the guest to its end. One that fails is an error with the end of its output.
func (b *buildMachine) exec(ctx context.Context, t execOptions, spec guestapi.ProcessSpec) error {
	spec.Timeout = t.timeout
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	proc, err := b.guest.Start(ctx, spec)
	if err != nil {
		return stepError(t.title, err.Error())
	}
	fed := make(chan error, 1)
	go func() {
		var err error
		if t.stdin != nil {
			to := bufio.NewWriterSize(proc, 64<<10)
			err = t.stdin(ctx, to)
			err = errors.Join(err, to.Flush(), proc.CloseInput())
		}
		fed <- err
	}()
	exit, tail, err := b.follow(ctx, t, proc)
	cancel(errors.New("the program has ended"))
	err = errors.Join(err, proc.Close()) // frees a writer that the program no longer reads
	ferr := <-fed
	switch {
	case err != nil:
		return err
	case stdinError(ferr) != nil:
		return stdinError(ferr)
	case exit.TimedOut:
		return api.Errorf(api.Timeout, "step %s: it took longer than %s%s", t.title, t.timeout, tail).
			With("step", t.title)
	case exit.Error != "":
		return stepError(t.title, exit.Error)
	case exit.OutOfMemory:
		return stepError(t.title, "its machine has no memory left"+tail)
	case exit.Code != 0:
		return stepError(t.title, fmt.Sprintf("it answered %d%s", exit.Code, tail))
	}
	return ferr
}

// stdinError picks out of an error of feeding a program what is to blame for more than that it ended early.
func stdinError(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e
	}
	if errors.Is(err, dockerfile.ErrContext) {
		return api.Wrap(api.Invalid, err, err.Error())
	}
	return nil
}

// follow reads a program's output to its end.
func (b *buildMachine) follow(ctx context.Context, t execOptions, proc guestapi.Process) (guestapi.Exit, string, error) {
	out := lineSplitter{emit: func(text string) { b.a.log.append(levelInfo, t.title, text) }}
	defer out.flush()
	for {
		ev, err := proc.Next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return guestapi.Exit{}, "", errors.New("a program ended without saying how")
		case err != nil:
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return guestapi.Exit{}, "", err
		case ev.Exit != nil:
			out.flush()
			return *ev.Exit, out.tail(), nil
		case t.stdout != nil && ev.Stream == guestapi.StreamStdout:
			if _, err := t.stdout.Write(ev.Data); err != nil {
				return guestapi.Exit{}, "", err
			}
		default:
			out.add(ev.Data)
		}
	}
}

// snapshot syncs the guest's disk and keeps the machine's moment as a snapshot.
func (b *buildMachine) snapshot(ctx context.Context, id hostapi.SnapshotID) error {
	if err := b.exec(ctx, execOptions{title: "sync", timeout: 10 * time.Minute}, guestapi.ProcessSpec{Argv: []string{agent, "sync"}, User: "root", Dir: "/"}); err != nil {
		return err
	}
	if _, err := b.a.s.host.TakeSnapshot(ctx, b.id, id, b.a.labels()); err != nil {
		return err
	}
	return b.a.onStep("snapshot")
}

// lineSplitter cuts output into lines and keeps the last.
type lineSplitter struct {
	emit func(string)
	part []byte
	last []string
}

func (l *lineSplitter) add(data []byte) {
	for _, c := range data {
		switch {
		case c == '\n', len(l.part) >= maxLine:
			l.flush()
			if c != '\n' {
				l.part = append(l.part, c)
			}
		case c == '\r': // progress bars write over themselves
			if len(l.part) > 0 {
				l.flush()
			}
		case c >= ' ' && c != 0x7f || c == '\t':
			l.part = append(l.part, c)
		}
	}
}

func (l *lineSplitter) flush() {
	if len(l.part) == 0 {
		return
	}
	text := strings.ToValidUTF8(string(l.part), "?")
	l.part = l.part[:0]
	l.emit(text)
	if l.last = append(l.last, text); len(l.last) > tailLines {
		l.last = l.last[1:]
	}
}

// tail is the end of the output as the end of a message.
func (l *lineSplitter) tail() string {
	text := strings.Join(l.last, "\n")
	if n := len(text) - tailBytes; n > 0 {
		text = "..." + strings.ToValidUTF8(text[n:], "")
	}
	if text == "" {
		return ""
	}
	return ":\n" + text
}
