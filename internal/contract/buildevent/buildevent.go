// Package buildevent has the messages between the builder of apps and the program pandastack-build, which plans and
// executes builds inside a machine: a Request in, a stream of Events out, one JSON object a line.
//
// The machine is not trusted: Decode checks and bounds every line that comes out of it.
package buildevent

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/pandastack/pandastack/internal/lib/knownhosts"
)

// Bounds of what a machine may send.
const (
	MaxLine    = 1 << 20  // bytes of one event
	MaxText    = 8 << 10  // bytes of one line of output, or of a message
	MaxOutput  = 16 << 20 // bytes of output of one build
	MaxSteps   = 64       // steps of a plan
	MaxEnv     = 256      // variables of a result
	MaxCommand = 32 << 10 // bytes of a start command
	MaxFile    = 512 << 10
)

// Paths in the machine: Dir has the source and the plan, App is where the app is built.
const (
	Dir     = "/var/lib/pandastack/build"
	App     = "/app"
	Program = "/usr/local/lib/pandastack/pandastack-build"
)

// Request is what one run of the program gets on its standard input.
type Request struct {
	Settings  Settings          `json:"settings"`
	Git       *Git              `json:"git,omitempty"`       // of clone
	Variables map[string]string `json:"variables,omitempty"` // of plan and step
	Mirrors   *Mirrors          `json:"mirrors,omitempty"`   // of setup
	Env       map[string]string `json:"env,omitempty"`       // of every command: where package managers find mirrors
	Limits    Limits            `json:"limits"`
	Step      int               `json:"step,omitempty"` // of step: its index in the plan
}

// Settings are those of an app that a plan depends on.
//
// An empty field means what the repository says, or what is found.
type Settings struct {
	Framework       string `json:"framework,omitempty"`
	InstallCommand  string `json:"install_command,omitempty"`
	BuildCommand    string `json:"build_command,omitempty"`
	StartCommand    string `json:"start_command,omitempty"`
	RootDirectory   string `json:"root_directory,omitempty"`
	OutputDirectory string `json:"output_directory,omitempty"`
	Port            int    `json:"port,omitempty"`
}

// Git says what to clone. Token and Key reach git through its environment and a file in memory, and nothing else.
type Git struct {
	URL    string `json:"url"`
	Ref    string `json:"ref,omitempty"`    // branch, tag or commit; "" is the branch of the remote
	Commit string `json:"commit,omitempty"` // of Ref; "": the one that Ref is at
	Token  string `json:"token,omitempty"`
	Key    string `json:"key,omitempty"` // private key for ssh
	// HostKeys are the keys that servers must have, as lines of a file known_hosts; "": those that they have now.
	HostKeys   string `json:"host_keys,omitempty"`
	Submodules bool   `json:"submodules,omitempty"`
	LFS        bool   `json:"lfs,omitempty"`
}

// Limits bound the source and the run of one command; 0 is the default of the program.
type Limits struct {
	SourceBytes int64 `json:"source_bytes,omitempty"`
	SourceFiles int   `json:"source_files,omitempty"`
	OutputBytes int64 `json:"output_bytes,omitempty"`
	Processes   int   `json:"processes,omitempty"`
}

// Mirrors says how package managers of a machine reach what they download.
type Mirrors struct {
	Certificates string            `json:"certificates,omitempty"` // PEM, in addition to those of the template
	Hosts        []string          `json:"hosts,omitempty"`        // lines of /etc/hosts
	Files        map[string]string `json:"files,omitempty"`        // configuration files, by absolute path
	Debian       string            `json:"debian,omitempty"`       // URL in place of the archive's
}

// Kind says what an event is about.
type Kind string

// The kinds of events. An event has the field of its kind.
const (
	KindLog    Kind = "log"    // Level, Step, Line
	KindSource Kind = "source" // Source: the source is there
	KindPlan   Kind = "plan"   // Plan
	KindResult Kind = "result" // Result: the build has ended
	KindError  Kind = "error"  // Error: the run failed; nothing follows
)

// The levels of lines.
const (
	LevelInfo  = "info"
	LevelWarn  = "warn"
	LevelError = "error"
)

// Event is one line from the program.
type Event struct {
	Kind   Kind     `json:"kind"`
	Level  string   `json:"level,omitempty"`
	Step   string   `json:"step,omitempty"`
	Line   string   `json:"line,omitempty"`
	Source *Source  `json:"source,omitempty"`
	Plan   *Plan    `json:"plan,omitempty"`
	Result *Result  `json:"result,omitempty"`
	Error  *Failure `json:"error,omitempty"`
}

// Source describes what was cloned.
type Source struct {
	Commit  string `json:"commit,omitempty"`
	Message string `json:"message,omitempty"` // first line
	// HostKeys are those of the servers that were reached by ssh, if the request had none.
	HostKeys string `json:"host_keys,omitempty"`
}

// Plan is what a build will do.
type Plan struct {
	Framework string `json:"framework,omitempty"`
	Steps     []Step `json:"steps,omitempty"`
	// Dockerfile is the text of one in the repository, which is built in place of the steps.
	Dockerfile string `json:"dockerfile,omitempty"`
}

// Step is one step of a plan.
type Step struct {
	Name string `json:"name"`
	Key  string `json:"key"`            // hash of all that its result depends on, of the steps before it too
	Keep bool   `json:"keep,omitempty"` // its result is worth keeping for later builds
}

// Result is what a build found out. Its fields are those of appspec.Result.
type Result struct {
	Framework      string            `json:"framework,omitempty"`
	Runtime        string            `json:"runtime,omitempty"`
	RuntimeVersion string            `json:"runtime_version,omitempty"`
	Start          string            `json:"start,omitempty"`
	Workdir        string            `json:"workdir,omitempty"`
	Env            map[string]string `json:"env,omitempty"`
	Port           int               `json:"port,omitempty"`
	Static         *Static           `json:"static,omitempty"`
}

