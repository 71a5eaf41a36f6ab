package fake

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// statement is one command of a script and when it runs: Op "" always, "&&" or "
// " by the last status.
type statement struct {
	Op    string
	Words []word
}

// word is one word of a command. A quoted one is no operator.
type word struct {
	Text   string
	Expand bool // variables in it are replaced
	Quoted bool
}

func literal(argv []string) []word {
	words := make([]word, len(argv))
	for i, a := range argv {
		words[i] = word{Text: a, Quoted: true}
	}
	return words
}

// parse splits a script into statements.
func parse(script string) []statement {
	var all []statement
	current := statement{}
	flush := func(op string) {
		if len(current.Words) > 0 {
			all = append(all, current)
		}
		current = statement{Op: op}
	}
	for _, w := range split(script) {
		if !w.Quoted {
			switch w.Text {
			case ";", "\n":
				flush("")
				continue
			case "&&", "||":
				flush(w.Text)
				continue
			}
		}
		current.Words = append(current.Words, w)
	}
	flush("")
	return all
}

// split cuts text into words and operators.
func split(text string) []word {
	var words []word
	var b strings.Builder
	in, quoted, expand := false, false, true
	end := func() {
		if in {
			words = append(words, word{b.String(), expand, quoted})
		}
		b.Reset()
		in, quoted, expand = false, false, true
	}
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '\'' || c == '"':
			stop := strings.IndexByte(text[i+1:], c)
			if stop < 0 {
				stop = len(text) - i - 1
			}
			b.WriteString(text[i+1 : i+1+stop])
			in, quoted, expand = true, true, expand && c == '"'
			i += stop + 1
		case c == '\\' && i+1 < len(text):
			i++
			b.WriteByte(text[i])
			in, quoted = true, true
		case c == ' ' || c == '\t':
			end()
		case strings.IndexByte(";\n&|<>", c) >= 0:
			op := string(c)
			if i+1 < len(text) && text[i+1] == c && strings.IndexByte("&|>", c) >= 0 {
				op += op
				i++
			}
			end()
			words = append(words, word{Text: op})
		default:
			b.WriteByte(c)
			in = true
		}
	}
	end()
	return words
}

// shell runs the statements of one process. The caller holds the guest's mu.
type shell struct {
	w *guestState
	p *process
}

// step runs the next statement. It returns false if the statement has to wait and be tried again.
func (s shell) step() bool {
	st := s.p.Script[s.p.At]
	if st.Op == "&&" && s.p.Last != 0 || st.Op == "||" && s.p.Last == 0 {
		s.p.At++
		return true
	}
	argv, in, out, add := s.redirect(st.Words)
	code, done := s.command(argv, in, func(text string) {
		switch out {
		case "":
			s.p.print(guestapi.StreamStdout, text)
			return
		case toStderr:
			s.p.print(guestapi.StreamStderr, text)
			return
		}
		var old []byte
		if f, ok := s.w.Files[out]; ok && add {
			old = f.Data
		}
		add = true
		s.report(s.w.put(out, append(slices.Clip(old), text...), 0, s.w.owner(s.p.Spec.User)))
	})
	if !done {
		return false
	}
	if out != "" && out != toStderr && !add {
		if _, ok := s.w.Files[out]; !ok || len(argv) == 0 {
			s.report(s.w.put(out, nil, 0, s.w.owner(s.p.Spec.User)))
		}
	}
	s.p.Last = code
	s.p.At++
	return true
}

// toStderr is the target of ">&2"; no file has such a path.
const toStderr = "&2"

// programs are the commands that the shell knows.
var programs = strings.Fields(
	"[ : bash cat cd chmod chown date echo env exit export false hostname id ls mkdir printf pwd rm sh sleep " +
		"sync test touch true whoami",
)

// redirect removes the redirections from words.
func (s shell) redirect(words []word) (argv []string, in, out string, add bool) {
	for i := 0; i < len(words); i++ {
		w := words[i]
		if !w.Quoted && i+1 < len(words) && (w.Text == ">" || w.Text == ">>" || w.Text == "<") {
			if i+2 < len(words) && words[i+1].Text == "&" && words[i+2].Text == "2" {
				out = toStderr
				i += 2
				continue
			}
			target := s.path(s.expand(words[i+1]))
			if w.Text == "<" {
				in = target
			} else {
				out, add = target, w.Text == ">>"
			}
			i++
			continue
		}
		argv = append(argv, s.expand(w))
	}
	return argv, in, out, add
}

func (s shell) expand(w word) string {
	if !w.Expand {
		return w.Text
	}
	return os.Expand(w.Text, func(name string) string {
		switch name {
		case "?":
			return strconv.Itoa(s.p.Last)
		case "$":
			return strconv.FormatUint(uint64(s.p.PID), 10)
		}
		return s.p.Vars[name]
	})
}

func (s shell) path(p string) string {
	if !strings.HasPrefix(p, "/") {
		p = path.Join(s.p.Dir, p)
	}
	return path.Clean(p)
}

func (s shell) report(err error) int {
	if err == nil {
		return 0
	}
	s.p.print(guestapi.StreamStderr, err.Error()+"\n")
	return 1
}

