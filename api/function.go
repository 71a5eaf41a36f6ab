package api

import (
	"encoding/json"
	"regexp"
	"strings"
	"time"
)

// Bounds of functions.
const (
	MaxFunctionName        = 64
	MaxFunctionCode        = 64 << 20 // bytes of a bundle, compressed
	MaxFunctionTimeout     = 15 * 60  // seconds
	MaxFunctionPayload     = 6 << 20  // bytes of an event or a result that is not streamed
	MaxFunctionOutput      = 256 << 10
	MaxFunctionMap         = 1000 // inputs of one map
	MaxFunctionVersions    = 50   // that are kept
	MaxFunctionAliases     = 16
	MaxFunctionConcurrency = 1000
)

// FunctionID names a function: "fun...".
type FunctionID string

// InvocationID names an invocation of a function: "inv...".
type InvocationID string

// NewFunctionID returns a new random id.
func NewFunctionID() FunctionID { return FunctionID(newID("fun")) }

// NewInvocationID returns a new random id.
func NewInvocationID() InvocationID { return InvocationID(newID("inv")) }

// Valid reports whether id has the form of a function's id, not whether the function exists.
func (id FunctionID) Valid() bool { return validID(string(id), "fun") }

// Valid reports whether id has the form of an invocation's id, not whether the invocation exists.
func (id InvocationID) Valid() bool { return validID(string(id), "inv") }

// FunctionRuntime is the language that a function is written in.
type FunctionRuntime string

// The runtimes of functions.
const (
	RuntimePython   FunctionRuntime = "python"
	RuntimeNode     FunctionRuntime = "nodejs"
	RuntimeProvided FunctionRuntime = "provided" // a program that speaks the Lambda Runtime API
)

// FunctionMode says which machines serve a function.
type FunctionMode string

// The modes of functions.
const (
	FunctionIsolated FunctionMode = "isolated" // each invocation has a machine of its own, which ends with it
	FunctionShared   FunctionMode = "shared"   // machines are kept and serve one invocation after the other
)

// FunctionAuth says who may call the URL of a function.
type FunctionAuth string

// The ways to protect the URL of a function.
const (
	FunctionKey    FunctionAuth = "key"    // callers send an API key of the workspace
	FunctionSigned FunctionAuth = "signed" // callers sign with the function's secret
	FunctionPublic FunctionAuth = "public" // everybody
)

// FunctionStatus is the state of a function or of one of its versions.
type FunctionStatus string

// The states of functions and versions.
const (
	FunctionEmpty    FunctionStatus = "empty" // no code was deployed
	FunctionBuilding FunctionStatus = "building"
	FunctionReady    FunctionStatus = "ready"
	FunctionFailed   FunctionStatus = "failed"
)

// FunctionRetry says what happens to asynchronous invocations that fail.
type FunctionRetry struct {
	MaxAttempts   int   `json:"max_attempts,omitempty" doc:"1 to 10; 3 if absent."`
	MaxAgeSeconds int64 `json:"max_age_seconds,omitempty" doc:"Later attempts are not made; 6 hours if absent."`
}

// Destination is where the outcome of an asynchronous invocation goes. One of its fields is set.
type Destination struct {
	FunctionID FunctionID `json:"function_id,omitempty" doc:"It is invoked with the outcome."`
	URL        string     `json:"url,omitempty" doc:"http or https; the outcome is posted, signed with the secret."`
}

// WarmUp is a request that a version gets once before its memory is captured.
type WarmUp struct {
	Path  string          `json:"path,omitempty" doc:"For GET, of functions that take requests."`
	Event json.RawMessage `json:"event,omitempty" doc:"For functions that take events."`
}

