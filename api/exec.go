package api

import (
	"math"
	"strings"
	"time"
)

// MaxOutput bounds each of stdout and stderr that a synchronous exec gives back, in bytes. What comes
// after is dropped and the result marked truncated; streams have no bound.
const MaxOutput = 16 << 20

// maxCommand bounds a command line.
const maxCommand = 1 << 20

// ExecRequest is a command: POST /v1/sandboxes/{id}/exec and exec/stream.
type ExecRequest struct {
	Cmd            string            `json:"cmd" doc:"Run by a shell in the sandbox."`
	TimeoutSeconds float64           `json:"timeout_seconds,omitempty" doc:"Kill the command and all it started after so long; 0 is never."`
	Env            map[string]string `json:"env,omitempty" doc:"On top of the sandbox's own."`
	Cwd            string            `json:"cwd,omitempty" doc:"Working directory; the sandbox's default if absent."`
	User           string            `json:"user,omitempty" doc:"Name or number; the sandbox's default if absent."`
	Stdin          *string           `json:"stdin,omitempty" doc:"Given to the command; absent is an empty input."`
	Background     bool              `json:"background,omitempty" doc:"Answer at once with the pid; the command goes on."`
	Tag            string            `json:"tag,omitempty" doc:"A name to find the process by; unique among running ones."`
}

// Validate checks the request by itself.
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

// Timeout is TimeoutSeconds as a duration, 0 for none.
func (r *ExecRequest) Timeout() time.Duration {
	return time.Duration(r.TimeoutSeconds * float64(time.Second))
}

// ExecResult is how a command ended. With Background only PID is set.
type ExecResult struct {
	Stdout          string `json:"stdout" doc:"Bytes that are no UTF-8 come as U+FFFD; use a file or a stream for binary output."`
	Stderr          string `json:"stderr"`
	ExitCode        int    `json:"exit_code" doc:"128 plus the signal for a command that was killed."`
	DurationMS      int64  `json:"duration_ms"`
	PID             uint32 `json:"pid,omitempty"`
	StdoutTruncated bool   `json:"stdout_truncated,omitempty" doc:"There was more than the server gives back at once."`
	StderrTruncated bool   `json:"stderr_truncated,omitempty"`
	OutOfMemory     bool   `json:"out_of_memory,omitempty" doc:"The machine had no memory left, and its kernel killed the command."`
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

	OutOfMemory bool `json:"out_of_memory,omitempty" doc:"The machine had no memory left, and its kernel killed the command."`
}

// SignalRequest sends a signal: POST /v1/sandboxes/{id}/processes/{pid}/signal.
type SignalRequest struct {
	Signal int  `json:"signal,omitempty" doc:"15 if absent."`
	Group  bool `json:"group,omitempty" doc:"To everything the process started as well."`
}

// Validate checks the request and puts the default signal.
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
	Chunk string `json:"chunk" doc:"Whole UTF-8 characters."`
}

// ExecExit is the data of the exit event of exec/stream.
type ExecExit struct {
	ExitCode    int   `json:"exit_code"`
	OutOfMemory bool  `json:"out_of_memory,omitempty" doc:"The machine had no memory left, and its kernel killed the command."`
	DurationMS  int64 `json:"duration_ms"`
}

// ExecStarted is the data of the start event of a stream.
type ExecStarted struct {
	PID uint32 `json:"pid"`
}
