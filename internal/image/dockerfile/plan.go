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

// Plan is the result of Parse: the stages that the target needs, each after those it uses.
type Plan struct {
	Stages   []Stage
	Target   int      // index of the target in Stages; always the last one
	Warnings []string // instructions without effect, with their lines
}

// Stage is a base and the steps on it.
type Stage struct {
	Name   string // name in FROM ... AS name; "" without one, and for stages made of COPY --from=reference
	Line   int    // line of FROM, or of the COPY
	From   Source
	Steps  []Step
	Config Config // configuration after the last step
}

// SourceKind is the kind of a Source.
type SourceKind string

// The kinds of sources.
const (
	FromReference SourceKind = "reference" // Source.Ref, which Options.Base resolves
	FromStage     SourceKind = "stage"     // Source.Stage, an earlier stage
	FromScratch   SourceKind = "scratch"   // an empty file system
)

// Source is what a stage starts from.
type Source struct {
	Kind  SourceKind
	Ref   string // template or image, after variable expansion
	Stage int    // index in Plan.Stages
	Base  Config // configuration of Ref, from Options.Base
}

// StepKind is the kind of a Step. It determines which fields are set.
type StepKind string

// The kinds of steps.
const (
	KindRun  StepKind = "run"
	KindCopy StepKind = "copy" // COPY and ADD
	KindDir  StepKind = "dir"  // WORKDIR and VOLUME: make a directory
)

// Step is one change of a file system. Instructions that change no file appear in the fields of later steps and in
// Stage.Config.
type Step struct {
	Line    int    // first line of the instruction in the text
	Text    string // the instruction as written, its lines joined, at most 4 KiB
	Kind    StepKind
	Run     *Run
	Copy    *Copy
	Dir     string            // absolute
	Env     map[string]string // all variables at this step, arguments included; shared and read-only
	User    string            // "name", "uid", "name:group", "uid:gid"; "": that of the base, or else root
	Workdir string            // absolute
	Shell   []string          // never empty
}

// Run is a program to run.
type Run struct {
	Argv       []string          // program and arguments, shell included
	ScriptPath string            // where Script must be, mode 0755, while the program runs; "": no script
	Script     string            // a here-document that begins with #!
	Proxy      map[string]string // proxy variables for the environment, which are not part of the key
}

// Copy describes files to copy.
type Copy struct {
	Add     bool     // ADD: archives of a context are unpacked, unless Unpack says otherwise
	Unpack  bool     // unpack sources that are archives
	From    int      // index in Plan.Stages of the source stage; -1: the context
	Sources []string // paths and patterns, relative to the context or to the root of the stage
	Files   []File   // here-documents, copied together with the sources
	Dest    string   // absolute; ends in "/" if it must be a directory
	Chown   string   // "" is 0:0; "user", "user:group", names or numbers
	Chmod   string   // octal digits; "": unchanged
	Parents bool     // keep the directories of sources below Dest, starting after "/./" if a source has it
	Exclude []string // patterns of files to exclude, as in .dockerignore
	// KeepLinks copies an absolute symbolic link that a source names as it is. Otherwise it is followed, which is an
	// error if it leads out of the context.
	KeepLinks bool
}

// File is a here-document: a file whose content is in the Dockerfile.
type File struct {
	Name string // one path element
	Data string
}

// Config is the configuration of a stage: everything besides its files.
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

// Health is a HEALTHCHECK. The caller chooses a value for zero durations and retries.
type Health struct {
	None          bool     // HEALTHCHECK NONE: drop the check of the base
	Argv          []string // program and arguments, shell included
	Interval      time.Duration
	Timeout       time.Duration
	StartPeriod   time.Duration
	StartInterval time.Duration
	Retries       int
}

// clone returns a deep copy of c, except for Health, which is never changed.
func (c Config) clone() Config {
	c.Env, c.Labels = maps.Clone(c.Env), maps.Clone(c.Labels)
	c.Shell, c.Expose, c.Volumes = slices.Clone(c.Shell), slices.Clone(c.Expose), slices.Clone(c.Volumes)
	c.Entrypoint, c.Cmd = slices.Clone(c.Entrypoint), slices.Clone(c.Cmd)
	return c
}

// Key returns the name of the result of s as 64 hexadecimal digits. The key depends on parent (the key that the step
// runs on), on inputs (the digest of the files that it copies, "" for none) and on everything in the step that can
// change its result, which excludes Line, Text and Run.Proxy.
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

// keyer hashes strings with their lengths, so that different lists hash different bytes.
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

// Error describes an error in a Dockerfile and its position.
type Error struct {
	Line        int    // 0: no particular line
	Instruction string // such as "RUN"; "": no particular instruction
	Message     string
	Unsupported bool // the Dockerfile is valid, but builds do not support it
}

// Error implements the error interface: "WORKDIR: path is empty (line 7)".
func (e *Error) Error() string {
	text := e.Message
	if e.Instruction != "" {
		text = e.Instruction + ": " + text
	}
	if e.Line > 0 {
		text += " (line " + strconv.Itoa(e.Line) + ")"
	}
	return text
}
