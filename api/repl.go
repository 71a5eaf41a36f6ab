package api

import "time"

// MaxCode bounds the code of one cell, in bytes.
const MaxCode = 4 << 20

// ReplSessionRequest starts a context that keeps variables from cell to cell.
//
// POST /v1/sandboxes/{id}/repl/sessions.
type ReplSessionRequest struct {
	Language string `json:"language,omitempty" doc:"python if absent; GET /v1/repl/languages lists all."`
	Cwd      string `json:"cwd,omitempty" doc:"Working directory; the user's home if absent."`
	User     string `json:"user,omitempty" doc:"Name or number; the sandbox's default if absent."`
}

// Validate checks the request on its own.
func (r *ReplSessionRequest) Validate() error {
	if r.User != "" && !userName.MatchString(r.User) {
		return invalid("user", "%s is not a user name or number", quote(r.User))
	}
	return nil
}

// ReplSession is a context in which cells of code run. SessionID is the same as ID.
type ReplSession struct {
	ID        string    `json:"id"`
	SessionID string    `json:"session_id"`
	SandboxID SandboxID `json:"sandbox_id"`
	Language  string    `json:"language"`
	CreatedAt time.Time `json:"created_at"`
}

// ReplCell is code to run: POST /v1/sandboxes/{id}/repl/sessions/{session}/run.
type ReplCell struct {
	Code      string            `json:"code"`
	TimeoutMS int64             `json:"timeout_ms,omitempty" doc:"Interrupt the cell after this time; 0: never."`
	Env       map[string]string `json:"env,omitempty" doc:"For this cell only."`
}

// Validate checks the request on its own.
func (r *ReplCell) Validate() error {
	switch {
	case r.Code == "":
		return invalid("code", "is missing: send the code to run")
	case len(r.Code) > MaxCode:
		return invalid("code", "has %d bytes: use at most %d", len(r.Code), MaxCode)
	case r.TimeoutMS < 0 || r.TimeoutMS > 24*3600*1000:
		return invalid("timeout_ms", "%d is out of range: use 0 for none, or up to a day", r.TimeoutMS)
	}
	return validateEnv("env", r.Env)
}

// ReplOnce is code to run in a context of its own: POST /v1/sandboxes/{id}/repl.
type ReplOnce struct {
	Language string `json:"language,omitempty"`
	ReplCell
}

// ReplResult is the result of a cell. ExitCode and Exit are the same.
type ReplResult struct {
	Language   string              `json:"language"`
	Stdout     string              `json:"stdout" doc:"At most 16 MiB; see stdout_truncated."`
	Stderr     string              `json:"stderr" doc:"At most 16 MiB; see stderr_truncated."`
	ExitCode   int                 `json:"exit_code"`
	Exit       int                 `json:"exit"`
	Error      string              `json:"error,omitempty" doc:"The traceback of a cell that failed."`
	DurationMS int64               `json:"duration_ms"`
	Results    []map[string]string `json:"results" doc:"Each in several forms by media type; binary ones in base64."`

	StdoutTruncated  bool `json:"stdout_truncated,omitempty" doc:"More was printed than is returned."`
	StderrTruncated  bool `json:"stderr_truncated,omitempty"`
	ResultsTruncated bool `json:"results_truncated,omitempty" doc:"Over 256 results or 32 MiB: some are missing."`
}

// ReplLanguages is the response of GET /v1/repl/languages.
type ReplLanguages struct {
	Languages []string `json:"languages"`
}
