package hosttest

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// Fail makes the next call of op fail with err before it has any effect. Two calls of Fail make the next two
// calls of op fail. Operations have the names of the methods in lower case ("takesnapshot"); "child" is one
// child of a fork.
func (h *Host) Fail(op string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failing[op] = append(h.failing[op], err)
}

// FailAfter makes the next call of op return err although it has its effect.
func (h *Host) FailAfter(op string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failingAfter[op] = append(h.failingAfter[op], err)
}

// SetHook sets a function that is called around every operation; nil removes it.
func (h *Host) SetHook(hook Hook) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hook = hook
}

// SetGuestHook sets a function that guests which start from now on call before every request. They return its error.
func (h *Host) SetGuestHook(hook func(ctx context.Context) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.guestHook = hook
}

// ServeSocket makes guests that start from now on have a server at a Unix socket.
func (h *Host) ServeSocket(path string, serve SocketServer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sockets = maps.Clone(h.sockets)
	if h.sockets == nil {
		h.sockets = map[string]SocketServer{}
	}
	h.sockets[path] = serve
}

// ServePort makes the guest of a machine have a server at a port, until the machine sleeps or ends.
func (h *Host) ServePort(id hostapi.MachineID, port uint16, serve func(net.Conn)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m := h.machines[id]; m != nil {
		m.guest.ports[port] = serve
	}
}

// SetTemplateFile makes machines of a template have a file on its root disk.
func (h *Host) SetTemplateFile(name hostapi.TemplateName, path, content string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.publishedState[name]
	if c == nil {
		c = &guestState{files: map[string]file{}}
		h.publishedState[name] = c
	}
	c.files[path] = file{data: []byte(content), mode: 0o644, at: time.Now()}
}

// SetMaxRunning limits the number of machines that run.
func (h *Host) SetMaxRunning(machines int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.maxRunning = machines
}

// SetMemoryShort makes the host report that it is short of memory.
func (h *Host) SetMemoryShort(short bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.memoryShort = short
}

// Calls lists the operations so far, as "op id", without those that only read.
func (h *Host) Calls() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.calls)
}

// Kill ends a machine's monitor and emits the event. A persistent machine is Failed afterwards, any other is
// removed.
func (h *Host) Kill(id hostapi.MachineID, reason string) {
	h.mu.Lock()
	m := h.machines[id]
	h.mu.Unlock()
	if m == nil {
		return
	}
	m.op.Lock()
	h.mu.Lock()
	printed := consoleText(m)
	m.stopGuest(hostapi.Failed)
	m.Reason = reason
	if !m.Persistent {
		h.detachAll(m)
		m.removed = true
		delete(h.machines, id)
	}
	h.mu.Unlock()
	m.op.Unlock()
	h.Emit(hostapi.Event{Time: time.Now(), Machine: id, Type: "died", Reason: reason, Console: printed})
}

// Lose removes a machine without an event, like a host whose disk was replaced.
func (h *Host) Lose(id hostapi.MachineID) { h.remove(id) }

// SetRecovering makes every operation return ErrUnavailable, or ends that.
//
// So behaves a host that has not recovered its machines yet or cannot be reached.
func (h *Host) SetRecovering(recovering bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.recovering = recovering
}

// Unlist makes List leave a machine out; Get still returns it.
func (h *Host) Unlist(id hostapi.MachineID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unlisted[id] = true
}

// SetWaiting makes a machine wait for disk space, or continue. An event reports it.
func (h *Host) SetWaiting(id hostapi.MachineID, waiting bool) {
	h.mu.Lock()
	m, kind := h.machines[id], "resumed"
	if m != nil {
		m.State, m.PauseReason = hostapi.Running, ""
		if waiting {
			m.State, m.PauseReason, kind = hostapi.Paused, hostapi.PausedNoSpace, "paused"
		}
	}
	h.mu.Unlock()
	h.Emit(hostapi.Event{Time: time.Now(), Machine: id, Type: kind, Reason: string(hostapi.PausedNoSpace)})
}

// SetUnresponsive makes a machine's guest one that does not reply since a time, zero: that does.
//
// An event reports it.
func (h *Host) SetUnresponsive(id hostapi.MachineID, since time.Time) {
	h.mu.Lock()
	kind := "responsive"
	if !since.IsZero() {
		kind = "unresponsive"
	}
	if m := h.machines[id]; m != nil {
		m.Unresponsive = since
	}
	h.mu.Unlock()
	h.Emit(hostapi.Event{Time: time.Now(), Machine: id, Type: kind})
}

// Emit sends an event to all subscribers.
func (h *Host) Emit(e hostapi.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e.Host = h.id
	for _, ch := range h.subscribers {
		select {
		case ch <- e:
		default: // a subscriber that is 1024 events behind has to compare everything
		}
	}
}

// Subscribers returns the number of open streams of events.
func (h *Host) Subscribers() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.subscribers)
}

// Close destroys all machines.
func (h *Host) Close() {
	for _, m := range h.Machines() {
		h.remove(m.ID)
	}
}

// readOnlyOps are not in Calls.
var readOnlyOps = []string{
	"get",
	"getsnapshot",
	"list",
	"guest",
	"usage",
	"console",
	"snapshots",
	"templates",
	"images",
	"getvolume",
	"volumes",
	"backups",
	"capacity",
	"events",
}

func (h *Host) nextFault(from map[string][]error, op string) error {
	list := from[op]
	if len(list) == 0 {
		return nil
	}
	from[op] = list[1:]
	return list[0]
}

// runOp runs one operation with the faults that are set for it.
func (h *Host) runOp(ctx context.Context, op, id string, f func() error) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	h.mu.Lock()
	err, hook := h.nextFault(h.failing, op), h.hook
	if h.recovering {
		err = fmt.Errorf("%s %s: %w", op, id, hostapi.ErrUnavailable)
	}
	if !slices.Contains(readOnlyOps, op) {
		h.calls = append(h.calls, op+" "+id)
	}
	h.mu.Unlock()
	if err != nil {
		return err
	}
	if hook != nil {
		if err := hook(ctx, op, id, false); err != nil {
			return err
		}
	}
	if err := f(); err != nil {
		return err
	}
	h.mu.Lock()
	err = h.nextFault(h.failingAfter, op)
	h.mu.Unlock()
	if err != nil || hook == nil {
		return err
	}
	return hook(ctx, op, id, true)
}

// withMachine runs one operation on an existing machine, with its lock and the host's.
func (h *Host) withMachine(ctx context.Context, op string, id hostapi.MachineID, f func(*machine) error) error {
	return h.runOp(ctx, op, string(id), func() error {
		h.mu.Lock()
		m := h.machines[id]
		h.mu.Unlock()
		if m == nil {
			return fmt.Errorf("machine %s: %w", id, hostapi.ErrNotFound)
		}
		m.op.Lock()
		defer m.op.Unlock()
		h.mu.Lock()
		defer h.mu.Unlock()
		if m.removed {
			return fmt.Errorf("machine %s: %w", id, hostapi.ErrNotFound)
		}
		return f(m)
	})
}
