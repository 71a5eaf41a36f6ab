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

// maxLogLines is how much of a bake's log is kept.
const maxLogLines = 200

// stepPercent of the whole that is done when a step begins, in percent, as measured with the template base.
var stepPercent = map[string]int{
	"rootfs":   0,
	"image":    60,
	"boot":     75,
	"start":    78,
	"ready":    79,
	"check":    80,
	"warm":     85,
	"rehearse": 88,
	"capture":  95,
}

// job is one bake.
type job struct {
	recipe    Recipe
	force     bool
	done      chan struct{}
	onLog     func(step, line string) // who published and wants to hear; one call at a time; nil: nobody
	minBytes  int64                   // bytes that it takes at least, known of what is taken anew
	recapture snapshot.Ref            // of what is rehearsed and taken anew; "": the template is baked

	logMu sync.Mutex // held while a line is kept and told, so that both have one order; taken before mu

	mu     sync.Mutex
	cancel context.CancelCauseFunc // nil: not begun
	cause  error                   // cancelled before it began
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

// wait waits for the end of a bake and answers how it ended.
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
