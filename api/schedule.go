package api

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Bounds of schedules.
const (
	MaxScheduleName    = 64
	MaxScheduleCommand = 64 << 10 // bytes
	MaxScheduleBody    = 64 << 10 // bytes
	MaxScheduleTimeout = 15 * 60  // seconds
	MaxScheduleCatchup = 100      // missed moments that are made up for
	MaxRunAttempts     = 10
	MaxRunOutput       = 64 << 10 // bytes that are kept of each output of a run
	maxScheduleHeaders = 32
)

// ScheduleID names a schedule: "sch...".
type ScheduleID string

// RunID names a run of a schedule: "run...".
type RunID string

// NewScheduleID returns a new random id.
func NewScheduleID() ScheduleID { return ScheduleID(newID("sch")) }

// NewRunID returns a new random id.
func NewRunID() RunID { return RunID(newID("run")) }

// Valid reports whether id has the form of a schedule's id, not whether the schedule exists.
func (id ScheduleID) Valid() bool { return validID(string(id), "sch") }

// ParseScheduleID reads an id from a path. The error of a malformed id is not_found.
func ParseScheduleID(s string) (ScheduleID, error) {
	if id := ScheduleID(s); id.Valid() {
		return id, nil
	}
	return "", Errorf(NotFound, "schedule %s not found: ids look like sch and 20 letters and digits", quote(s))
}

// ScheduleTarget says what a schedule does: it calls a function, runs a command or sends a request.
//
// One of FunctionID, AppID, SandboxID, Template and URL is set. Commands run in a sandbox, or in a machine of an app.
type ScheduleTarget struct {
	FunctionID FunctionID      `json:"function_id,omitempty" doc:"Function to invoke; its own time limit applies."`
	Input      json.RawMessage `json:"input,omitempty" doc:"Event of the function; the schedule's moment if absent."`

	AppID     AppID             `json:"app_id,omitempty" doc:"App whose new machine runs command."`
	SandboxID SandboxID         `json:"sandbox_id,omitempty" doc:"Sandbox to run command in; it is woken."`
	Template  string            `json:"template,omitempty" doc:"Template of a new sandbox for each run."`
	Command   string            `json:"command,omitempty" doc:"Shell command."`
	Env       map[string]string `json:"env,omitempty" doc:"Variables of the command."`
	URL       string            `json:"url,omitempty" doc:"http or https; the request is signed."`
	Method    string            `json:"method,omitempty" doc:"Of the request; POST if absent."`
	Headers   map[string]string `json:"headers,omitempty"`
	Body      string            `json:"body,omitempty"`

	TimeoutSeconds int `json:"timeout_seconds,omitempty" doc:"Limit of one attempt, up to 900; 300 if absent."`
}

// Catchup says what happens to moments at which the server could not start runs.
type Catchup string

// The ways to catch up.
const (
	CatchupSkip   Catchup = "skip"   // they are left out
	CatchupLatest Catchup = "latest" // only the last one is made up for
	CatchupAll    Catchup = "all"    // up to MaxCatchup of them are made up for, in their order
)

// Overlap says what happens when a run is due while another of the schedule has not ended.
type Overlap string

// The ways to handle an overlap.
const (
	OverlapAllow   Overlap = "allow"   // both run
	OverlapForbid  Overlap = "forbid"  // the new one is skipped
	OverlapReplace Overlap = "replace" // the old one is canceled
	OverlapQueue   Overlap = "queue"   // the new one waits
)

// ScheduleOptions are the settings of a schedule that have defaults.
type ScheduleOptions struct {
	Timezone             string  `json:"timezone,omitempty" doc:"IANA name such as Europe/Berlin; UTC if absent."`
	Catchup              Catchup `json:"catchup,omitempty" enum:"skip,latest,all" doc:"latest if absent."`
	MaxCatchup           int     `json:"max_catchup,omitempty" doc:"With catchup all: 1 to 100; 10 if absent."`
	StartDeadlineSeconds int64   `json:"start_deadline_seconds,omitempty" doc:"Later runs are left out; 0: none."`
	Overlap              Overlap `json:"overlap,omitempty" enum:"allow,forbid,replace,queue" doc:"allow if absent."`
	JitterSeconds        int64   `json:"jitter_seconds,omitempty" doc:"Each run begins up to so much later."`
	MaxAttempts          int     `json:"max_attempts,omitempty" doc:"Of a run that fails, 1 to 10; 1 if absent."`
}

