package guesttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// Env is the environment that a suite runs in.
type Env struct {
	Guest guestapi.Guest
	Dir   string // an existing directory of the guest that the suite may fill
	User  string // owner of the files that the suite makes
}

// patience is how long any operation may take on a busy machine.
const patience = time.Minute

// Context returns the test's context with a deadline that only a fault reaches.
func Context(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), patience, errors.New("test took too long"))
	t.Cleanup(cancel)
	return ctx
}

// Output is the output of a process and its exit.
type Output struct {
	Stdout, Stderr, PTY string
	Exit                guestapi.Exit
}

// Collect follows a process to its end and closes it.
func Collect(t *testing.T, ctx context.Context, p guestapi.Process) Output {
	t.Helper()
	defer func() { _ = p.Close() }()
	var o Output
	for {
		e, err := p.Next(ctx)
		if err != nil {
			t.Fatalf("follow process: %v (so far %+v)", err, o)
		}
		switch {
		case e.Exit != nil:
			o.Exit = *e.Exit
			if _, err := p.Next(ctx); err != io.EOF {
				t.Fatalf("Next after the exit: got error %v, want EOF", err)
			}
			return o
		case e.Stream == guestapi.StreamStdout:
			o.Stdout += string(e.Data)
		case e.Stream == guestapi.StreamStderr:
			o.Stderr += string(e.Data)
		default:
			o.PTY += string(e.Data)
		}
	}
}

// Exec runs a program to its end.
func Exec(t *testing.T, g guestapi.Guest, spec guestapi.ProcessSpec) Output {
	t.Helper()
	ctx := Context(t)
	p, err := g.Start(ctx, spec)
	if err != nil {
		t.Fatalf("start %v %q: %v", spec.Argv, spec.Shell, err)
	}
	return Collect(t, ctx, p)
}

// Basic runs the tests that every guest must pass, including guests in memory.
func Basic(t *testing.T, open func(t *testing.T) Env) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, Env)
	}{
		{"exit codes", exitCodes}, {"two streams", twoStreams}, {"input", input}, {"environment", environment},
		{"working directory", workingDirectory}, {"deadline", deadline}, {"attach", attach}, {"signal", signal},
		{"many at once", manyAtOnce}, {"not a program", notAProgram}, {"file content", fileContent},
		{"file tree", fileTree}, {"file faults", fileFaults}, {"freeze and thaw", freezeThaw}, {"stats", stats},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, open(t)) })
	}
}

func exitCodes(t *testing.T, e Env) {
	for cmd, want := range map[string]int{"true": 0, "false": 1, "exit 7": 7} {
		if o := Exec(t, e.Guest, guestapi.ProcessSpec{Shell: cmd}); o.Exit.Code != want || o.Exit.Signal != 0 {
			t.Errorf("%s: got exit %+v, want code %d", cmd, o.Exit, want)
		}
	}
}

func twoStreams(t *testing.T, e Env) {
	o := Exec(t, e.Guest, guestapi.ProcessSpec{Shell: "echo out; echo err >&2"})
	if o.Stdout != "out\n" || o.Stderr != "err\n" {
		t.Errorf("got %+v", o)
	}
	if o = Exec(t, e.Guest, guestapi.ProcessSpec{Argv: []string{"echo", "a  b", "c"}}); o.Stdout != "a  b c\n" {
		t.Errorf("argv: got %+v", o)
	}
}

