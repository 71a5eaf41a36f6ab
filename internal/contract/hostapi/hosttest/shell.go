package hosttest

import (
	"context"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// shell understands a little of sh: words with quotes and $NAME, `;`, newlines, `&&`, `||`, and
// redirections to a file or to stderr. Its programs are true, false, exit, echo, printf, cat, sleep,
// env, pwd, whoami, hostname, touch, rm, mkdir, test -e, sh -c, httpd, NAME=value, and the guest agent's pack and
// unpack.
type shell struct {
	p     *process
	env   map[string]string
	ctx   context.Context
	ended bool
}

// word is a piece of a command line; an operator is never quoted.
type word struct {
	text string
	op   bool
}

// script runs a whole command line and returns the last exit code.
func (s *shell) script(text string) (code int) {
	var argv []word
	run := true
	flush := func() {
		if run && len(argv) > 0 && !s.ended {
			code = s.redirected(argv)
		}
		argv = nil
	}
	for _, w := range append(split(text, s.env), word{";", true}) {
		if !w.op || w.text == ">" || w.text == ">>" || w.text == ">&2" {
			argv = append(argv, w)
			continue
		}
		flush()
		run = w.text == ";" || (w.text == "&&" && code == 0) || (w.text == "||" && code != 0)
		if context.Cause(s.ctx) != nil {
			return 137
		}
	}
	return code
}

// split cuts a line into words and operators.
func split(text string, env map[string]string) (words []word) {
	var cur strings.Builder
	open, quote := false, byte(0)
	end := func() {
		if open {
			words = append(words, word{cur.String(), false})
		}
		cur.Reset()
		open = false
	}
	for i := 0; i < len(text); i++ {
		c, rest := text[i], text[i:]
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case c == '$' && quote != '\'':
			name := strings.TrimPrefix(rest[1:], "{")
			n := 0
			for n < len(name) && (name[n] == '_' || name[n] >= '0' && name[n] <= '9' || name[n]|32 >= 'a' &&
				name[n]|32 <= 'z') {
				n++
			}
			cur.WriteString(env[name[:n]])
			open, i = true, i+n
			if strings.HasPrefix(rest[1:], "{") {
				i += 2
			}
		case quote != 0:
			cur.WriteByte(c)
		case c == '\'' || c == '"':
			quote, open = c, true
		case c == ' ' || c == '\t':
			end()
		case operator(rest) != "":
			op := operator(rest)
			end()
			i += len(op) - 1
			words = append(words, word{strings.Replace(op, "\n", ";", 1), true})
		default:
			cur.WriteByte(c)
			open = true
		}
	}
	end()
	return words
}

func operator(rest string) string {
	for _, op := range []string{"&&", "||", ">&2", ">>", ">", ";", "\n"} {
		if strings.HasPrefix(rest, op) {
			return op
		}
	}
	return ""
}

// resolve makes a path absolute: a relative path starts at the process's directory.
func (s *shell) resolve(p string) string {
	if path.IsAbs(p) || s.p.Dir == "" {
		return p
	}
	return path.Join(s.p.Dir, p)
}

