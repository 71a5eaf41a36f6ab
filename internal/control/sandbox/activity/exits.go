package activity

import (
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// Limits of what is recorded of processes.
const (
	maxRecorded = 16 // per sandbox
	maxTail     = 4 << 10
	maxCommand  = 512
)

// ProcessEnd is a process started through the API: how it ended, or that it was last seen running.
type ProcessEnd struct {
	PID     uint32    `json:"pid"`
	Tag     string    `json:"tag,omitempty"`
	Command string    `json:"command"` // at most 512 bytes of it
	Started time.Time `json:"started"`
	Exited  bool      `json:"exited"`
	Ended   time.Time `json:"ended,omitzero"`
	Code    int       `json:"code"`
	Error   string    `json:"error,omitempty"` // why it could not start
	// Stdout and Stderr are the last output that a client read, at most 4 KiB each; a terminal's is in
	// Stdout.
	Stdout string `json:"stdout,omitempty"`
	Stderr string `json:"stderr,omitempty"`
	// When the lines of these arrived, the first line first; nil: not known.
	StdoutAt LineTimes `json:"stdout_at,omitempty"`
	StderrAt LineTimes `json:"stderr_at,omitempty"`
}

// exitRecorder records the last processes of each sandbox. The zero value is ready for use.
type exitRecorder struct {
	mu sync.Mutex
	m  map[string][]*processRecord
}

// processRecord is the record of one process.
type processRecord struct {
	mu             sync.Mutex
	p              ProcessEnd // without output
	stdout, stderr tail
}

// start records a new process.
func (r *exitRecorder) start(id string, pid uint32, spec guestapi.ProcessSpec) *processRecord {
	command := spec.Shell
	if command == "" {
		command = strings.Join(spec.Argv, " ")
	}
	if len(command) > maxCommand {
		command = command[:maxCommand]
	}
	e := &processRecord{
		p: ProcessEnd{PID: pid, Tag: spec.Tag, Command: Printable([]byte(command)), Started: time.Now().UTC()},
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.m == nil {
		r.m = map[string][]*processRecord{}
	}
	list := append(r.m[id], e)
	if len(list) > maxRecorded {
		list = append([]*processRecord(nil), list[len(list)-maxRecorded:]...)
	}
	r.m[id] = list
	return e
}

// find returns the record of a process, nil if there is none.
func (r *exitRecorder) find(id string, pid uint32) *processRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.m[id]
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].p.PID == pid {
			return list[i]
		}
	}
	return nil
}

// list returns the processes of a sandbox, oldest first.
func (r *exitRecorder) list(id string) []ProcessEnd {
	r.mu.Lock()
	list := append([]*processRecord(nil), r.m[id]...)
	r.mu.Unlock()
	out := make([]ProcessEnd, 0, len(list))
	for _, e := range list {
		e.mu.Lock()
		p := e.p
		p.Stdout, p.StdoutAt = Printable(e.stdout.data), e.stdout.lineTimes()
		p.Stderr, p.StderrAt = Printable(e.stderr.data), e.stderr.lineTimes()
		e.mu.Unlock()
		out = append(out, p)
	}
	return out
}

// load adds records from before this program started, which are older than its own.
func (r *exitRecorder) load(id string, old []ProcessEnd) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.m == nil {
		r.m = map[string][]*processRecord{}
	}
	now := r.m[id]
	if room := maxRecorded - len(now); len(old) > room {
		old = old[len(old)-room:]
	}
	list := make([]*processRecord, 0, len(old)+len(now))
	for _, p := range old {
		e := &processRecord{stdout: loadTail(p.Stdout, p.StdoutAt), stderr: loadTail(p.Stderr, p.StderrAt)}
		p.Stdout, p.Stderr, p.StdoutAt, p.StderrAt = "", "", nil, nil
		e.p = p
		list = append(list, e)
	}
	r.m[id] = append(list, now...)
}

func (r *exitRecorder) forget(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.m, id)
}

// observe records an event of the process.
func (e *processRecord) observe(ev guestapi.Event) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case ev.Exit != nil:
		e.p.Exited, e.p.Code, e.p.Error, e.p.Ended = true, ev.Exit.Code, Printable(
			[]byte(ev.Exit.Error),
		), time.Now().
			UTC()
	case ev.Stream == guestapi.StreamStderr:
		e.stderr.add(ev, time.Now())
	default:
		e.stdout.add(ev, time.Now())
	}
}
