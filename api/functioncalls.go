package api

import (
	"encoding/json"
	"time"
)

// maxRecordedRun bounds an output of a run that a client records, in bytes.
const maxRecordedRun = MaxFunctionOutput

// ParseInvocationID returns the id that s is. What is none is not found.
func ParseInvocationID(s string) (InvocationID, error) {
	if id := InvocationID(s); id.Valid() {
		return id, nil
	}
	return "", Errorf(NotFound, "run %s not found: ids look like inv and 20 letters and digits", quote(s))
}

// FunctionRollbackRequest goes back to an earlier version: POST /v1/functions/{id}/rollback.
type FunctionRollbackRequest struct {
	Version int64 `json:"version,omitempty" doc:"The newest ready one before the present one if absent."`
}

// Validate checks everything that can be checked without knowing the server.
func (r *FunctionRollbackRequest) Validate() error {
	if r.Version < 0 {
		return invalid("version", "%d is not a version", r.Version)
	}
	return nil
}

// Validate checks everything that can be checked without knowing the server.
func (r *UpdateFunctionRequest) Validate() error {
	if r.Name != nil && !ValidFunctionName(*r.Name) {
		return invalid("name", "%s is not a name of a function: use 1 to %d letters, digits, dots, dashes and _",
			quote(*r.Name), MaxFunctionName)
	}
	if r.Entrypoint != nil {
		if err := ValidateEntrypoint(*r.Entrypoint); err != nil {
			return err
		}
	}
	if r.Env != nil {
		if len(*r.Env) > MaxAppEnv {
			return invalid("env", "has %d variables: use at most %d", len(*r.Env), MaxAppEnv)
		}
		for name, value := range *r.Env {
			if err := ValidateAppVariable(name, value); err != nil {
				return err
			}
		}
	}
	if r.Settings != nil {
		return r.Settings.Validate()
	}
	return nil
}

// Validate checks everything that can be checked without knowing the server.
func (r *SetAliasRequest) Validate() error {
	if len(r.Versions) < 1 || len(r.Versions) > 2 {
		return invalid("versions", "has %d entries: use one version, or two with weights", len(r.Versions))
	}
	sum := 0
	for _, w := range r.Versions {
		if w.Version < 1 {
			return invalid("versions", "%d is not a version", w.Version)
		}
		if w.Weight < 0 || w.Weight > 100 {
			return invalid("versions", "weight %d is out of range: use 0 to 100", w.Weight)
		}
		sum += w.Weight
	}
	if len(r.Versions) == 1 && sum == 0 {
		r.Versions[0].Weight = 100
	} else if sum != 100 {
		return invalid("versions", "the weights add up to %d: make it 100", sum)
	}
	if len(r.Versions) == 2 && r.Versions[0].Version == r.Versions[1].Version {
		return invalid("versions", "version %d is there twice", r.Versions[0].Version)
	}
	return nil
}

// Validate checks everything that can be checked without knowing the server.
func (r *InvokeRequest) Validate() error {
	switch {
	case len(r.Input) > MaxFunctionPayload:
		return invalid("input", "has %d bytes: use at most %d", len(r.Input), MaxFunctionPayload)
	case r.Alias != "" && !ValidFunctionName(r.Alias):
		return invalid("alias", "%s is not a name of an alias", quote(r.Alias))
	case r.Version < 0:
		return invalid("version", "%d is not a version", r.Version)
	case r.Alias != "" && r.Version != 0:
		return invalid("version", "cannot be combined with alias: use one of them")
	case r.DelaySeconds < 0 || r.DelaySeconds > maxDelay:
		return invalid("delay_seconds", "%d is out of range: use 0 to %d", r.DelaySeconds, maxDelay)
	case r.DelaySeconds > 0 && !r.Async:
		return invalid("delay_seconds", "needs async: true")
	}
	return validKey("idempotency_key", r.IdempotencyKey)
}