// FunctionSettings are the settings of a function that have defaults.
type FunctionSettings struct {
	Mode            FunctionMode   `json:"mode,omitempty" enum:"isolated,shared" doc:"isolated if absent."`
	Auth            FunctionAuth   `json:"auth,omitempty" enum:"key,signed,public" doc:"key if absent."`
	MemoryMB        int            `json:"memory_mb,omitempty" doc:"Of its machines; the template's if absent."`
	TimeoutSeconds  int            `json:"timeout_seconds,omitempty" doc:"Of one attempt, up to 900; 30 if absent."`
	Concurrency     int            `json:"concurrency,omitempty" doc:"Of a shared machine; 10 if absent."`
	MaxConcurrency  int            `json:"max_concurrency,omitempty" doc:"Invocations at once; 100 if absent."`
	MaxPayloadBytes int            `json:"max_payload_bytes,omitempty" doc:"Of an event or a result; 6 MiB if absent."`
	IdleSeconds     int64          `json:"idle_seconds,omitempty" doc:"Until a machine is hibernated; 300 if absent."`
	Retry           *FunctionRetry `json:"retry,omitempty"`
	OnSuccess       *Destination   `json:"on_success,omitempty"`
	OnFailure       *Destination   `json:"on_failure,omitempty" doc:"For what failed finally: the dead letters."`
	WarmUp          *WarmUp        `json:"warm_up,omitempty"`
	Network         *Network       `json:"network,omitempty"`
}

// Function is code that runs when it is called. Its versions are immutable.
type Function struct {
	ID         FunctionID        `json:"id"`
	Workspace  Workspace         `json:"workspace"`
	Name       string            `json:"name"`
	Runtime    FunctionRuntime   `json:"runtime"`
	Entrypoint string            `json:"entrypoint"`
	Template   string            `json:"template"`
	CodeSize   int64             `json:"code_size" doc:"Bytes of the bundle of the newest version."`
	Env        map[string]string `json:"env" doc:"Values are masked."`
	Public     bool              `json:"public" doc:"Whether settings.auth is public."`
	Endpoint   string            `json:"endpoint"`
	URL        string            `json:"url"`
	GCSPath    string            `json:"gcs_path" doc:"Always empty."`
	Status     FunctionStatus    `json:"status"`
	Error      string            `json:"error,omitempty" doc:"Why the newest version has failed."`
	IsReady    bool              `json:"is_ready" doc:"Whether a version takes invocations."`
	Version    int64             `json:"version" doc:"That takes invocations without an alias."`
	Latest     int64             `json:"latest" doc:"The newest version, which may have failed."`
	Aliases    []FunctionAlias   `json:"aliases"`
	Settings   FunctionSettings  `json:"settings"`
	Secret     string            `json:"secret,omitempty" doc:"Signs requests; only for keys with the scope exec."`
	CreatedAt  time.Time         `json:"created_at"`
	UpdatedAt  time.Time         `json:"updated_at"`
}

// FunctionVersion is code that was deployed, with the machine that was captured after it was loaded.
type FunctionVersion struct {
	Number     int64          `json:"number"`
	Status     FunctionStatus `json:"status"`
	Error      string         `json:"error,omitempty"`
	Style      string         `json:"style,omitempty" doc:"fetch, event, asgi, wsgi, script or lambda."`
	Entrypoint string         `json:"entrypoint"`
	CodeSize   int64          `json:"code_size"`
	CodeSHA256 string         `json:"code_sha256"`
	CreatedAt  time.Time      `json:"created_at"`
	ReadyAt    *time.Time     `json:"ready_at,omitempty"`
}

// FunctionWeight is a share of the invocations of an alias.
type FunctionWeight struct {
	Version int64 `json:"version"`
	Weight  int   `json:"weight" doc:"In hundredths; the weights of an alias add up to 100."`
}

// FunctionAlias is a name for a version, or for two of them with weights.
type FunctionAlias struct {
	Name      string           `json:"name"`
	Versions  []FunctionWeight `json:"versions"`
	UpdatedAt time.Time        `json:"updated_at"`
}

// CreateFunctionRequest asks for a function: POST /v1/functions.
type CreateFunctionRequest struct {
	Name       string            `json:"name"`
	Runtime    FunctionRuntime   `json:"runtime" enum:"python,nodejs,provided"`
	Entrypoint string            `json:"entrypoint,omitempty" doc:"handler.py or index.js if absent."`
	Code       []byte            `json:"code,omitempty" doc:"Tar or text; may be gzipped."`
	Template   string            `json:"template,omitempty"`
	Env        map[string]string `json:"env,omitempty"`
	Public     *bool             `json:"public,omitempty" doc:"true stands for settings.auth public."`
	Settings   FunctionSettings  `json:"settings,omitzero"`
}

