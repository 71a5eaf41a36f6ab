// Package demo does the main job of a node in front of a person, and checks every step of it.
//
// It owns the story and its words; it speaks to a node through the public client only, creates what it
// deletes, and leaves nothing behind whatever happens. One Run at a time per output.
package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
)

// Step is one thing that was done.
type Step struct {
	Name   string  `json:"name"`
	TookMS float64 `json:"took_ms"`
	Text   string  `json:"text"` // what is to be seen
}

// Options of a run.
type Options struct {
	Template string
	Children int
	Report   func(Step) // called as each step ends; may be nil
}

// cleanup bounds the deletion of everything at the end.
const cleanup = time.Minute

// memory is a program that keeps something in memory alone: a word it made up, and what it was told.
const memory = `
import os, secrets
word, told = secrets.token_hex(4), []
while True:
    with open("/tmp/ask") as f: told.append(f.read().strip())
    with open("/tmp/answer", "w") as f: f.write(word + " " + ",".join(told) + "\n")
`

// script is one run.
type script struct {
	cl    *client.Client
	opt   Options
	steps []Step
	made  []api.SandboxID
}

// Run does every step and gives what each took. The first step that does not do what it promises ends
// the run with an error that says so; what was made is deleted in any case.
func Run(ctx context.Context, cl *client.Client, opt Options) (steps []Step, err error) {
	s := &script{cl: cl, opt: opt}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
		defer cancel()
		err = errors.Join(err, s.clean(end))
		steps = s.steps
	}()
	id, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.fork(ctx, id); err != nil {
		return nil, err
	}
	return nil, s.hibernateAndWake(ctx, id)
}

// step runs do, measures it, and tells the text it answers.
func (s *script) step(name string, do func() (string, error)) error {
	began := time.Now()
	text, err := do()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	one := Step{Name: name, TookMS: float64(time.Since(began).Microseconds()) / 1000, Text: text}
	s.steps = append(s.steps, one)
	if s.opt.Report != nil {
		s.opt.Report(one)
	}
	return nil
}

// sh runs a line and gives its output; a failure of the line is an error with its words.
func (s *script) sh(ctx context.Context, id api.SandboxID, line string) (string, error) {
	res, err := s.cl.Sandboxes.Exec(ctx, id, api.ExecRequest{Cmd: line, TimeoutSeconds: 60})
	if err != nil {
		return "", err
	}
	if res.ExitCode != 0 {
		return "", fmt.Errorf("%q ended with %d: %s", line, res.ExitCode, strings.TrimSpace(res.Stderr))
	}
	return strings.TrimSpace(res.Stdout), nil
}

// ask tells the program in memory a word and gives its answer.
func (s *script) ask(ctx context.Context, id api.SandboxID, word string) (string, error) {
	return s.sh(ctx, id, "echo "+word+" >/tmp/ask; cat /tmp/answer")
}

func (s *script) begin(ctx context.Context) (id api.SandboxID, err error) {
	err = s.step("create", func() (string, error) {
		sb, err := s.cl.Sandboxes.Create(ctx, api.CreateRequest{Template: s.opt.Template})
		if err != nil {
			return "", err
		}
		id, s.made = sb.ID, append(s.made, sb.ID)
		return fmt.Sprintf(
			"%s: a %s with %d MiB (%s), restored in %d ms",
			sb.ID,
			sb.Isolation,
			sb.MemoryMB,
			sb.Accelerator,
			sb.BootMS,
		), nil
	})
	if err != nil {
		return "", err
	}
	err = s.step("run Python", func() (string, error) {
		out, err := s.sh(
			ctx,
			id,
			`python3 -c 'import platform; print(sum(range(1000)), "from Python", platform.python_version(), "on", platform.release())'`,
		)
		if err == nil && !strings.HasPrefix(out, "499500 ") {
			err = fmt.Errorf("printed %q", out)
		}
		return out, err
	})
	if err != nil {
		return "", err
	}
	return id, s.step("write and read a file", func() (string, error) {
		content := bytes.Repeat([]byte("bamboo\x00\xff\n"), 100<<10)
		if _, err := s.cl.Files.Write(ctx, id, "/tmp/bamboo.bin", bytes.NewReader(content), int64(len(content)), client.WriteOptions{}); err != nil {
			return "", err
		}
		r, err := s.cl.Files.Read(ctx, id, "/tmp/bamboo.bin")
		if err != nil {
			return "", err
		}
		back, err := io.ReadAll(r)
		if err = errors.Join(err, r.Close()); err == nil && !bytes.Equal(back, content) {
			err = fmt.Errorf("%d bytes came back different", len(back))
		}
		return fmt.Sprintf("%d bytes there and back, equal", len(back)), err
	})
}