func input(t *testing.T, e Env) {
	ctx := Context(t)
	p, err := e.Guest.Start(ctx, guestapi.ProcessSpec{Argv: []string{"cat"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Repeat("0123456789abcdef", 20<<10) // more than any buffer holds
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		if _, err := io.WriteString(p, want); err != nil {
			t.Errorf("write: %v", err)
		}
		if err := p.CloseInput(); err != nil {
			t.Errorf("close input: %v", err)
		}
	})
	if o := Collect(t, ctx, p); o.Stdout != want || o.Exit.Code != 0 {
		t.Errorf("got %d bytes and %+v, want %d bytes", len(o.Stdout), o.Exit, len(want))
	}
	if o := Exec(t, e.Guest, guestapi.ProcessSpec{Argv: []string{"cat"}}); o.Stdout != "" || o.Exit.Code != 0 {
		t.Errorf("without input: got %+v", o)
	}
}

func environment(t *testing.T, e Env) {
	o := Exec(t, e.Guest, guestapi.ProcessSpec{Argv: []string{"env"}, Env: map[string]string{"PANDA": "bam boo=1"}})
	if !strings.Contains("\n"+o.Stdout, "\nPANDA=bam boo=1\n") || !strings.Contains("\n"+o.Stdout, "\nPATH=") {
		t.Errorf("got %q", o.Stdout)
	}
}

func workingDirectory(t *testing.T, e Env) {
	if o := Exec(t, e.Guest, guestapi.ProcessSpec{Shell: "pwd", Dir: e.Dir}); o.Stdout != e.Dir+"\n" {
		t.Errorf("got %q, want %q", o.Stdout, e.Dir)
	}
	_, err := e.Guest.Start(Context(t), guestapi.ProcessSpec{Shell: "pwd", Dir: e.Dir + "/none"})
	if !errors.Is(err, guestapi.ErrNotFound) {
		t.Errorf("missing directory: got error %v", err)
	}
}

func deadline(t *testing.T, e Env) {
	o := Exec(t, e.Guest, guestapi.ProcessSpec{Shell: "echo begun; sleep 600", Timeout: 5 * time.Second})
	if !o.Exit.TimedOut || o.Exit.Code != 137 || o.Stdout != "begun\n" {
		t.Errorf("got %+v", o)
	}
}

func attach(t *testing.T, e Env) {
	ctx := Context(t)
	p, err := e.Guest.Start(ctx, guestapi.ProcessSpec{Shell: "printf 0123456789", Tag: "digits"})
	if err != nil {
		t.Fatal(err)
	}
	if o := Collect(t, ctx, p); o.Stdout != "0123456789" {
		t.Fatalf("got %+v", o)
	}
	for _, ref := range []guestapi.ProcessRef{{PID: p.PID()}, {Tag: "digits"}} {
		again, err := e.Guest.Attach(ctx, ref, guestapi.Offsets{Stdout: 4})
		if err != nil {
			t.Fatalf("attach to %+v: %v", ref, err)
		}
		if o := Collect(t, ctx, again); o.Stdout != "456789" || o.Exit.Code != 0 {
			t.Errorf("attached to %+v: got %+v", ref, o)
		}
	}
	if _, err := e.Guest.Attach(ctx, guestapi.ProcessRef{Tag: "none"}, guestapi.Offsets{}); !errors.Is(
		err,
		guestapi.ErrNotFound,
	) {
		t.Errorf("attach to a process that does not exist: got error %v", err)
	}
}

func signal(t *testing.T, e Env) {
	ctx := Context(t)
	p, err := e.Guest.Start(ctx, guestapi.ProcessSpec{Argv: []string{"sleep", "600"}, Tag: "sleeper"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Guest.Start(ctx, guestapi.ProcessSpec{Argv: []string{"true"}, Tag: "sleeper"}); !errors.Is(
		err,
		guestapi.ErrExists,
	) {
		t.Errorf("start with a tag in use: got error %v", err)
	}
	all, err := e.Guest.Processes(ctx)
	if err != nil {
		t.Fatal(err)
	}
	seen := false
	for _, i := range all {
		seen = seen || i.PID == p.PID() && i.Tag == "sleeper" && i.Exit == nil
	}
	if !seen {
		t.Errorf("the process is not among %+v", all)
	}
	if err := e.Guest.Signal(ctx, guestapi.ProcessRef{Tag: "sleeper"}, 15, true); err != nil {
		t.Fatal(err)
	}
	if o := Collect(t, ctx, p); o.Exit.Signal != 15 || o.Exit.Code != 143 || o.Exit.TimedOut {
		t.Errorf("got %+v", o.Exit)
	}
	if err := e.Guest.Signal(ctx, guestapi.ProcessRef{PID: p.PID()}, 15, false); !errors.Is(err, guestapi.ErrNotFound) {
		t.Errorf("signal to a process that has ended: got error %v", err)
	}
}

func manyAtOnce(t *testing.T, e Env) {
	ctx := Context(t)
	var wg sync.WaitGroup
	defer wg.Wait()
	for i := range 16 {
		wg.Go(func() {
			want := fmt.Sprintf("number %d\n", i)
			p, err := e.Guest.Start(ctx, guestapi.ProcessSpec{Argv: []string{"echo", "number", fmt.Sprint(i)}})
			if err != nil {
				t.Errorf("start: %v", err)
				return
			}
			defer func() { _ = p.Close() }()
			var got []byte
			for {
				ev, err := p.Next(ctx)
				if err != nil {
					t.Errorf("next: %v", err)
					return
				}
				if ev.Exit != nil {
					break
				}
				got = append(got, ev.Data...)
			}
			if string(got) != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func notAProgram(t *testing.T, e Env) {
	ctx := Context(t)
	if _, err := e.Guest.Start(ctx, guestapi.ProcessSpec{Argv: []string{"no-such-program-anywhere"}}); !errors.Is(
		err,
		guestapi.ErrNotFound,
	) {
		t.Errorf("missing program: got error %v", err)
	}
	if _, err := e.Guest.Start(ctx, guestapi.ProcessSpec{}); !errors.Is(err, guestapi.ErrInvalid) {
		t.Errorf("spec without a program: got error %v", err)
	}
}

// put writes a file.
func put(t *testing.T, e Env, name string, content []byte) guestapi.FileInfo {
	t.Helper()
	i, err := e.Guest.Write(
		Context(t),
		name,
		guestapi.WriteOptions{User: e.User, Size: int64(len(content))},
		bytes.NewReader(content),
	)
	if err != nil {
		t.Fatalf("write %s: %v", name, err)
	}
	return i
}

// get reads a file from offset.
func get(t *testing.T, e Env, name string, offset, length int64) []byte {
	t.Helper()
	_, r, err := e.Guest.Read(Context(t), name, e.User, offset, length)
	if err != nil {
		t.Fatalf("read %s: %v", name, err)
	}
	b, err := io.ReadAll(r)
	if err = errors.Join(err, r.Close()); err != nil {
		t.Fatalf("read %s: %v", name, err)
	}
	return b
}

func fileContent(t *testing.T, e Env) {
	name := path.Join(e.Dir, "new/below/file")
	for _, size := range []int{0, 5, 32 << 10, 1<<20 + 3} {
		want := bytes.Repeat([]byte("bamboo!"), size/7+1)[:size]
		if i := put(t, e, name, want); i.Size != int64(size) || i.Path != name || i.Kind != guestapi.KindFile {
			t.Errorf("Write of %d bytes: got %+v", size, i)
		}
		if got := get(t, e, name, 0, -1); !bytes.Equal(got, want) {
			t.Errorf("Read: got %d bytes, want the %d written", len(got), size)
		}
	}
	put(t, e, name, []byte("0123456789"))
	if got := get(t, e, name, 3, 4); string(got) != "3456" {
		t.Errorf("Read of a part: got %q, want 3456", got)
	}
	broken := io.MultiReader(strings.NewReader("half"), failing{})
	whole := guestapi.WriteOptions{User: e.User, Size: -1, Atomic: true}
	if _, err := e.Guest.Write(Context(t), name, whole, broken); err == nil {
		t.Error("atomic Write from a failing source: got no error")
	}
	if got := get(t, e, name, 0, -1); string(got) != "0123456789" {
		t.Errorf("after a failed atomic write: got %q, want the old content", got)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("source broke") }

func fileTree(t *testing.T, e Env) {
	ctx, g := Context(t), e.Guest
	for _, name := range []string{"a", "b/c", "b/d/e"} {
		put(t, e, path.Join(e.Dir, name), []byte(name))
	}
	names := func(depth int) string {
		all, err := g.List(ctx, e.Dir, e.User, depth)
		if err != nil {
			t.Fatal(err)
		}
		var s []string
		for _, i := range all {
			s = append(s, strings.TrimPrefix(i.Path, e.Dir+"/"))
		}
		return strings.Join(s, " ")
	}
	if got := names(1); got != "a b" {
		t.Errorf("List with depth 1: got %s", got)
	}
	if got := names(3); got != "a b b/c b/d b/d/e" {
		t.Errorf("List with depth 3: got %s", got)
	}
	if i, err := g.Move(ctx, path.Join(e.Dir, "b/d/e"), path.Join(e.Dir, "f/e"), e.User); err != nil || i.Size != 5 {
		t.Errorf("Move: got %+v, %v", i, err)
	}
	if i, err := g.MakeDir(ctx, path.Join(e.Dir, "x/y"), e.User); err != nil || i.Kind != guestapi.KindDir {
		t.Errorf("MakeDir: got %+v, %v", i, err)
	}
	if err := g.Remove(ctx, path.Join(e.Dir, "b"), e.User, true); err != nil {
		t.Errorf("Remove: %v", err)
	}
	if got := names(2); got != "a f f/e x x/y" {
		t.Errorf("after Move, MakeDir and Remove: got %s", got)
	}
}

func fileFaults(t *testing.T, e Env) {
	ctx, g := Context(t), e.Guest
	dir, file, none := path.Join(e.Dir, "dir"), path.Join(e.Dir, "file"), path.Join(e.Dir, "none")
	if _, err := g.MakeDir(ctx, dir, e.User); err != nil {
		t.Fatal(err)
	}
	put(t, e, file, nil)
	put(t, e, path.Join(dir, "inside"), nil)
	for _, c := range []struct {
		name string
		do   func() error
		want error
	}{
		{"stat a missing file", func() error { _, err := g.Stat(ctx, none, e.User); return err }, guestapi.ErrNotFound},
		{
			"read a missing file",
			func() error { _, _, err := g.Read(ctx, none, e.User, 0, -1); return err },
			guestapi.ErrNotFound,
		},
		{
			"read directory",
			func() error { _, _, err := g.Read(ctx, dir, e.User, 0, -1); return err },
			guestapi.ErrIsDir,
		},
		{
			"list a missing directory",
			func() error { _, err := g.List(ctx, none, e.User, 1); return err },
			guestapi.ErrNotFound,
		},
		{"list a file", func() error { _, err := g.List(ctx, file, e.User, 1); return err }, guestapi.ErrNotDir},
		{
			"make an existing directory",
			func() error { _, err := g.MakeDir(ctx, dir, e.User); return err },
			guestapi.ErrExists,
		},
		{"remove a missing file", func() error { return g.Remove(ctx, none, e.User, true) }, guestapi.ErrNotFound},
		{"remove a full directory", func() error { return g.Remove(ctx, dir, e.User, false) }, guestapi.ErrInvalid},
		{
			"move a missing file",
			func() error { _, err := g.Move(ctx, none, file, e.User); return err },
			guestapi.ErrNotFound,
		},
	} {
		if err := c.do(); !errors.Is(err, c.want) {
			t.Errorf("%s: got error %v, want %v", c.name, err, c.want)
		}
	}
}

func freezeThaw(t *testing.T, e Env) {
	ctx, g := Context(t), e.Guest
	p, err := g.Start(ctx, guestapi.ProcessSpec{Argv: []string{"sleep", "600"}})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := g.Freeze(ctx, true); err != nil {
			t.Fatalf("freeze: %v", err)
		}
		if err := g.Thaw(ctx); err != nil {
			t.Fatalf("thaw: %v", err)
		}
		if o := Exec(t, g, guestapi.ProcessSpec{Shell: "echo on"}); o.Stdout != "on\n" {
			t.Errorf("after thaw: %+v", o)
		}
	}
	if err := g.Signal(ctx, guestapi.ProcessRef{PID: p.PID()}, 9, false); err != nil {
		t.Fatal(err)
	}
	if err := g.Signal(ctx, guestapi.ProcessRef{PID: p.PID()}, 9, false); !errors.Is(err, guestapi.ErrNotFound) {
		t.Errorf("signal to a killed process: got error %v, want ErrNotFound", err)
	}
	if o := Collect(t, ctx, p); o.Exit.Signal != 9 {
		t.Errorf("stream opened before the freeze: got %+v", o)
	}
}

func stats(t *testing.T, e Env) {
	s, err := e.Guest.Stats(Context(t))
	if err != nil {
		t.Fatal(err)
	}
	if s.MemTotal <= 0 || s.DiskTotal <= 0 || s.CPUs <= 0 || s.Time.IsZero() {
		t.Errorf("got %+v", s)
	}
}
