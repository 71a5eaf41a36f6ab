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
	"github.com/pandastack/pandastack/internal/contract/guestexec"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/image/dockerfile"
)

// agent is the path of the guest agent's program in a guest.
const agent = "/proc/1/exe"

// Bounds of the output that the error of a failed step quotes.
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
			fmt.Sprintf("the step runs with the groups of user %s; group %s is ignored", user, group),
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
	return fmt.Errorf("unknown step kind %q", st.Kind)
}

// stepError returns the error of a step that the author of the build can correct.
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

// unpackSpec returns the process that unpacks a copied stream in the guest.
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

// writeStream writes files of a context in the form that the agent's unpack program reads: names begin with "d/" if the
// destination is a directory, and with "f/" if it is the file itself.
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
	r.CloseWithError(errors.Join(err, errors.New("the reader has stopped")))
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

// execOptions are the options of exec.
type execOptions struct {
	title   string
	timeout time.Duration
	stdin   func(ctx context.Context, w io.Writer) error // nil: none
	stdout  io.Writer                                    // nil: the log
}

// exitGrace is how long a machine may take to report the end of a program whose timeout has passed.
const exitGrace = time.Minute

// exec runs a program in the guest until it exits. The error of a program that fails has the end of its output.
func (b *buildMachine) exec(ctx context.Context, t execOptions, spec guestapi.ProcessSpec) error {
	spec.Timeout = t.timeout
	out := guestexec.Lines{
		Max: maxLine, Keep: tailLines,
		Emit: func(text string) { b.a.log.append(levelInfo, t.title, text) },
	}
	cmd := guestexec.Command{Spec: spec, Overtime: exitGrace}
	if t.stdin != nil {
		cmd.Input = func(ctx context.Context, w io.Writer) error {
			to := bufio.NewWriterSize(w, 64<<10)
			return errors.Join(t.stdin(ctx, to), to.Flush())
		}
	}
	st, err := guestexec.Stream(ctx, b.guest, cmd, guestexec.Sink{Output: func(e guestapi.Event) error {
		if t.stdout != nil && e.Stream == guestapi.StreamStdout {
			_, err := t.stdout.Write(e.Data)
			return err
		}
		out.Add(e.Data)
		return nil
	}})
	out.Flush()
	exit, tail := st.Exit, outputTail(out.Last())
	switch {
	case err != nil && st.PID == 0 && ctx.Err() == nil:
		return stepError(t.title, err.Error())
	case err != nil:
		return err
	case stdinError(st.InputErr) != nil:
		return stdinError(st.InputErr)
	case exit.TimedOut:
		return api.Errorf(api.Timeout, "step %s: took longer than %s%s", t.title, t.timeout, tail).
			With("step", t.title)
	case exit.Error != "":
		return stepError(t.title, exit.Error)
	case exit.OutOfMemory:
		return stepError(t.title, "the machine ran out of memory"+tail)
	case exit.Code != 0:
		return stepError(t.title, fmt.Sprintf("exited with status %d%s", exit.Code, tail))
	}
	return st.InputErr
}

// stdinError returns the error of writing a program's input if it is more than the program's early end, else nil.
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

// snapshot syncs the guest's disk and takes a snapshot of the machine.
func (b *buildMachine) snapshot(ctx context.Context, id hostapi.SnapshotID) error {
	if err := b.exec(ctx, execOptions{title: "sync", timeout: 10 * time.Minute},
		guestapi.ProcessSpec{Argv: []string{agent, "sync"}, User: "root", Dir: "/"}); err != nil {
		return err
	}
	if _, err := b.a.s.host.TakeSnapshot(ctx, b.id, id, b.a.labels()); err != nil {
		return err
	}
	return b.a.onStep("snapshot")
}

// outputTail formats the last lines of an output as the end of a message.
func outputTail(lines []string) string {
	text := strings.Join(lines, "\n")
	if n := len(text) - tailBytes; n > 0 {
		text = "..." + strings.ToValidUTF8(text[n:], "")
	}
	if text == "" {
		return ""
	}
	return ":\n" + text
}
