// Package repl runs cells of code in stateful contexts inside a sandbox.
//
// Variables stay from cell to cell, results have rich forms, and a cell that takes too long is interrupted while its
// context keeps running. The package owns the drivers (small programs in the language itself) and the protocol
// with them. A context is a process of the guest that is found by its tag; the host keeps no state, so contexts
// survive hibernation and every fork has its own copies. Output of drivers is not trusted: it is bounded and parsed
// defensively. Cells of one context run one after the other; everything else may run at once.
package repl

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
	"github.com/pandastack/pandastack/internal/lib/budget"
)

// Language of a context.
type Language string

// The languages.
const (
	Python     Language = "python"
	JavaScript Language = "javascript"
	Bash       Language = "bash"
)

// Languages returns all languages.
func Languages() []Language { return []Language{Python, JavaScript, Bash} }

// ParseLanguage returns the language of a name or a usual alias; "" is Python.
func ParseLanguage(text string) (Language, error) {
	switch strings.ToLower(text) {
	case "", "python", "python3", "py":
		return Python, nil
	case "javascript", "js", "node", "nodejs":
		return JavaScript, nil
	case "bash", "sh", "shell":
		return Bash, nil
	}
	return "", fmt.Errorf("%w: language %.40q is not one of python, javascript, bash", guestapi.ErrInvalid, text)
}

//go:embed driver/python.py
var pythonDriver string

//go:embed driver/javascript.js
var javascriptDriver string

//go:embed driver/bash.sh
var bashDriver string

func (l Language) argv() []string {
	switch l {
	case JavaScript:
		return []string{"node", "-e", javascriptDriver}
	case Bash:
		return []string{"bash", "-c", bashDriver}
	default:
		return []string{"python3", "-u", "-c", pythonDriver}
	}
}

// Context is a process of the guest that runs cells and keeps their variables.
type Context struct {
	ID       string // lower-case letters and digits
	Language Language
	Dir      string
	User     string
	Created  time.Time
}

// Kind of an Event.
type Kind string

// The kinds of events.
const (
	Stdout Kind = "stdout" // Text
	Stderr Kind = "stderr" // Text
	Result Kind = "result" // Data, Main
	Failed Kind = "error"  // Name, Value, Traceback
	Count  Kind = "count"  // Count: cells of this context so far
)

// Event is output or a result of a cell.
type Event struct {
	Kind      Kind
	Text      string         // valid UTF-8
	Data      map[string]any // representations of a value by media type: text, or JSON; binary ones in base64
	Main      bool           // it is the value of the cell's last expression
	Name      string
	Value     string
	Traceback string
	Count     int
}

// Outcome is how a cell ended.
type Outcome struct {
	Code        int  // 0: success
	Interrupted bool // by its timeout, or because the caller gave up
	Took        time.Duration
}

// Cell is code to run.
type Cell struct {
	Code    string
	Env     map[string]string // for this cell alone
	Timeout time.Duration     // 0: none
	// Owner is the sandbox whose variables are Defaults, which stay from the first cell with this owner on; "": there
	// are none. A context that waited in a template was started without them. Bash contexts do not wait in templates.
	Owner    string
	Defaults map[string]string
	OnStart  func() // called when the code was sent, before any event; optional
}

// MaxCode bounds the code of one cell, in bytes.
const MaxCode = 4 << 20

func (c Cell) validate() error {
	if len(c.Code) > MaxCode {
		return fmt.Errorf("%w: code: has %d bytes, at most %d are allowed", guestapi.ErrInvalid, len(c.Code), MaxCode)
	}
	return nil
}

// ErrEnded means that a context does not exist any more.
//
// Its program exited, or was killed because it could not be interrupted.
var ErrEnded = errors.New("the context has ended")

const tagPrefix = "repl-"

// IsContextTag reports whether a process with this tag is a context. Its output is the protocol of its driver, not
// output of a user.
func IsContextTag(tag string) bool { return strings.HasPrefix(tag, tagPrefix) }

