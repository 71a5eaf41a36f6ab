// Package demo shows what a node does, step by step, and checks every step.
//
// It uses only the public client, and deletes all sandboxes that it created, also when a step fails.
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

// Step is one step of the demo and its result.
type Step struct {
	Name   string  `json:"name"`
	TookMS float64 `json:"took_ms"`
	Text   string  `json:"text"` // what the step shows
}

// Options of a run.
type Options struct {
	Template string
	Children int
	Report   func(Step) // called after each step; may be nil
}

// cleanup is the time limit for deleting all sandboxes at the end.
const cleanup = time.Minute

// memory is a program that keeps state only in memory: a random word, and all words it has read from a pipe.
const memory = `
import os, secrets
word, seen = secrets.token_hex(4), []
while True:
    with open("/tmp/ask") as f: seen.append(f.read().strip())
    with open("/tmp/reply", "w") as f: f.write(word + " " + ",".join(seen) + "\n")
`

// script is one run of the demo.
type script struct {
	cl    *client.Client
	opt   Options
	steps []Step
	made  []api.SandboxID
}

// Run runs all steps and returns them with their times. If a step fails its check, Run deletes the sandboxes it created
// and returns an error that names the step.
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

// step runs do, measures it, and reports the text that do returns.
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

// sh runs a shell command and returns its trimmed output. If the exit code is not 0, the error contains standard error.
func (s *script) sh(ctx context.Context, id api.SandboxID, line string) (string, error) {
	res, err := s.cl.Sandboxes.Exec(ctx, id, api.ExecRequest{Cmd: line, TimeoutSeconds: 60})
	if err != nil {
		return "", err
	}
	if res.ExitCode != 0 {
		return "", fmt.Errorf("%q exited with code %d: %s", line, res.ExitCode, strings.TrimSpace(res.Stderr))
	}
	return strings.TrimSpace(res.Stdout), nil
}

// ask sends a word to the program memory and returns its reply.
func (s *script) ask(ctx context.Context, id api.SandboxID, word string) (string, error) {
	return s.sh(ctx, id, "echo "+word+" >/tmp/ask; cat /tmp/reply")
}

// begin creates a sandbox, runs Python in it, and writes and reads a file.
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
			`python3 -c 'import platform; print(sum(range(1000)), "from Python", platform.python_version(), `+
				`"on", platform.release())'`,
		)
		if err == nil && !strings.HasPrefix(out, "499500 ") {
			err = fmt.Errorf("printed %q, want it to begin with 499500", out)
		}
		return out, err
	})
	if err != nil {
		return "", err
	}
	return id, s.step("write and read a file", func() (string, error) {
		content := bytes.Repeat([]byte("bamboo\x00\xff\n"), 100<<10)
		_, err := s.cl.Files.Write(ctx, id, "/tmp/bamboo.bin",
			bytes.NewReader(content), int64(len(content)), client.WriteOptions{})
		if err != nil {
			return "", err
		}
		r, err := s.cl.Files.Read(ctx, id, "/tmp/bamboo.bin")
		if err != nil {
			return "", err
		}
		back, err := io.ReadAll(r)
		if err = errors.Join(err, r.Close()); err == nil && !bytes.Equal(back, content) {
			err = fmt.Errorf("the %d bytes that were read differ from those written", len(back))
		}
		return fmt.Sprintf("wrote and read back %d bytes", len(back)), err
	})
}

// fork starts the program memory, forks the sandbox, and shows that every child continues from the memory and disk of
// the parent, independently of the other children, and that the parent keeps running.
func (s *script) fork(ctx context.Context, id api.SandboxID) error {
	var before string
	err := s.step("keep a word in memory", func() (string, error) {
		_, err := s.sh(ctx, id, "mkfifo /tmp/ask /tmp/reply")
		if err != nil {
			return "", err
		}
		program := api.ExecRequest{Cmd: "exec python3 -c '" + memory + "'", Background: true}
		if _, err := s.cl.Sandboxes.Exec(ctx, id, program); err != nil {
			return "", err
		}
		before, err = s.ask(ctx, id, "parent")
		return fmt.Sprintf("a program in the sandbox prints %q; the first word exists only in its memory", before), err
	})
	if err != nil {
		return err
	}
	var children []api.Sandbox
	err = s.step(fmt.Sprintf("fork the running sandbox into %d children", s.opt.Children), func() (string, error) {
		tree, err := s.cl.Sandboxes.ForkTree(ctx, id, api.ForkTreeRequest{Count: s.opt.Children})
		if err != nil {
			return "", err
		}
		children = tree.Children
		for _, c := range children {
			s.made = append(s.made, c.ID)
		}
		if len(children) != s.opt.Children {
			return "", fmt.Errorf("%d children were created, want %d: %+v", len(children), s.opt.Children, tree.Errors)
		}
		return fmt.Sprintf("%d children; the parent was paused for %d ms", len(children), tree.PauseMS), nil
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
	return s.step("check the parent", func() (string, error) {
		reply, err := s.ask(ctx, id, "parent-again")
		if want := before + ",parent-again"; err == nil && reply != want {
			err = fmt.Errorf("printed %q, want %q", reply, want)
		}
		if err == nil {
			_, err = s.sh(ctx, id, "test ! -e /tmp/child")
		}
		return fmt.Sprintf("prints %q, and has none of the children's files", reply), err
	})
}

// child checks that a child continues from the parent's memory and disk, and sees no other child's file.
func (s *script) child(ctx context.Context, id api.SandboxID, i int, before string) (string, error) {
	word := fmt.Sprintf("child%d", i+1)
	reply, err := s.ask(ctx, id, word)
	if err != nil {
		return "", err
	}
	if want := before + "," + word; reply != want {
		return "", fmt.Errorf("printed %q, want %q", reply, want)
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
	return fmt.Sprintf("prints %q, has the parent's file, and wrote its own", reply), err
}

// hibernateAndWake hibernates the sandbox, wakes it, and checks that the program still runs.
func (s *script) hibernateAndWake(ctx context.Context, id api.SandboxID) error {
	err := s.step("hibernate", func() (string, error) {
		return "memory and disk are stored in files; no process is running", s.cl.Sandboxes.Hibernate(ctx, id)
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
	return s.step("check the program again", func() (string, error) {
		reply, err := s.ask(ctx, id, "woken")
		if err == nil && !strings.HasSuffix(reply, ",parent-again,woken") {
			err = fmt.Errorf("printed %q, want it to end with \",parent-again,woken\"", reply)
		}
		return fmt.Sprintf("the same program prints %q", reply), err
	})
}

// clean deletes all sandboxes of the run.
func (s *script) clean(ctx context.Context) error {
	if len(s.made) == 0 {
		return nil
	}
	return s.step("delete the sandboxes", func() (string, error) {
		var all error
		for _, id := range s.made {
			all = errors.Join(all, s.cl.Sandboxes.Delete(ctx, id))
		}
		return fmt.Sprintf("%d sandboxes deleted", len(s.made)), all
	})
}