// UpdateFunctionRequest changes a function: PATCH /v1/functions/{id}. Absent fields stay.
//
// A new entrypoint, template, memory, network or warm-up applies from the next deployment on; variables apply
// at once to new machines.
type UpdateFunctionRequest struct {
	Name       *string            `json:"name,omitempty"`
	Entrypoint *string            `json:"entrypoint,omitempty"`
	Template   *string            `json:"template,omitempty"`
	Env        *map[string]string `json:"env,omitempty" doc:"Replaces all variables; masked values stay."`
	Public     *bool              `json:"public,omitempty"`
	Settings   *FunctionSettings  `json:"settings,omitempty" doc:"Replaces all settings."`
}

// SetAliasRequest sets an alias: PUT /v1/functions/{id}/aliases/{name}. The alias "live" takes what names no alias.
type SetAliasRequest struct {
	Versions []FunctionWeight `json:"versions"`
}

// InvokeRequest invokes a function: POST /v1/functions/{id}/invoke.
type InvokeRequest struct {
	Input json.RawMessage `json:"input,omitempty" doc:"The event; null if absent."`
	Alias string          `json:"alias,omitempty"`

	Version        int64  `json:"version,omitempty"`
	Async          bool   `json:"async,omitempty" doc:"Responds with 202 at once; failures are retried."`
	DelaySeconds   int64  `json:"delay_seconds,omitempty" doc:"With async: how much later it begins."`
	IdempotencyKey string `json:"idempotency_key,omitempty" doc:"Others with it are this run, for 24 hours."`
	Trace          string `json:"-"` // traceparent of the caller
}

// FunctionRun is one invocation of a function with its last attempt.
type FunctionRun struct {
	ID           InvocationID    `json:"id"`
	Workspace    Workspace       `json:"workspace"`
	FunctionID   FunctionID      `json:"function_id"`
	Version      int64           `json:"version"`
	Alias        string          `json:"alias,omitempty"`
	ScheduleID   ScheduleID      `json:"schedule_id,omitempty"`
	SandboxID    SandboxID       `json:"sandbox_id,omitempty"`
	Trigger      string          `json:"trigger" doc:"What began it: invoke, http, async, schedule, map, ..."`
	Status       RunStatus       `json:"status"`
	Attempt      int             `json:"attempt"`
	Cold         bool            `json:"cold" doc:"Whether the machine was restored for it."`
	ExitCode     *int            `json:"exit_code,omitempty"`
	Result       json.RawMessage `json:"result,omitempty"`
	Error        *FunctionError  `json:"error,omitempty"`
	Stdout       string          `json:"stdout"`
	Stderr       string          `json:"stderr"`
	Truncated    bool            `json:"truncated,omitempty" doc:"Whether there was more output."`
	QueueMS      float64         `json:"queue_ms" doc:"Until the attempt began."`
	DurationMS   float64         `json:"duration_ms" doc:"Of the handler."`
	MemoryPeakMB float64         `json:"memory_peak_mb,omitempty"`
	TraceID      string          `json:"trace_id,omitempty"`
	CreatedAt    time.Time       `json:"created_at"`
	StartedAt    *time.Time      `json:"started_at,omitempty"`
	EndedAt      *time.Time      `json:"ended_at,omitempty"`
}

// FunctionError is what a handler has raised, or why it did not run.
type FunctionError struct {
	Type    string `json:"type"`
	Message string `json:"message"`
	Stack   string `json:"stack,omitempty"`
}

// FunctionMetrics are figures of the invocations of the last hours.
type FunctionMetrics struct {
	Period        int     `json:"period" doc:"Hours."`
	Total         int64   `json:"total"`
	Errors        int64   `json:"errors"`
	ErrorRate     float64 `json:"error_rate"`
	P50MS         float64 `json:"p50_ms"`
	P95MS         float64 `json:"p95_ms"`
	P99MS         float64 `json:"p99_ms"`
	ColdStartRate float64 `json:"cold_start_rate"`
}

var functionName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)

// ValidFunctionName reports whether name can be the name of a function or of an alias.
func ValidFunctionName(name string) bool {
	return len(name) <= MaxFunctionName && functionName.MatchString(name)
}