func contextTag(l Language, id string) string { return tagPrefix + string(l) + "-" + id }

func contextFromProcess(p guestapi.ProcessInfo) (Context, bool) {
	rest, ok := strings.CutPrefix(p.Tag, tagPrefix)
	if !ok || p.Exit != nil || strings.HasSuffix(rest, "-"+forkServerID) {
		return Context{}, false
	}
	lang, id, ok := strings.Cut(rest, "-")
	return Context{ID: id, Language: Language(lang), Dir: p.Dir, User: p.User, Created: p.Started}, ok
}

// idPrefixes are the beginnings of context ids by language, so that a cell needs no request to the guest to find
// the language of its context. Python's default context has no prefix.
var idPrefixes = map[Language]string{Python: "py", JavaScript: "js", Bash: "sh"}

const defaultID = "default"

// DefaultID returns the id of the context that a template keeps for a language.
func DefaultID(l Language) string {
	if l == Python {
		return defaultID
	}
	return idPrefixes[l] + defaultID
}

// ParseID returns the context of an id without a request to the guest.
//
// Only the language is known, and the context may have ended. The error is guestapi.ErrNotFound if no context has
// such an id.
func ParseID(id string) (Context, error) {
	if id == defaultID {
		return Context{ID: id, Language: Python}, nil
	}
	for l, word := range idPrefixes {
		rest, ok := strings.CutPrefix(id, word)
		if ok && rest != "" && len(rest) <= 32 && strings.Trim(rest, "0123456789abcdefghijklmnopqrstuvwxyz") == "" {
			return Context{ID: id, Language: l}, nil
		}
	}
	return Context{}, fmt.Errorf("context %.60q: %w", id, guestapi.ErrNotFound)
}

// Create starts a context. dir "" is the user's home, user "" the sandbox's default user.
//
// The error is guestapi.ErrNotFound if the sandbox has no program for the language.
func Create(ctx context.Context, g guestapi.Guest, l Language, dir, user string) (Context, error) {
	var raw [10]byte
	rand.Read(raw[:]) // never fails, by its documentation
	return start(ctx, g, l, idPrefixes[l]+hex.EncodeToString(raw[:]), dir, user)
}

// Default returns the default context of a language.
//
// It is the one that the template keeps, or one that Default starts with its id, in the user's home.
func Default(ctx context.Context, g guestapi.Guest, l Language) (Context, error) {
	c, err := Find(ctx, g, DefaultID(l))
	if !errors.Is(err, guestapi.ErrNotFound) {
		return c, err
	}
	c, err = start(ctx, g, l, DefaultID(l), "", "")
	if errors.Is(err, guestapi.ErrExists) { // by another request
		return Find(ctx, g, DefaultID(l))
	}
	return c, err
}

// Restart ends a context and starts a new one with the same id and no variables.
func Restart(ctx context.Context, g guestapi.Guest, c Context) (Context, error) {
	if err := Close(ctx, g, c); err != nil && !errors.Is(err, guestapi.ErrNotFound) {
		return Context{}, err
	}
	return start(ctx, g, c.Language, c.ID, c.Dir, c.User)
}

// Spec returns the process of a language's default context, for templates that start it ahead of time.
//
// dir and user are as in Create.
func Spec(l Language, dir, user string) guestapi.ProcessSpec { return spec(l, DefaultID(l), dir, user) }

func spec(l Language, id, dir, user string) guestapi.ProcessSpec {
	return guestapi.ProcessSpec{Argv: l.argv(), Dir: dir, User: user, Tag: contextTag(l, id), Stdin: true}
}

func start(ctx context.Context, g guestapi.Guest, l Language, id, dir, user string) (Context, error) {
	proc, err := g.Start(ctx, spec(l, id, dir, user))
	if err != nil {
		return Context{}, fmt.Errorf("start a %s context: %w", l, err)
	}
	if err := proc.Close(); err != nil {
		return Context{}, fmt.Errorf("start a %s context: %w", l, err)
	}
	return Context{ID: id, Language: l, Dir: dir, User: user, Created: time.Now()}, nil
}