// redirected runs one command with its redirections.
func (s *shell) redirected(words []word) int {
	var argv []string
	to, target := guestapi.StreamStdout, ""
	appending := false
	for i := 0; i < len(words); i++ {
		switch w := words[i]; {
		case !w.op:
			argv = append(argv, w.text)
		case w.text == ">&2":
			to = guestapi.StreamStderr
		case i+1 < len(words):
			i++
			target, appending = words[i].text, w.text == ">>"
		}
	}
	code, out := s.run(argv, to, target == "")
	if target == "" {
		return code
	}
	g := s.p.g
	p, err := g.resolve(s.resolve(target))
	if err != nil {
		return 1
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.writable(p); err != nil {
		return 2
	}
	f := file{mode: 0o644, at: time.Now(), data: []byte(out)}
	if appending {
		f.data = append(slices.Clone(g.files[p].data), out...)
	}
	g.files[p] = f
	return code
}

// command runs one program with its arguments.
func (s *shell) command(argv []string) int {
	code, _ := s.run(argv, guestapi.StreamStdout, true)
	return code
}

// run returns the exit code, and the output if direct is false.
func (s *shell) run(argv []string, to guestapi.Stream, direct bool) (int, string) {
	out := ""
	say := func(text string) {
		if direct {
			s.p.print(to, text)
		} else {
			out += text
		}
	}
	if len(argv) == 0 {
		return 0, ""
	}
	args := argv[1:]
	code := 0
	switch path.Base(argv[0]) {
	case "true":
	case "false":
		code = 1
	case "exit":
		s.ended = true
		code, _ = strconv.Atoi(strings.Join(args, "")) // no number is 0, as it should be
	case "echo":
		say(strings.Join(args, " ") + "\n")
	case "printf":
		say(strings.NewReplacer(`\n`, "\n", `\t`, "\t", `\\`, `\`).Replace(strings.Join(args, "")))
	case "env":
		for _, k := range slices.Sorted(maps.Keys(s.env)) {
			say(k + "=" + s.env[k] + "\n")
		}
	case "pwd":
		dir, _ := s.p.g.resolve(path.Join(s.p.Dir, ".")) // a joined path is never empty
		say(dir + "\n")
	case "whoami":
		user := s.p.User
		if user == "" {
			user = s.p.g.user
		}
		say(user + "\n")
	case "hostname":
		say(s.p.g.host + "\n")
	case "sleep":
		code = s.sleep(args)
	case "cat":
		code = s.cat(args, say)
	case "exe":
		switch strings.Join(args[:min(1, len(args))], "") {
		case "unpack":
			code = s.unpack(args[1:])
		case "pack":
			code = s.pack(args[1:])
		case "sync":
		default:
			code = 2
		}
	case "sync": // files are on the medium at once
	case "httpd":
		code = s.httpd(args)
	case "chown":
		code = s.chown(args)
	case "chmod":
		code = s.chmod(args)
	case "tar":
		code = s.tar(args)
	case "touch", "rm", "mkdir", "test":
		code = s.files(path.Base(argv[0]), args)
	case "sh", "bash":
		if len(args) > 1 {
			inner := &shell{p: s.p, env: maps.Clone(s.env), ctx: s.ctx}
			code = inner.script(args[len(args)-1])
		}
	default:
		if run := s.p.g.programs[path.Base(argv[0])]; run != nil {
			return run(s.ctx, &Exec{Args: args, Stdin: s.p.input, Files: s.p.g, p: s.p}), ""
		}
		if name, value, ok := strings.Cut(argv[0], "="); ok {
			s.env[name] = value
			return s.run(args, to, direct)
		}
		s.p.print(guestapi.StreamStderr, "sh: 1: "+argv[0]+": not found\n")
		code = 127
	}
	return code, out
}

func (s *shell) sleep(args []string) int {
	seconds, err := strconv.ParseFloat(strings.Join(args, ""), 64)
	if err != nil {
		return 1
	}
	timer := time.NewTimer(time.Duration(seconds * float64(time.Second)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return 0
	case <-s.ctx.Done():
		return 137
	}
}

func (s *shell) cat(args []string, say func(string)) int {
	if len(args) == 0 {
		buf := make([]byte, 32<<10)
		for {
			n, err := s.p.input.Read(buf)
			say(string(buf[:n]))
			if err != nil {
				return 0
			}
		}
	}
	for _, a := range args {
		_, r, err := s.p.g.Read(s.ctx, s.resolve(a), "", 0, -1)
		if err != nil {
			s.p.print(guestapi.StreamStderr, "cat: "+a+": No such file or directory\n")
			return 1
		}
		data, _ := io.ReadAll(r) // from memory
		say(string(data))
	}
	return 0
}

func (s *shell) files(program string, args []string) int {
	for _, a := range args {
		if strings.HasPrefix(a, "-") {
			continue
		}
		a = s.resolve(a)
		var err error
		switch program {
		case "touch":
			if _, missing := s.p.g.Stat(s.ctx, a, ""); missing != nil {
				_, err = s.p.g.Write(s.ctx, a, guestapi.WriteOptions{Size: -1}, strings.NewReader(""))
			}
		case "rm":
			err = s.p.g.Remove(s.ctx, a, "", true)
		case "mkdir":
			_, err = s.p.g.MakeDir(s.ctx, a, "")
		case "test":
			_, err = s.p.g.Stat(s.ctx, a, "")
		}
		if err != nil {
			return 1
		}
	}
	return 0
}