// Validate checks everything that can be checked without knowing the server.
func (r *CreateFunctionRequest) Validate() error {
	switch {
	case !ValidFunctionName(r.Name):
		return invalid("name", "%s is not a name of a function: use 1 to %d letters, digits, dots, dashes and _",
			quote(r.Name), MaxFunctionName)
	case r.Runtime != RuntimePython && r.Runtime != RuntimeNode && r.Runtime != RuntimeProvided:
		return invalid("runtime", "%s is not known: use python, nodejs or provided", quote(string(r.Runtime)))
	case len(r.Code) > MaxFunctionCode:
		return invalid("code", "has %d bytes: use at most %d", len(r.Code), MaxFunctionCode)
	case len(r.Env) > MaxAppEnv:
		return invalid("env", "has %d variables: use at most %d", len(r.Env), MaxAppEnv)
	}
	for name, value := range r.Env {
		if err := ValidateAppVariable(name, value); err != nil {
			return err
		}
	}
	if err := ValidateEntrypoint(r.Entrypoint); err != nil {
		return err
	}
	return r.Settings.Validate()
}

// ValidateEntrypoint checks the path of an entrypoint in a bundle. "" stands for the runtime's default.
func ValidateEntrypoint(name string) error {
	if !validRelative(name) || len(name) > 255 || strings.HasSuffix(name, "/") {
		return invalid("entrypoint", "%s is not a path inside the bundle", quote(name))
	}
	return nil
}

// Validate checks settings.
func (s *FunctionSettings) Validate() error {
	switch {
	case s.Mode != "" && s.Mode != FunctionIsolated && s.Mode != FunctionShared:
		return invalid("settings.mode", "%s is not known: use isolated or shared", quote(string(s.Mode)))
	case s.Auth != "" && s.Auth != FunctionKey && s.Auth != FunctionSigned && s.Auth != FunctionPublic:
		return invalid("settings.auth", "%s is not known: use key, signed or public", quote(string(s.Auth)))
	case s.TimeoutSeconds < 0 || s.TimeoutSeconds > MaxFunctionTimeout:
		return invalid("settings.timeout_seconds", "%d is out of range: use 1 to %d", s.TimeoutSeconds,
			MaxFunctionTimeout)
	case s.MemoryMB < 0 || s.MemoryMB > MaxBuildMemoryMB:
		return invalid("settings.memory_mb", "%d is out of range: use 128 to %d", s.MemoryMB, MaxBuildMemoryMB)
	case s.Concurrency < 0 || s.Concurrency > MaxFunctionConcurrency:
		return invalid("settings.concurrency", "%d is out of range: use 1 to %d", s.Concurrency,
			MaxFunctionConcurrency)
	case s.MaxConcurrency < 0 || s.MaxConcurrency > MaxFunctionConcurrency:
		return invalid("settings.max_concurrency", "%d is out of range: use 1 to %d", s.MaxConcurrency,
			MaxFunctionConcurrency)
	case s.MaxPayloadBytes < 0 || s.MaxPayloadBytes > MaxFunctionPayload:
		return invalid("settings.max_payload_bytes", "%d is out of range: use 1 to %d", s.MaxPayloadBytes,
			MaxFunctionPayload)
	case s.IdleSeconds < 0 || s.IdleSeconds > maxAppIdle:
		return invalid("settings.idle_seconds", "%d is out of range: use 1 to %d", s.IdleSeconds, maxAppIdle)
	case s.Retry != nil && (s.Retry.MaxAttempts < 0 || s.Retry.MaxAttempts > MaxRunAttempts):
		return invalid("settings.retry.max_attempts", "%d is out of range: use 1 to %d", s.Retry.MaxAttempts,
			MaxRunAttempts)
	case s.Retry != nil && (s.Retry.MaxAgeSeconds < 0 || s.Retry.MaxAgeSeconds > 14*24*3600):
		return invalid("settings.retry.max_age_seconds", "%d is out of range: use 1 to 14 days", s.Retry.MaxAgeSeconds)
	}
	for field, d := range map[string]*Destination{"on_success": s.OnSuccess, "on_failure": s.OnFailure} {
		if d != nil && (d.FunctionID == "") == (d.URL == "") {
			return invalid("settings."+field, "needs function_id or url, and not both")
		}
	}
	return nil
}