// List returns the running contexts of a sandbox.
func List(ctx context.Context, g guestapi.Guest) ([]Context, error) {
	procs, err := g.Processes(ctx)
	if err != nil {
		return nil, err
	}
	var out []Context
	for _, p := range procs {
		if c, ok := contextFromProcess(p); ok {
			out = append(out, c)
		}
	}
	return out, nil
}

// Find returns a running context; the error is guestapi.ErrNotFound if it does not run.
func Find(ctx context.Context, g guestapi.Guest, id string) (Context, error) {
	all, err := List(ctx, g)
	if err != nil {
		return Context{}, err
	}
	for _, c := range all {
		if c.ID == id {
			return c, nil
		}
	}
	return Context{}, fmt.Errorf("context %.60q: %w", id, guestapi.ErrNotFound)
}

// Close ends a context and everything that its cells started, and returns when it has exited.
func Close(ctx context.Context, g guestapi.Guest, c Context) error {
	ref := guestapi.ProcessRef{Tag: contextTag(c.Language, c.ID)}
	proc, err := g.Attach(ctx, ref, guestexec.FromNow)
	if err != nil {
		return err
	}
	defer proc.Close()
	if err := g.Signal(ctx, ref, int(syscall.SIGKILL), true); err != nil {
		return err
	}
	wait, cancel := context.WithTimeoutCause(ctx, interruptTimeout, errors.New("the context does not end"))
	defer cancel()
	_, err = guestexec.Follow(wait, proc, guestexec.Sink{})
	return err
}

// Runner starts contexts and runs cells, those of one context one after the other. Its zero value is ready to use.
type Runner struct {
	MaxContexts int // that a sandbox may have when Create starts one more; 0: unlimited

	environments environments

	mu    sync.Mutex
	turns map[string]*turn    // guarded by mu
	ended map[string][]string // ids of the last contexts that End ended, by sandbox; guarded by mu
}

// Bounds of the ended contexts that a Runner remembers, to refuse cells that are sent right after the end. No sandbox
// makes the Runner forget those of another one.
const (
	maxEnded          = 16   // of one sandbox
	maxEndedSandboxes = 4096 // the contexts of an arbitrary one are forgotten then
)

// key identifies a context among those of all sandboxes.
func key(sandbox string, c Context) string { return sandbox + "/" + c.ID }

// createKey is the turn of Create in a sandbox. No context has such an id.
const createKey = "/create"

// Create starts a context as the function Create does, unless the sandbox has as many as it may have.
//
// The error is then a *budget.Error and guestapi.ErrBusy. Contexts that a template starts and those of Default count,
// but are never refused: there is one of each language.
func (r *Runner) Create(
	ctx context.Context,
	sandbox string,
	g guestapi.Guest,
	l Language,
	dir, user string,
) (Context, error) {
	if r.MaxContexts == 0 {
		return Create(ctx, g, l, dir, user)
	}
	done, err := r.acquireTurn(ctx, sandbox+createKey)
	if err != nil {
		return Context{}, err
	}
	defer done()
	running, err := List(ctx, g)
	if err != nil {
		return Context{}, err
	}
	if n := len(running); n >= r.MaxContexts {
		return Context{}, fmt.Errorf("%w: %w", guestapi.ErrBusy, &budget.Error{
			Pool: "contexts", Level: "sandbox", Owner: sandbox,
			Used: int64(n), Allowed: int64(r.MaxContexts), Wanted: 1,
		})
	}
	return Create(ctx, g, l, dir, user)
}

// End ends a context as Close does, and makes Run return guestapi.ErrNotFound for it from then on.
//
// Contexts of DefaultID are excepted, since they may be started again.
func (r *Runner) End(ctx context.Context, sandbox string, g guestapi.Guest, c Context) error {
	if err := Close(ctx, g, c); err != nil || c.ID == DefaultID(c.Language) {
		return err
	}
	r.remember(sandbox, c.ID)
	return nil
}