// Schedule runs something at the moments of a cron expression.
type Schedule struct {
	ID         ScheduleID      `json:"id"`
	Workspace  Workspace       `json:"workspace"`
	Name       string          `json:"name"`
	Cron       string          `json:"cron"`
	FunctionID FunctionID      `json:"function_id,omitempty" doc:"That of its target."`
	Target     ScheduleTarget  `json:"target" doc:"Values of its variables and headers are masked."`
	Options    ScheduleOptions `json:"options"`
	Paused     bool            `json:"paused"`
	LastRunAt  *time.Time      `json:"last_run_at,omitempty"`
	LastStatus RunStatus       `json:"last_status,omitempty"`
	NextRunAt  *time.Time      `json:"next_run_at,omitempty"`
	NextRuns   []time.Time     `json:"next_runs" doc:"The next five moments; none while it is paused."`
	Secret     string          `json:"secret,omitempty" doc:"Signs its requests; only for keys with the scope exec."`
	CreatedAt  time.Time       `json:"created_at"`
	UpdatedAt  time.Time       `json:"updated_at"`
}

// RunStatus is the state of a run.
type RunStatus string

// The states of a run.
const (
	RunQueued   RunStatus = "queued"
	RunRunning  RunStatus = "running"
	RunSuccess  RunStatus = "success"
	RunError    RunStatus = "error"
	RunTimeout  RunStatus = "timeout"
	RunSkipped  RunStatus = "skipped"  // another run had not ended
	RunCanceled RunStatus = "canceled" // replaced by a later run, or its schedule was deleted
)

// Ended reports whether a run in this state never changes again.
func (s RunStatus) Ended() bool { return s != RunQueued && s != RunRunning }

// ScheduleRun is one run of a schedule.
type ScheduleRun struct {
	ID           RunID      `json:"id"`
	Workspace    Workspace  `json:"workspace"`
	ScheduleID   ScheduleID `json:"schedule_id"`
	FunctionID   FunctionID `json:"function_id,omitempty"`
	SandboxID    SandboxID  `json:"sandbox_id,omitempty"`
	Status       RunStatus  `json:"status" enum:"queued,running,success,error,timeout,skipped,canceled"`
	Trigger      string     `json:"trigger" enum:"schedule,manual"`
	ScheduledFor time.Time  `json:"scheduled_for" doc:"The moment of the schedule that it is for."`
	Attempt      int        `json:"attempt" doc:"Counts from 1; 0 before the first one begins."`
	ExitCode     *int       `json:"exit_code,omitempty" doc:"Of the command, or the status of the response."`
	Stdout       string     `json:"stdout" doc:"The end of the output, or the beginning of the response."`
	Stderr       string     `json:"stderr"`
	Error        string     `json:"error,omitempty"`
	DurationMS   int64      `json:"duration_ms"`
	StartedAt    *time.Time `json:"started_at,omitempty"`
	EndedAt      *time.Time `json:"ended_at,omitempty"`
}

// CreateScheduleRequest asks for a schedule: POST /v1/schedules.
type CreateScheduleRequest struct {
	Name    string          `json:"name"`
	Cron    string          `json:"cron" doc:"Five fields, six with seconds, @daily and its like, or @every 90s."`
	Target  ScheduleTarget  `json:"target,omitzero"`
	Options ScheduleOptions `json:"options,omitempty"`
	Paused  bool            `json:"paused,omitempty"`

	FunctionID FunctionID `json:"function_id,omitempty" doc:"Stands for target.function_id, without a target."`
}

