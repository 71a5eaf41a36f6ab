package api

import (
	"math"
	"strings"
	"time"
)

// MaxOutput bounds stdout and stderr of a synchronous exec, each in bytes.
//
// Further output is dropped and the result is marked truncated. Streams are not bounded.
const MaxOutput = 16 << 20

// maxCommand bounds a command line, in bytes.
const maxCommand = 1 << 20

// ExecRequest is a command: POST /v1/sandboxes/{id}/exec and exec/stream.
type ExecRequest struct {
	Cmd string `json:"cmd" doc:"Run by a shell in the sandbox."`

	TimeoutSeconds float64 `json:"timeout_seconds,omitempty" doc:"Kill the command after this time; 0: never."`

	Env   map[string]string `json:"env,omitempty" doc:"Added to the sandbox's own."`
	Cwd   string            `json:"cwd,omitempty" doc:"Working directory; the sandbox's default if absent."`
	User  string            `json:"user,omitempty" doc:"Name or number; the sandbox's default if absent."`
	Stdin *string           `json:"stdin,omitempty" doc:"Input of the command; empty if absent."`

	Background bool   `json:"background,omitempty" doc:"Return the pid at once; the command keeps running."`
	Tag        string `json:"tag,omitempty" doc:"A name to find the process by; unique among running ones."`
}

// Validate checks the request on its own.
func (r *ExecRequest) Validate() error {
	switch {
	case r.Cmd == "":
		return invalid("cmd", "is missing: send the command line to run")
	case len(r.Cmd) > maxCommand:
		return invalid("cmd", "has %d bytes: use at most %d, or write a file and run it", len(r.Cmd), maxCommand)
	case strings.ContainsRune(r.Cmd, 0):
		return invalid("cmd", "holds a zero byte")
	case r.TimeoutSeconds < 0 || math.IsNaN(r.TimeoutSeconds) || r.TimeoutSeconds > 30*24*3600:
		return invalid("timeout_seconds", "%v is out of range: use 0 for none, or up to 30 days", r.TimeoutSeconds)
	case r.User != "" && !userName.MatchString(r.User):
		return invalid("user", "%s is not a user name or number", quote(r.User))
	case strings.ContainsRune(r.Cwd, 0):
		return invalid("cwd", "holds a zero byte")
	case len(r.Tag) > 128:
		return invalid("tag", "has %d bytes: use at most 128", len(r.Tag))
	}
	return validateEnv("env", r.Env)
}

// Timeout returns TimeoutSeconds as a duration, 0 for none.
func (r *ExecRequest) Timeout() time.Duration {
	return time.Duration(r.TimeoutSeconds * float64(time.Second))
}

// ExecResult is how a command ended. With Background only PID is set.
type ExecResult struct {
	Stdout          string `json:"stdout" doc:"At most 16 MiB; invalid UTF-8 becomes U+FFFD."`
	Stderr          string `json:"stderr" doc:"At most 16 MiB, as stdout."`
	ExitCode        int    `json:"exit_code" doc:"128 plus the signal for a command that was killed."`
	DurationMS      int64  `json:"duration_ms"`
	PID             uint32 `json:"pid,omitempty"`
	StdoutTruncated bool   `json:"stdout_truncated,omitempty" doc:"There was more output than that."`
	StderrTruncated bool   `json:"stderr_truncated,omitempty"`
	OutOfMemory     bool   `json:"out_of_memory,omitempty" doc:"The kernel of the guest killed it: out of memory."`
}

// Process is a command that runs or ended lately: GET /v1/sandboxes/{id}/processes.
type Process struct {
	PID       uint32    `json:"pid"`
	Tag       string    `json:"tag,omitempty"`
	Cmd       string    `json:"cmd"`
	Cwd       string    `json:"cwd"`
	User      string    `json:"user"`
	PTY       bool      `json:"pty"`
	StartedAt time.Time `json:"started_at"`
	Running   bool      `json:"running"`
	ExitCode  *int      `json:"exit_code,omitempty"`

	OutOfMemory bool `json:"out_of_memory,omitempty" doc:"The kernel of the guest killed it: out of memory."`
}

// SignalRequest sends a signal: POST /v1/sandboxes/{id}/processes/{pid}/signal.
type SignalRequest struct {
	Signal int  `json:"signal,omitempty" doc:"15 if absent."`
	Group  bool `json:"group,omitempty" doc:"Also to every process that it started."`
}

// Validate checks the request and sets the default signal.
func (r *SignalRequest) Validate() error {
	if r.Signal == 0 {
		r.Signal = 15
	}
	if r.Signal < 1 || r.Signal > 64 {
		return invalid("signal", "%d is no signal: use 1 to 64", r.Signal)
	}
	return nil
}

// ExecChunk is the data of the stdout and stderr events of exec/stream.
type ExecChunk struct {
	Chunk string `json:"chunk" doc:"Complete UTF-8 characters."`
}

// ExecExit is the data of the exit event of exec/stream.
type ExecExit struct {
	ExitCode    int   `json:"exit_code"`
	OutOfMemory bool  `json:"out_of_memory,omitempty" doc:"The kernel of the guest killed it: out of memory."`
	DurationMS  int64 `json:"duration_ms"`
}

// ExecStarted is the data of the start event of a stream.
type ExecStarted struct {
	PID uint32 `json:"pid"`
}