// fork starts the program that keeps a word in memory, forks, and shows that every child goes on from
// that memory and disk, apart from the others, and that the parent went on.
func (s *script) fork(ctx context.Context, id api.SandboxID) error {
	var before string
	err := s.step("keep a word in memory", func() (string, error) {
		_, err := s.sh(ctx, id, "mkfifo /tmp/ask /tmp/answer")
		if err != nil {
			return "", err
		}
		if _, err := s.cl.Sandboxes.Exec(ctx, id, api.ExecRequest{Cmd: "exec python3 -c '" + memory + "'", Background: true}); err != nil {
			return "", err
		}
		before, err = s.ask(ctx, id, "parent")
		return fmt.Sprintf("a program in the sandbox says %q; the first word is nowhere but in its memory", before), err
	})
	if err != nil {
		return err
	}
	var children []api.Sandbox
	err = s.step(fmt.Sprintf("fork it live, %d ways", s.opt.Children), func() (string, error) {
		tree, err := s.cl.Sandboxes.ForkTree(ctx, id, api.ForkTreeRequest{Count: s.opt.Children})
		if err != nil {
			return "", err
		}
		children = tree.Children
		for _, c := range children {
			s.made = append(s.made, c.ID)
		}
		if len(children) != s.opt.Children {
			return "", fmt.Errorf("%d children were made: %+v", len(children), tree.Errors)
		}
		return fmt.Sprintf("%d children; the parent stood still for %d ms", len(children), tree.PauseMS), nil
	})
	if err != nil {
		return err
	}
	for i, c := range children {
		name := fmt.Sprintf("child %d", i+1)
		if err := s.step(name, func() (string, error) { return s.child(ctx, c.ID, i, before) }); err != nil {
			return err
		}
	}
	return s.step("the parent", func() (string, error) {
		said, err := s.ask(ctx, id, "parent-again")
		if err == nil && said != before+",parent-again" {
			err = fmt.Errorf("said %q", said)
		}
		if err == nil {
			_, err = s.sh(ctx, id, "test ! -e /tmp/child")
		}
		return fmt.Sprintf("says %q, and has no child's file", said), err
	})
}

func (s *script) child(ctx context.Context, id api.SandboxID, i int, before string) (string, error) {
	word := fmt.Sprintf("child%d", i+1)
	said, err := s.ask(ctx, id, word)
	if err != nil {
		return "", err
	}
	if said != before+","+word {
		return "", fmt.Errorf("said %q after the parent's %q", said, before)
	}
	_, err = s.sh(
		ctx,
		id,
		fmt.Sprintf(
			"test ! -e /tmp/child && echo %s >/tmp/child && test $(stat -c %%s /tmp/bamboo.bin) = %d",
			word,
			9*(100<<10),
		),
	)
	return fmt.Sprintf("says %q, has the parent's file, and wrote its own", said), err
}

// hibernateAndWake hibernates the sandbox, wakes it, and asks the program again.
func (s *script) hibernateAndWake(ctx context.Context, id api.SandboxID) error {
	err := s.step("hibernate", func() (string, error) {
		return "memory and disk are files now; no process is left", s.cl.Sandboxes.Hibernate(ctx, id)
	})
	if err != nil {
		return err
	}
	err = s.step("wake", func() (string, error) {
		return "", s.cl.Sandboxes.Wake(ctx, id)
	})
	if err != nil {
		return err
	}
	return s.step("ask again", func() (string, error) {
		said, err := s.ask(ctx, id, "woken")
		if err == nil && !strings.HasSuffix(said, ",parent-again,woken") {
			err = fmt.Errorf("said %q", said)
		}
		return fmt.Sprintf("the same program says %q", said), err
	})
}

// clean deletes everything the run made.
func (s *script) clean(ctx context.Context) error {
	if len(s.made) == 0 {
		return nil
	}
	return s.step("delete all of it", func() (string, error) {
		var all error
		for _, id := range s.made {
			all = errors.Join(all, s.cl.Sandboxes.Delete(ctx, id))
		}
		return fmt.Sprintf("%d sandboxes", len(s.made)), all
	})
}
