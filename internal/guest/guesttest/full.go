package guesttest

import (
	"errors"
	"io"
	"path"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// Full runs Basic and the tests of guests with a Linux user space.
func Full(t *testing.T, open func(t *testing.T) Env) {
	Basic(t, open)
	for _, c := range []struct {
		name string
		run  func(*testing.T, Env)
	}{
		{"terminal", terminal},
		{"deadline kills the group", groupDeadline},
		{"background child", background},
		{"much output without a follower", unattended},
		{"much output with a follower", attended},
		{"input that no process reads", blockedInput},
		{"watch", watch},
		{"port", port},
		{"socket", socket},
		{"symbolic links", symlinks},
		{"metadata of files", xattrs},
		{"writes in place", inPlace},
		{"outputs by name", reopen},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, open(t)) })
	}
}

func terminal(t *testing.T, e Env) {
	ctx := Context(t)
	p, err := e.Guest.Start(ctx, guestapi.ProcessSpec{Argv: []string{"sh"}, PTY: &guestapi.Size{Rows: 30, Cols: 90}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Resize(ctx, guestapi.Size{Rows: 41, Cols: 101}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(p, "stty size; tty; exit 3\n"); err != nil {
		t.Fatal(err)
	}
	o := Collect(t, ctx, p)
	if !strings.Contains(o.PTY, "41 101") || !strings.Contains(o.PTY, "/dev/pts/") || o.Exit.Code != 3 {
		t.Errorf("got %+v", o)
	}
}

func groupDeadline(t *testing.T, e Env) {
	mark := path.Join(e.Dir, "alive")
	script := "(sleep 6; touch " + mark + ") & echo child; wait"
	o := Exec(t, e.Guest, guestapi.ProcessSpec{Shell: script, Timeout: 3 * time.Second})
	if !o.Exit.TimedOut || o.Stdout != "child\n" {
		t.Errorf("got %+v", o)
	}
	Exec(t, e.Guest, guestapi.ProcessSpec{Shell: "sleep 5"})
	if _, err := e.Guest.Stat(Context(t), mark, e.User); !errors.Is(err, guestapi.ErrNotFound) {
		t.Errorf("a child of the group outlived the deadline: stat: %v", err)
	}
}

// background checks that the exit does not wait for a child that keeps the output open, and that the child survives.
func background(t *testing.T, e Env) {
	mark := path.Join(e.Dir, "written")
	script := "(sleep 1; echo late; echo later; touch " + mark + ") & echo early"
	o := Exec(t, e.Guest, guestapi.ProcessSpec{Shell: script})
	if o.Stdout != "early\n" || o.Exit.Code != 0 {
		t.Errorf("got %+v", o)
	}
	wait := "until test -e " + mark + "; do sleep 0.1; done"
	if o := Exec(t, e.Guest, guestapi.ProcessSpec{Shell: wait, Timeout: patience}); o.Exit.Code != 0 {
		t.Errorf("the child did not survive: %+v", o.Exit)
	}
}

const muchBytes = 3_000_000

// unattended checks that a program without a follower does not wait, and that the end of its output is kept.
func unattended(t *testing.T, e Env) {
	ctx := Context(t)
	script := "read go; yes 0123456 | head -c " + strconv.Itoa(muchBytes) + "; echo; echo end"
	p, err := e.Guest.Start(ctx, guestapi.ProcessSpec{Shell: script, Stdin: true, Tag: "much"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(p, "go\n"); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	for ended := false; !ended; {
		all, err := e.Guest.Processes(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range all {
			ended = ended || i.Tag == "much" && i.Exit != nil
		}
	}
	p, err = e.Guest.Attach(ctx, guestapi.ProcessRef{Tag: "much"}, guestapi.Offsets{})
	if err != nil {
		t.Fatal(err)
	}
	first, err := p.Next(ctx)
	if err != nil || first.Offset == 0 {
		t.Fatalf("first piece begins at %d: %v", first.Offset, err)
	}
	rest := string(first.Data)
	o := Collect(t, ctx, p)
	if rest += o.Stdout; !strings.HasSuffix(rest, "\nend\n") || first.Offset+int64(len(rest)) != muchBytes+5 {
		t.Errorf("kept %d bytes from %d on, ending in %q", len(rest), first.Offset, rest[max(0, len(rest)-10):])
	}
}

// attended checks that a follower loses no output, however much there is.
func attended(t *testing.T, e Env) {
	o := Exec(t, e.Guest, guestapi.ProcessSpec{Shell: "yes 0123456 | head -c " + strconv.Itoa(muchBytes)})
	if len(o.Stdout) != muchBytes || strings.Trim(o.Stdout, "0123456\n") != "" {
		t.Errorf("got %d bytes, or bytes that were not written", len(o.Stdout))
	}
}

// blockedInput checks that closing a process ends a write that no process reads.
func blockedInput(t *testing.T, e Env) {
	ctx := Context(t)
	p, err := e.Guest.Start(ctx, guestapi.ProcessSpec{Argv: []string{"sleep", "600"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := p.Write(make([]byte, 4<<20))
		done <- err
	}()
	select {
	case err := <-done:
		t.Errorf("write ended: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-done:
		if err == nil {
			t.Error("write succeeded, want an error")
		}
	case <-ctx.Done():
		t.Error("write still waits after Close")
	}
	if err := e.Guest.Signal(ctx, guestapi.ProcessRef{PID: p.PID()}, 9, true); err != nil {
		t.Error(err)
	}
}

func watch(t *testing.T, e Env) {
	ctx := Context(t)
	w, err := e.Guest.Watch(ctx, e.Dir, e.User, true)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	// Changes in a new directory before it is watched are missed; only the files they leave are reported. So the
	// second step waits for the first.
	for _, step := range []struct {
		script string
		want   []guestapi.FileEvent
	}{
		{"mkdir -p sub/deep", []guestapi.FileEvent{
			{Op: guestapi.OpCreate, Path: "sub"},
			{Op: guestapi.OpCreate, Path: "sub/deep"},
		}},
		{"echo x > sub/deep/file && chmod 600 sub/deep/file && mv sub/deep/file sub/other && rm sub/other && " +
			"echo y > last",
			[]guestapi.FileEvent{
				{Op: guestapi.OpCreate, Path: "sub/deep/file"},
				{Op: guestapi.OpWrite, Path: "sub/deep/file"},
				{Op: guestapi.OpChmod, Path: "sub/deep/file"},
				{Op: guestapi.OpRename, Path: "sub/deep/file"},
				{Op: guestapi.OpCreate, Path: "sub/other"},
				{Op: guestapi.OpRemove, Path: "sub/other"},
				{Op: guestapi.OpWrite, Path: "last"},
			}},
	} {
		Exec(t, e.Guest, guestapi.ProcessSpec{Shell: step.script, Dir: e.Dir})
		for _, want := range step.want {
			for got := (guestapi.FileEvent{}); got != want; {
				if got, err = w.Next(ctx); err != nil {
					t.Fatalf("waiting for %+v: %v", want, err)
				}
			}
		}
	}
	if _, err := e.Guest.Watch(ctx, path.Join(e.Dir, "last"), e.User, false); !errors.Is(err, guestapi.ErrNotDir) {
		t.Errorf("Watch of a file: got error %v", err)
	}
}

func symlinks(t *testing.T, e Env) {
	put(t, e, path.Join(e.Dir, "real"), []byte("1"))
	Exec(t, e.Guest, guestapi.ProcessSpec{Shell: "ln -s real link", Dir: e.Dir})
	i, err := e.Guest.Stat(Context(t), path.Join(e.Dir, "link"), e.User)
	if err != nil || i.Kind != guestapi.KindSymlink || i.Target != "real" {
		t.Errorf("Stat of a link: got %+v, %v", i, err)
	}
	linkEnds(t, e)
	put(t, e, path.Join(e.Dir, "link"), []byte("22"))
	if got := get(t, e, path.Join(e.Dir, "real"), 0, -1); string(got) != "22" {
		t.Errorf("a write did not follow the link: %q", got)
	}
}

// linkEnds checks that every description of a link says where it leads, also through other links and to nothing.
func linkEnds(t *testing.T, e Env) {
	Exec(t, e.Guest, guestapi.ProcessSpec{
		Shell: "mkdir d && chmod 700 d && chmod 640 real && ln -s $PWD/link far && ln -s d to-dir && " +
			"ln -s nothing lost && ln -s ring ring && ln -s /dev/null device",
		Dir: e.Dir,
	})
	at := func(name string) string { return path.Join(e.Dir, name) }
	want := map[string]guestapi.LinkEnd{
		"link":   {Path: at("real"), Kind: guestapi.KindFile, Mode: 0o640},
		"far":    {Path: at("real"), Kind: guestapi.KindFile, Mode: 0o640},
		"to-dir": {Path: at("d"), Kind: guestapi.KindDir, Mode: 0o700},
		"lost":   {Path: at("lost")},
		"ring":   {Path: at("ring")},
		"device": {Path: "/dev/null", Kind: guestapi.KindOther, Mode: 0o666},
	}
	check := func(what string, i guestapi.FileInfo) {
		t.Helper()
		w, isLink := want[i.Name]
		switch {
		case !isLink && i.End != nil:
			t.Errorf("%s of %s: leads to %+v, want no end of a file that is no link", what, i.Name, *i.End)
		case isLink && (i.End == nil || *i.End != w):
			t.Errorf("%s of %s: got end %+v, want %+v", what, i.Name, i.End, w)
		}
	}
	list, err := e.Guest.List(Context(t), e.Dir, e.User, 1)
	if err != nil || len(list) != len(want)+2 {
		t.Errorf("List: got %+v, %v, want %d links, their file and their directory", list, err, len(want))
	}
	for _, i := range list {
		check("List", i)
		one, err := e.Guest.Stat(Context(t), i.Path, e.User)
		if err != nil {
			t.Error(err)
		}
		check("Stat", one)
	}
	want["moved"] = want["far"]
	i, err := e.Guest.Move(Context(t), at("far"), at("moved"), e.User)
	if err != nil {
		t.Error(err)
	}
	check("Move", i)
}

// inPlace checks that a write that is not atomic keeps the file: its hard links, the reader that has it open and the
// watcher of its directory.
func inPlace(t *testing.T, e Env) {
	ctx, g := Context(t), e.Guest
	name := path.Join(e.Dir, "log")
	put(t, e, name, []byte("first, and long"))
	Exec(t, g, guestapi.ProcessSpec{Shell: "ln log other", Dir: e.Dir})
	watching, err := g.Watch(ctx, e.Dir, e.User, false)
	if err != nil {
		t.Fatal(err)
	}
	defer watching.Close()
	put(t, e, name, []byte("second"))
	if got := get(t, e, path.Join(e.Dir, "other"), 0, -1); string(got) != "second" {
		t.Errorf("a hard link of a file that was written: got %q, want the new content", got)
	}
	for {
		event, err := watching.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if event.Path != "log" {
			t.Errorf("watcher: got an event of %q, want only those of the file that was written", event.Path)
		}
		if event.Op == guestapi.OpWrite {
			break
		}
	}
	whole := guestapi.WriteOptions{User: e.User, Size: 5, Atomic: true}
	if _, err := g.Write(ctx, name, whole, strings.NewReader("third")); err != nil {
		t.Fatal(err)
	}
	if got := get(t, e, path.Join(e.Dir, "other"), 0, -1); string(got) != "second" {
		t.Errorf("a hard link of a file that was replaced: got %q, want the old content", got)
	}
}