// UpdateScheduleRequest changes a schedule: PATCH /v1/schedules/{id}. Absent fields stay.
type UpdateScheduleRequest struct {
	Name    *string          `json:"name,omitempty"`
	Cron    *string          `json:"cron,omitempty"`
	Target  *ScheduleTarget  `json:"target,omitempty" doc:"Replaces the whole target."`
	Options *ScheduleOptions `json:"options,omitempty" doc:"Replaces all options."`
	Paused  *bool            `json:"paused,omitempty"`
}

// Validate checks everything that can be checked without knowing the server. The expression is checked there.
func (r *CreateScheduleRequest) Validate() error {
	if err := validateScheduleName(r.Name); err != nil {
		return err
	}
	if r.FunctionID != "" {
		// The target is the function already if the request was checked before.
		if n := r.Target.count(); n > 1 || n == 1 && r.Target.FunctionID != r.FunctionID {
			return invalid("function_id", "cannot be combined with target: use one of them")
		}
		r.Target.FunctionID = r.FunctionID
	}
	if err := r.Target.validate(); err != nil {
		return err
	}
	return r.Options.validate()
}

// Validate checks everything that can be checked without knowing the schedule.
func (r *UpdateScheduleRequest) Validate() error {
	if r.Name != nil {
		if err := validateScheduleName(*r.Name); err != nil {
			return err
		}
	}
	if r.Target != nil {
		if err := r.Target.validate(); err != nil {
			return err
		}
	}
	if r.Options != nil {
		return r.Options.validate()
	}
	return nil
}

func validateScheduleName(name string) error {
	if name == "" || len(name) > MaxScheduleName {
		return invalid("name", "%s is not a name: use 1 to %d characters", quote(name), MaxScheduleName)
	}
	for _, c := range name {
		if c < ' ' || c == 0x7f {
			return invalid("name", "has a control character: remove it")
		}
	}
	return nil
}

// count returns how many targets are set.
func (t *ScheduleTarget) count() int {
	n := 0
	for _, set := range []bool{
		t.FunctionID != "", t.AppID != "", t.SandboxID != "", t.Template != "", t.URL != "",
	} {
		if set {
			n++
		}
	}
	return n
}

func (t *ScheduleTarget) validate() error {
	switch {
	case t.count() != 1:
		return invalid("target", "set exactly one of function_id, app_id, sandbox_id, template and url")
	case t.FunctionID != "":
		return t.validateFunction()
	case len(t.Input) > 0:
		return invalid("target.input", "is for functions: leave it out without function_id")
	case t.AppID != "" && !t.AppID.Valid():
		return invalid("target.app_id", "%s is not the id of an app", quote(string(t.AppID)))
	case t.SandboxID != "" && !t.SandboxID.Valid():
		return invalid("target.sandbox_id", "%s is not the id of a sandbox", quote(string(t.SandboxID)))
	case t.Template != "" && !validTemplateRef(t.Template):
		return invalid("target.template", "%s is not a template name", quote(t.Template))
	case t.TimeoutSeconds < 0 || t.TimeoutSeconds > MaxScheduleTimeout:
		return invalid("target.timeout_seconds", "%d is out of range: use 1 to %d", t.TimeoutSeconds,
			MaxScheduleTimeout)
	case len(t.Env) > MaxEnv || len(t.Headers) > maxScheduleHeaders:
		return invalid("target", "has %d variables and %d headers: use at most %d and %d", len(t.Env), len(t.Headers),
			MaxEnv, maxScheduleHeaders)
	case t.URL != "":
		return t.validateRequest()
	case t.Command == "":
		return invalid("target.command", "is missing: name the command to run")
	case len(t.Command) > MaxScheduleCommand || strings.ContainsRune(t.Command, 0):
		return invalid("target.command", "has a zero byte, or more than %d bytes", MaxScheduleCommand)
	case t.Method != "" || t.Body != "" || len(t.Headers) > 0:
		return invalid("target.url", "is missing, but method, headers or body are set")
	}
	for name, value := range t.Env {
		if !envName.MatchString(name) || strings.ContainsRune(value, 0) || len(value) > MaxEnvValue {
			return invalid("target.env", "%s is not a variable with at most %d bytes", quote(name), MaxEnvValue)
		}
	}
	return nil
}

