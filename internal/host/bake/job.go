package bake

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/snapshot"
)

// maxLogLines is how many lines of a bake's log are kept.
const maxLogLines = 200

// stepPercent is the progress when a step begins, in percent, as measured with the template base.
var stepPercent = map[string]int{
	"rootfs":     0,
	"image":      60,
	"boot":       75,
	"start":      78,
	"ready":      79,
	"check":      80,
	"warm":       85,
	"jit-warmup": 88,
	"capture":    95,
}

// job is one bake.
type job struct {
	recipe    Recipe
	force     bool
	done      chan struct{}
	onLog     func(step, line string) // receives the log of a publication, one call at a time; nil: not wanted
	minBytes  int64                   // least size of the result: that of the snapshot that it replaces
	recapture snapshot.Ref            // the snapshot to warm up and replace; "": the job is a bake

	logMu sync.Mutex // held while a line is stored and passed to onLog, so that both have one order; locked before mu

	mu     sync.Mutex
	cancel context.CancelCauseFunc // nil: not started
	cause  error                   // why it was cancelled
	bake   hostapi.Bake
	err    error
}

func newJob(r Recipe, force bool) *job {
	return &job{recipe: r, force: force, done: make(chan struct{}),
		bake: hostapi.Bake{State: "running", Step: "rootfs", Started: now()}}
}

func (j *job) active() bool {
	select {
	case <-j.done:
		return false
	default:
		return true
	}
}

// start gives the job its own context.
func (j *job) start(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.cancel = cancel
	if j.cause != nil {
		cancel(j.cause)
	}
	return ctx, cancel
}

func (j *job) stop(cause error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.cause = cause
	if j.cancel != nil {
		j.cancel(cause)
	}
}

func (j *job) step(name string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.bake.Step, j.bake.Percent = name, stepPercent[name]
}

func (j *job) log(line string) {
	j.logMu.Lock()
	defer j.logMu.Unlock()
	j.mu.Lock()
	step := j.bake.Step
	j.bake.Log = append(j.bake.Log, line)
	if n := len(j.bake.Log) - maxLogLines; n > 0 {
		j.bake.Log = slices.Delete(j.bake.Log, 0, n)
	}
	j.mu.Unlock()
	if j.onLog != nil {
		j.onLog(step, line)
	}
}

func (j *job) finish(err error) {
	j.mu.Lock()
	j.err, j.bake.Ended = err, now()
	if err != nil {
		j.bake.State, j.bake.Err = "failed", err.Error()
	} else {
		j.bake.State, j.bake.Percent = "done", 100
	}
	j.mu.Unlock()
	close(j.done)
}

// wait waits for the end of a bake and returns its error.
func (j *job) wait(ctx context.Context) error {
	select {
	case <-j.done:
		j.mu.Lock()
		defer j.mu.Unlock()
		return j.err
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx))
	}
}

func (j *job) status() *hostapi.Bake {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := j.bake
	out.Log = slices.Clone(out.Log)
	return &out
}

func now() time.Time { return time.Now().UTC() }