// command runs argv; with done false it is to be tried again later.
func (s shell) command(argv []string, in string, say func(string)) (code int, done bool) {
	if len(argv) == 0 {
		return 0, true
	}
	name, args := path.Base(argv[0]), argv[1:]
	if key, value, ok := strings.Cut(argv[0], "="); ok && len(args) == 0 && !strings.Contains(key, "/") {
		s.p.Vars[key] = value
		return 0, true
	}
	switch name {
	case "sleep":
		return s.sleep(args)
	case "cat":
		return s.cat(args, in, say)
	case "sh", "bash":
		return s.sub(args)
	case "exit":
		code := s.p.Last
		if len(args) > 0 {
			code, _ = strconv.Atoi(args[0]) // as in shells, 0 if it is no number
		}
		s.p.At = len(s.p.Script)
		return code, true
	}
	return s.simple(name, args, say), true
}

// simple runs a command that never waits.
func (s shell) simple(name string, args []string, say func(string)) int {
	switch name {
	case "true", ":", "sync", "chmod", "chown":
		return 0
	case "false":
		return 1
	case "echo":
		if len(args) > 0 && args[0] == "-n" {
			say(strings.Join(args[1:], " "))
			return 0
		}
		say(strings.Join(args, " ") + "\n")
	case "printf":
		if len(args) > 0 {
			rest := make([]any, len(args)-1)
			for i, a := range args[1:] {
				rest[i] = a
			}
			say(fmt.Sprintf(strings.NewReplacer(`\n`, "\n", `\t`, "\t").Replace(args[0]), rest...))
		}
	case "env":
		for _, k := range slices.Sorted(mapKeys(s.p.Vars)) {
			say(k + "=" + s.p.Vars[k] + "\n")
		}
	case "export":
		for _, a := range args {
			if k, v, ok := strings.Cut(a, "="); ok {
				s.p.Vars[k] = v
			}
		}
	case "pwd":
		say(s.p.Dir + "\n")
	case "hostname":
		say(s.w.Hostname + "\n")
	case "id", "whoami":
		say(s.w.owner(s.p.Spec.User) + "\n")
	case "date":
		say(strconv.FormatInt(s.w.now().Unix(), 10) + "\n")
	default:
		return s.files(name, args, say)
	}
	return 0
}

// files runs a command on files.
func (s shell) files(name string, args []string, say func(string)) int {
	var flags string
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		flags += args[0]
		args = args[1:]
	}
	if name == "ls" && len(args) == 0 {
		args = []string{s.p.Dir}
	}
	code := 0
	for _, a := range args {
		if a == "]" {
			continue
		}
		p := s.path(a)
		f, exists := s.w.Files[p]
		var err error
		switch name {
		case "cd":
			s.p.Dir = p
		case "touch":
			if !exists {
				err = s.w.put(p, nil, 0, s.w.owner(s.p.Spec.User))
			}
		case "mkdir":
			err = s.w.parents(path.Join(p, "x"), s.w.owner(s.p.Spec.User))
		case "rm":
			if exists || !strings.Contains(flags, "f") {
				err = s.w.remove(p, strings.Contains(flags, "r"))
			}
		case "ls":
			for _, q := range s.w.below(p) {
				if path.Dir(q) == p {
					say(path.Base(q) + "\n")
				}
			}
			if !exists {
				err = fmt.Errorf("%s: %w", p, guestapi.ErrNotFound)
			}
		case "test", "[":
			if !exists || strings.Contains(flags, "d") && !f.Dir || strings.Contains(flags, "f") && f.Dir {
				code = 1
			}
		default:
			s.p.print(guestapi.StreamStderr, name+": not found\n")
			return 127
		}
		if err != nil {
			code = s.report(err)
		}
	}
	if len(args) == 0 && name != "cd" {
		s.p.print(guestapi.StreamStderr, name+": not found\n")
		return 127
	}
	return code
}

func (s shell) sleep(args []string) (int, bool) {
	if s.p.until.IsZero() {
		seconds := 0.0
		if len(args) > 0 {
			if args[0] == "infinity" {
				seconds = 1e9
			} else {
				seconds, _ = strconv.ParseFloat(args[0], 64) // 0 if it is no number
			}
		}
		s.p.Left = time.Duration(seconds * float64(time.Second))
		s.p.until = time.Now().Add(s.p.Left)
	}
	if time.Now().Before(s.p.until) {
		if s.p.armed != s.p.until {
			s.p.armed = s.p.until
			s.w.wake(s.p.until)
		}
		return 0, false
	}
	s.p.until, s.p.Left = time.Time{}, 0
	return 0, true
}

func (s shell) cat(args []string, in string, say func(string)) (int, bool) {
	if in != "" {
		args = append(args, in)
	}
	if len(args) > 0 {
		code := 0
		for _, a := range args {
			f, err := s.w.lookup(s.path(a))
			if err != nil {
				code = s.report(err)
				continue
			}
			say(string(f.Data))
		}
		return code, true
	}
	if len(s.p.Input) > 0 {
		say(string(s.p.Input))
		s.p.Input = nil
		s.w.cond.Broadcast()
	}
	return 0, s.p.NoInput
}

// sub replaces "sh -c script" by the statements of the script.
func (s shell) sub(args []string) (int, bool) {
	for len(args) > 0 && args[0] != "-c" && args[0] != "-lc" {
		args = args[1:]
	}
	if len(args) < 2 {
		return 0, true
	}
	script := parse(args[1])
	rest := slices.Clone(s.p.Script[s.p.At+1:])
	s.p.Script = append(slices.Clone(s.p.Script[:s.p.At+1]), append(script, rest...)...)
	return 0, true
}
