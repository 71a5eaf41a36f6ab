package dockerfile

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"maps"
	"slices"
	"strconv"
	"time"
)

// Plan is what a Dockerfile asks for: the stages that its target needs, each after those it uses.
type Plan struct {
	Stages   []Stage
	Target   int      // index in Stages of the one whose result is wanted; always the last
	Warnings []string // things that were understood and have no effect, with their lines
}

// Stage is a base and the steps on it.
type Stage struct {
	Name   string // as in FROM ... AS name; "" without, and for stages made of COPY --from=reference
	Line   int    // of FROM, or of the COPY
	From   Source
	Steps  []Step
	Config Config // what holds after the last step
}

// SourceKind says what a stage begins with.
type SourceKind string

// The kinds of sources.
const (
	FromReference SourceKind = "reference" // Source.Ref, which Options.Base knows
	FromStage     SourceKind = "stage"     // Source.Stage, an earlier one
	FromScratch   SourceKind = "scratch"   // nothing
)

// Source is where a stage begins.
type Source struct {
	Kind  SourceKind
	Ref   string // template or image, as written, after expansion
	Stage int    // index in Plan.Stages
	Base  Config // what Options.Base said of Ref
}

// StepKind says which of the fields of a Step is set.
type StepKind string

// The kinds of steps.
const (
	KindRun  StepKind = "run"
	KindCopy StepKind = "copy" // COPY and ADD
	KindDir  StepKind = "dir"  // WORKDIR and VOLUME: a directory to make
)

// Step is one change of a file system. Instructions that change none are in the fields of the steps after
// them and in Stage.Config.
type Step struct {
	Line    int    // first line of the instruction in the text
	Text    string // the instruction as written, its lines joined, at most 4 KiB
	Kind    StepKind
	Run     *Run
	Copy    *Copy
	Dir     string            // absolute
	Env     map[string]string // all variables at this step, arguments included; shared, not to be changed
	User    string            // "": the base's, root if it says none; "name", "uid", "name:group", "uid:gid"
	Workdir string            // absolute
	Shell   []string          // never empty
}

// Run is a program to run.
type Run struct {
	Argv       []string          // program and arguments, shell included
	ScriptPath string            // "" or where Script must be, mode 0755, while the program runs
	Script     string            // a here-document that begins with #!
	Proxy      map[string]string // more environment, which does not change the result: proxies
}

// Copy is files to put somewhere.
type Copy struct {
	Add     bool     // ADD: archives of a context are unpacked, unless Unpack says otherwise
	Unpack  bool     // unpack sources that are archives
	From    int      // index in Plan.Stages whose files these are; -1: the context
	Sources []string // paths and patterns, relative to the context or to the root of the stage
	Files   []File   // here-documents, put beside what Sources name
	Dest    string   // absolute; ends in "/" if it must be a directory
	Chown   string   // "" is 0:0; "user", "user:group", names or numbers
	Chmod   string   // "" keeps; octal digits
	Parents bool     // keep the directories of sources below Dest, from "/./" on if they have it
	Exclude []string // patterns of what to leave out, as in .dockerignore
}

// File is a file whose content is in the Dockerfile.
type File struct {
	Name string // one path element
	Data string
}

// Config is what holds in a stage besides its files.
type Config struct {
	Env        map[string]string
	Workdir    string // absolute; "": /
	User       string // "": root
	Shell      []string
	Labels     map[string]string
	Expose     []string // "8080/tcp", sorted
	Volumes    []string // directories, sorted
	Entrypoint []string // program and arguments, shell included
	Cmd        []string // likewise
	Health     *Health
	StopSignal string
}

// Health is a HEALTHCHECK. Zero durations and retries are for the caller to choose.
type Health struct {
	None          bool     // HEALTHCHECK NONE: forget the one of the base
	Argv          []string // program and arguments, shell included
	Interval      time.Duration
	Timeout       time.Duration
	StartPeriod   time.Duration
	StartInterval time.Duration
	Retries       int
}

// clone copies c so that neither can change the other.
func (c Config) clone() Config {
	c.Env, c.Labels = maps.Clone(c.Env), maps.Clone(c.Labels)
	c.Shell, c.Expose, c.Volumes = slices.Clone(c.Shell), slices.Clone(c.Expose), slices.Clone(c.Volumes)
	c.Entrypoint, c.Cmd = slices.Clone(c.Entrypoint), slices.Clone(c.Cmd)
	return c
}

// Key is the name of the result of s: 64 hexadecimal digits that differ whenever parent (the key of what
// the step runs on), inputs (the digest of the files it copies, "" for none) or anything of the step that
// can change its result differs. Line, Text and Run.Proxy cannot.
func (s Step) Key(parent, inputs string) string {
	k := keyer{sha256.New()}
	k.str("step 1", parent, inputs, string(s.Kind), s.Dir, s.User, s.Workdir)
	k.list(s.Shell)
	k.num(len(s.Env))
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		k.str(name, s.Env[name])
	}
	if r := s.Run; r != nil {
		k.list(r.Argv)
		k.str(r.ScriptPath, r.Script)
	}
	if c := s.Copy; c != nil {
		k.str(fmt.Sprint(c.Add, c.Unpack, c.Parents), c.Dest, c.Chown, c.Chmod)
		k.list(c.Sources)
		k.list(c.Exclude)
		k.num(len(c.Files))
		for _, f := range c.Files {
			k.str(f.Name, f.Data)
		}
	}
	return hex.EncodeToString(k.h.Sum(nil))
}

// keyer hashes strings so that no two lists of them hash the same bytes.
type keyer struct{ h hash.Hash }

func (k keyer) num(n int) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(n))
	k.h.Write(b[:])
}

func (k keyer) str(all ...string) {
	for _, s := range all {
		k.num(len(s))
		k.h.Write([]byte(s))
	}
}

func (k keyer) list(all []string) {
	k.num(len(all))
	k.str(all...)
}

// Error says what is wrong with a Dockerfile and where.
type Error struct {
	Line        int    // 0: no line in particular
	Instruction string // "RUN"; "" if there is none
	Message     string
	Unsupported bool // the text is good Dockerfile, but nothing here can do it
}

func (e *Error) Error() string {
	text := e.Message
	if e.Instruction != "" {
		text = e.Instruction + ": " + text
	}
	if e.Line > 0 {
		text = "line " + strconv.Itoa(e.Line) + ": " + text
	}
	return text
}