// remember remembers a context that was ended.
func (r *Runner) remember(sandbox, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended == nil {
		r.ended = map[string][]string{}
	}
	list, known := r.ended[sandbox]
	if !known && len(r.ended) == maxEndedSandboxes {
		for other := range r.ended {
			delete(r.ended, other)
			break
		}
	}
	if len(list) == maxEnded {
		list = slices.Delete(list, 0, 1)
	}
	r.ended[sandbox] = append(list, id)
}

// checkNotEnded returns an error for a context that End ended.
func (r *Runner) checkNotEnded(sandbox string, c Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.Contains(r.ended[sandbox], c.ID) {
		return fmt.Errorf("%w: %w", ErrEnded, guestapi.ErrNotFound)
	}
	return nil
}

type turn struct {
	free  chan struct{} // holds a token while no cell runs
	users int           // guarded by Runner.mu
}

// acquireTurn waits until no other cell of the context runs; the returned function ends the turn.
func (r *Runner) acquireTurn(ctx context.Context, key string) (func(), error) {
	r.mu.Lock()
	if r.turns == nil {
		r.turns = map[string]*turn{}
	}
	t := r.turns[key]
	if t == nil {
		t = &turn{free: make(chan struct{}, 1)}
		t.free <- struct{}{}
		r.turns[key] = t
	}
	t.users++
	r.mu.Unlock()
	leave := func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(r.turns, key)
		}
	}
	select {
	case <-t.free:
		return func() { t.free <- struct{}{}; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}

const (
	// interruptTimeout is how long an interrupted cell has to end before its context is killed.
	interruptTimeout = 10 * time.Second
	// interruptInterval is how long it has before it is interrupted again: a signal that arrives before the cell
	// runs has nothing to end.
	interruptInterval = 2 * time.Second
)

// Run runs a cell in a context of the given sandbox and calls yield for each of its events.
//
// The cell is interrupted when its timeout passes, ctx ends, or yield returns an error. If the cell does not end
// then, its context is killed and the error is ErrEnded. For a context that had ended before, the error is
// guestapi.ErrNotFound, too.
func (r *Runner) Run(
	ctx context.Context,
	sandbox string,
	g guestapi.Guest,
	c Context,
	cell Cell,
	yield func(Event) error,
) (Outcome, error) {
	if err := cell.validate(); err != nil {
		return Outcome{}, err
	}
	done, err := r.acquireTurn(ctx, key(sandbox, c))
	if err != nil {
		return Outcome{}, err
	}
	defer done()
	if err := r.checkNotEnded(sandbox, c); err != nil {
		return Outcome{}, err
	}
	proc, err := g.Attach(ctx, guestapi.ProcessRef{Tag: contextTag(c.Language, c.ID)}, guestexec.FromNow)
	if err != nil {
		return Outcome{}, err
	}
	defer proc.Close()
	began := time.Now()
	memory := budget.FromContext(ctx)
	e := &execution{guest: g, proc: proc, protocol: newProtocol(c.Language, memory), yield: yield}
	e.end = e.interrupt
	if _, err := proc.Write(e.protocol.request(cell)); err != nil {
		return Outcome{}, fmt.Errorf("%w: %w: %w", ErrEnded, guestapi.ErrNotFound, err)
	}
	if cell.OnStart != nil {
		cell.OnStart()
	}
	out, err := e.run(ctx, cell.Timeout)
	out.Took = time.Since(began)
	return out, err
}

var errCellTimeout = errors.New("the timeout of the cell has passed")

// execution is one cell that a context runs.
type execution struct {
	guest    guestapi.Guest
	proc     guestapi.Process // of the context
	protocol protocol
	yield    func(Event) error
	end      func(context.Context) (int, error) // ends the cell and returns its code
	code     int                                // of the cell, once it has ended
	// driverReady is whether the context's driver has printed something, and so is ready for signals.
	driverReady bool
}

// errStop ends the reading of a context that keeps running.
var errStop = errors.New("reading was stopped")

// read reads the output of the context until the cell has ended. failed is the first error of the protocol or of
// yield; err says why nothing more can be read, ErrEnded if the context's process has exited.
func (e *execution) read(ctx context.Context) (ended bool, failed, err error) {
	_, err = guestexec.Follow(ctx, e.proc, guestexec.Sink{Output: func(ev guestapi.Event) error {
		e.driverReady = e.driverReady || ev.Stream == guestapi.StreamStdout && len(ev.Data) > 0
		if e.code, ended, failed = e.protocol.handle(ev, e.yield); ended || failed != nil {
			return errStop
		}
		return nil
	}})
	switch {
	case err == nil:
		return false, nil, ErrEnded
	case errors.Is(err, errStop):
		return ended && failed == nil, failed, nil
	}
	return false, nil, err
}

// run reads until the cell has ended, and interrupts it when its timeout passes, ctx ends or yield fails.
func (e *execution) run(ctx context.Context, timeout time.Duration) (Outcome, error) {
	wait, stop := ctx, context.CancelFunc(func() {})
	if timeout > 0 {
		wait, stop = context.WithTimeoutCause(ctx, timeout, errCellTimeout)
	}
	defer stop()
	ended, failed, err := e.read(wait)
	switch {
	case ended:
		return Outcome{Code: e.code}, nil
	case errors.Is(err, ErrEnded):
		return Outcome{}, fmt.Errorf("%w%s", ErrEnded, e.protocol.lastOutput())
	case wait.Err() != nil && context.Cause(wait) == errCellTimeout:
		code, err := e.end(ctx)
		return Outcome{Code: code, Interrupted: true}, err
	default:
		e.yield = func(Event) error { return nil }
		_, stuck := e.end(ctx)
		return Outcome{Interrupted: true}, errors.Join(failed, err, stuck)
	}
}

// interrupt ends the cell and keeps its context; if the cell does not end, it kills both.
func (e *execution) interrupt(ctx context.Context) (int, error) {
	if !e.driverReady {
		waitDriverReady(ctx, e.guest, e.proc.PID())
	}
	limited, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), interruptTimeout, errCellTimeout)
	defer cancel()
	ref := guestapi.ProcessRef{PID: e.proc.PID()}
	for first := true; limited.Err() == nil; first = false {
		if err := e.guest.Signal(limited, ref, int(syscall.SIGINT), true); err != nil {
			if first {
				return 0, err
			}
			break
		}
		try, stop := context.WithTimeoutCause(limited, interruptInterval, errCellTimeout)
		ended, failed, err := e.read(try)
		again := try.Err() != nil
		stop()
		if ended || failed != nil {
			return e.code, failed
		}
		if errors.Is(err, ErrEnded) || !again {
			break
		}
	}
	err := guestexec.Signal(ctx, e.guest, ref, int(syscall.SIGKILL))
	return 0, errors.Join(fmt.Errorf("%w: the cell could not be interrupted", ErrEnded), err)
}

// waitDriverReady waits until a context's driver has printed something: from then on a signal does not end it.
//
// The driver of an earlier release may have printed nothing, so the wait is bounded. Errors are not returned: the
// next request to the guest meets the same.
func waitDriverReady(ctx context.Context, g guestapi.Guest, pid uint32) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), interruptTimeout, errCellTimeout)
	defer cancel()
	from := guestexec.FromNow
	from.Stdout = 0
	_, _ = guestexec.Attach(ctx, g, guestapi.ProcessRef{PID: pid}, from, guestexec.Sink{
		Output: func(e guestapi.Event) error {
			if e.Stream == guestapi.StreamStdout {
				return errStop
			}
			return nil
		},
	})
}