// Static is the output of a build that is files alone.
type Static struct {
	Dir      string `json:"dir"` // absolute
	SPA      bool   `json:"spa,omitempty"`
	NotFound string `json:"not_found,omitempty"` // relative to Dir
}

// Failure is why a run failed.
type Failure struct {
	Code    string `json:"code"` // invalid, timeout, no_space, too_large, unavailable or build_failed
	Message string `json:"message"`
	Field   string `json:"field,omitempty"` // the setting that would help
	Hint    string `json:"hint,omitempty"`
}

// Error returns the message and the hint.
func (f *Failure) Error() string {
	if f.Hint == "" {
		return f.Message
	}
	return f.Message + ": " + f.Hint
}

// ErrFormat is the error of a line that is not an event.
var ErrFormat = errors.New("malformed event of a build")

// Decode reads one line. Everything in the event is within the bounds of this package, and valid UTF-8.
func Decode(line []byte) (Event, error) {
	var e Event
	if len(line) > MaxLine {
		return e, fmt.Errorf("%w: %d bytes", ErrFormat, len(line))
	}
	if err := json.Unmarshal(line, &e); err != nil {
		return Event{}, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	ok := false
	switch e.Kind {
	case KindLog:
		ok = true
		e.Source, e.Plan, e.Result, e.Error = nil, nil, nil, nil
	case KindSource:
		ok = e.Source.valid()
		e = Event{Kind: e.Kind, Source: e.Source}
	case KindPlan:
		ok = e.Plan.valid()
		e = Event{Kind: e.Kind, Plan: e.Plan}
	case KindResult:
		ok = e.Result.valid()
		e = Event{Kind: e.Kind, Result: e.Result}
	case KindError:
		ok = e.Error.valid()
		e = Event{Kind: e.Kind, Step: e.Step, Error: e.Error}
	}
	if !ok {
		return Event{}, fmt.Errorf("%w of kind %.20q", ErrFormat, e.Kind)
	}
	e.Step, e.Line = text(e.Step, 100), text(e.Line, MaxText)
	if e.Level != LevelWarn && e.Level != LevelError {
		e.Level = LevelInfo
	}
	return e, nil
}

// text bounds a text and removes what is not printable, other than tabs and escape sequences of terminals.
func text(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit]
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t' || r == '\x1b':
			return r
		case r < ' ' || r == 0x7f || r == utf8.RuneError:
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))
}

var (
	commitForm = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})?$`)
	keyForm    = regexp.MustCompile(`^[0-9a-f]{64}$`)
	wordForm   = regexp.MustCompile(`^[A-Za-z0-9@][A-Za-z0-9@._+/-]{0,63}$`)
	nameForm   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
)

func word(s string) bool { return s == "" || wordForm.MatchString(s) }

func (s *Source) valid() bool {
	if s == nil || !commitForm.MatchString(s.Commit) {
		return false
	}
	s.Message = text(s.Message, 200)
	return knownhosts.Valid(s.HostKeys)
}

func (p *Plan) valid() bool {
	if p == nil || len(p.Steps) > MaxSteps || len(p.Dockerfile) > MaxFile || !word(p.Framework) {
		return false
	}
	for i := range p.Steps {
		if s := &p.Steps[i]; !keyForm.MatchString(s.Key) || s.Name == "" || s.Name != text(s.Name, 100) {
			return false
		}
	}
	return true
}

func (r *Result) valid() bool {
	if r == nil || len(r.Env) > MaxEnv || len(r.Start) > MaxCommand || r.Port < 0 || r.Port > 65535 ||
		!word(r.Framework) || !word(r.Runtime) || !word(r.RuntimeVersion) || strings.ContainsRune(r.Start, 0) ||
		!inside(r.Workdir) {
		return false
	}
	for name, value := range r.Env {
		if !nameForm.MatchString(name) || len(value) > MaxCommand || strings.ContainsRune(value, 0) {
			return false
		}
	}
	if s := r.Static; s != nil {
		local := path.Clean(s.NotFound)
		if s.Dir == "" || !inside(s.Dir) || len(s.NotFound) > 1000 || s.NotFound != "" && (path.IsAbs(local) ||
			local == ".." || strings.HasPrefix(local, "../") || strings.ContainsRune(local, 0)) {
			return false
		}
	}
	return true
}

// inside reports whether dir is "" or a clean path at or below App.
func inside(dir string) bool {
	return dir == "" || len(dir) < 1000 && path.Clean(dir) == dir && !strings.ContainsAny(dir, "\x00\n") &&
		(dir == App || strings.HasPrefix(dir, App+"/"))
}

func (f *Failure) valid() bool {
	if f == nil {
		return false
	}
	switch f.Code {
	case CodeInvalid, CodeTimeout, CodeNoSpace, CodeTooLarge, CodeUnavailable, CodeBuildFailed:
	default:
		return false
	}
	f.Message, f.Field, f.Hint = text(f.Message, MaxText), text(f.Field, 64), text(f.Hint, MaxText)
	return word(f.Field) && f.Message != ""
}

// The codes of failures.
const (
	CodeInvalid     = "invalid"      // what the user set or wrote is wrong
	CodeTimeout     = "timeout"      //
	CodeNoSpace     = "no_space"     // the disk of the machine is full
	CodeTooLarge    = "too_large"    // the source exceeds its limits
	CodeUnavailable = "unavailable"  // something that has to be downloaded cannot be reached
	CodeBuildFailed = "build_failed" // a command failed
)