// maxDelay bounds how much later something begins, in seconds.
const maxDelay = 14 * 24 * 3600

// maxKey bounds an idempotency key in bytes.
const maxKey = 255

func validKey(field, key string) error {
	if len(key) > maxKey {
		return invalid(field, "has %d bytes: use at most %d", len(key), maxKey)
	}
	return nil
}

// RecordRunRequest records a run that a client has made itself: POST /v1/functions/{id}/runs. Nothing is invoked.
type RecordRunRequest struct {
	SandboxID  SandboxID       `json:"sandbox_id,omitempty"`
	ScheduleID ScheduleID      `json:"schedule_id,omitempty"`
	Status     RunStatus       `json:"status" enum:"success,error,timeout" doc:"success if absent."`
	ExitCode   *int            `json:"exit_code,omitempty"`
	Result     json.RawMessage `json:"result,omitempty"`
	Stdout     string          `json:"stdout,omitempty"`
	Stderr     string          `json:"stderr,omitempty"`
	DurationMS float64         `json:"duration_ms,omitempty"`
	StartedAt  *time.Time      `json:"started_at,omitempty"`
	EndedAt    *time.Time      `json:"ended_at,omitempty"`
}

// Validate checks everything that can be checked without knowing the server.
func (r *RecordRunRequest) Validate() error {
	switch {
	case r.Status != "" && r.Status != RunSuccess && r.Status != RunError && r.Status != RunTimeout:
		return invalid("status", "%s is not how a run ends: use success, error or timeout", quote(string(r.Status)))
	case len(r.Stdout) > maxRecordedRun:
		return invalid("stdout", "has %d bytes: use at most %d", len(r.Stdout), maxRecordedRun)
	case len(r.Stderr) > maxRecordedRun:
		return invalid("stderr", "has %d bytes: use at most %d", len(r.Stderr), maxRecordedRun)
	case len(r.Result) > maxRecordedRun:
		return invalid("result", "has %d bytes: use at most %d", len(r.Result), maxRecordedRun)
	case r.DurationMS < 0 || r.DurationMS > 1e9:
		return invalid("duration_ms", "%g is out of range", r.DurationMS)
	}
	return nil
}

// RunFilter selects runs of a function.
type RunFilter struct {
	Status  RunStatus    // "": all
	Version int64        // 0: all
	Limit   int          // at most so many; 0: 100
	Before  InvocationID // only older ones; "": all
}

// MapRequest invokes a function for many inputs: POST /v1/functions/{id}/map.
type MapRequest struct {
	Inputs      []json.RawMessage `json:"inputs" doc:"Up to 1000 events."`
	Concurrency int               `json:"concurrency,omitempty" doc:"At once; that of the function if absent."`
	Alias       string            `json:"alias,omitempty"`
	Version     int64             `json:"version,omitempty"`
}

// Validate checks everything that can be checked without knowing the server.
func (r *MapRequest) Validate() error {
	switch {
	case len(r.Inputs) < 1 || len(r.Inputs) > MaxFunctionMap:
		return invalid("inputs", "has %d entries: use 1 to %d", len(r.Inputs), MaxFunctionMap)
	case r.Concurrency < 0 || r.Concurrency > MaxFunctionConcurrency:
		return invalid("concurrency", "%d is out of range: use 1 to %d", r.Concurrency, MaxFunctionConcurrency)
	}
	one := InvokeRequest{Alias: r.Alias, Version: r.Version}
	return one.Validate()
}

// MapProgress is one line of the response of a map. The last line has no run.
type MapProgress struct {
	Index  *int         `json:"index,omitempty" doc:"Of the input."`
	Run    *FunctionRun `json:"run,omitempty"`
	Done   int          `json:"done" doc:"Inputs whose runs have ended."`
	Total  int          `json:"total"`
	Errors int          `json:"errors" doc:"Runs that did not succeed."`
	Error  *Error       `json:"error,omitempty" doc:"Why the map ended early."`
}