func (t *ScheduleTarget) validateFunction() error {
	switch {
	case !t.FunctionID.Valid():
		return invalid("target.function_id", "%s is not the id of a function", quote(string(t.FunctionID)))
	case len(t.Input) > MaxScheduleBody:
		return invalid("target.input", "has %d bytes: use at most %d", len(t.Input), MaxScheduleBody)
	case t.Command != "" || t.Method != "" || t.Body != "" || len(t.Env) > 0 || len(t.Headers) > 0:
		return invalid("target.command", "and env, method, headers and body are not for functions: send target.input")
	case t.TimeoutSeconds != 0:
		return invalid("target.timeout_seconds", "is that of the function: set it there")
	}
	return nil
}

func (t *ScheduleTarget) validateRequest() error {
	u, err := url.Parse(t.URL)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || len(t.URL) > 2048:
		return invalid("target.url", "%s is not an http or https URL", quote(t.URL))
	case u.User != nil:
		return invalid("target.url", "has a user: send credentials in target.headers")
	case t.Command != "" || len(t.Env) > 0:
		return invalid("target.command", "is for sandboxes and apps: leave it out with url")
	case len(t.Body) > MaxScheduleBody:
		return invalid("target.body", "has %d bytes: use at most %d", len(t.Body), MaxScheduleBody)
	}
	switch t.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
	default:
		return invalid("target.method", "%s is not GET, HEAD, POST, PUT, PATCH or DELETE", quote(t.Method))
	}
	for name, value := range t.Headers {
		if !headerName(name) || strings.ContainsAny(value, "\r\n\x00") || len(value) > 8<<10 {
			return invalid("target.headers", "%s is not a header that can be sent", quote(name))
		}
		switch http.CanonicalHeaderKey(name) {
		case "Host", "Content-Length", "Transfer-Encoding", "Connection", "Upgrade", "Trailer", "Te":
			return invalid("target.headers", "%s is set by the server: leave it out", name)
		}
	}
	return nil
}

// headerName reports whether name is a token of RFC 9110.
func headerName(name string) bool {
	for _, c := range name {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", c) {
			return false
		}
	}
	return name != "" && len(name) <= 128
}

func (o *ScheduleOptions) validate() error {
	switch {
	case o.Catchup != "" && o.Catchup != CatchupSkip && o.Catchup != CatchupLatest && o.Catchup != CatchupAll:
		return invalid("options.catchup", "%s is not skip, latest or all", quote(string(o.Catchup)))
	case o.Overlap != "" && o.Overlap != OverlapAllow && o.Overlap != OverlapForbid &&
		o.Overlap != OverlapReplace && o.Overlap != OverlapQueue:
		return invalid("options.overlap", "%s is not allow, forbid, replace or queue", quote(string(o.Overlap)))
	case o.MaxCatchup < 0 || o.MaxCatchup > MaxScheduleCatchup:
		return invalid("options.max_catchup", "%d is out of range: use 1 to %d", o.MaxCatchup, MaxScheduleCatchup)
	case o.StartDeadlineSeconds < 0:
		return invalid("options.start_deadline_seconds", "%d is negative", o.StartDeadlineSeconds)
	case o.JitterSeconds < 0 || o.JitterSeconds > 24*3600:
		return invalid("options.jitter_seconds", "%d is out of range: use 0 to %d", o.JitterSeconds, 24*3600)
	case o.MaxAttempts < 0 || o.MaxAttempts > MaxRunAttempts:
		return invalid("options.max_attempts", "%d is out of range: use 1 to %d", o.MaxAttempts, MaxRunAttempts)
	}
	return nil
}
