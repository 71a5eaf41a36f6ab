package function

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// command is what runs the handler.
type command struct {
	argv  []string
	env   []string
	stdin *os.File
	files []*os.File   // 3, 4, ... in the process
	tee   func([]byte) // gets the standard output; nil: none
}

// process is a process of the handler with its outputs, and what it started.
type process struct {
	place  Place
	cmd    *exec.Cmd
	group  controlGroup
	taps   []*tap
	logs   logDecoder
	rest   func(stream int, p []byte) // output of no call
	killed chan struct{}              // closed by kill
	exited chan struct{}
	ooms   int64 // of the machine before the process began

	// Set when exited is closed.
	state  *os.ProcessState
	memory bool // the kernel killed it for its memory
	tail   []byte

	mu      sync.Mutex
	calls   []*call // that run, the oldest first
	retired bool    // takes no more calls, and ends with the last
	gone    bool    // has ended; its number may become another's
	warned  bool    // was asked to end
}

// startProcess starts a process. withLogs gives it a pipe for records as its last file.
func startProcess(place Place, c command, withLogs bool, rest func(int, []byte)) (*process, error) {
	p := &process{place: place, rest: rest, killed: make(chan struct{}), exited: make(chan struct{}), ooms: oomKills()}
	p.logs.each = p.deliver
	argv := append([]string{place.Program, "launch", strconv.Itoa(place.UID), "--"}, c.argv...)
	p.cmd = exec.Command(argv[0], argv[1:]...)
	p.cmd.Env, p.cmd.Dir, p.cmd.Stdin = c.env, place.Code, c.stdin
	var ends []*os.File
	fail := func(err error) (*process, error) {
		for i, t := range p.taps {
			err = errors.Join(err, ends[i].Close(), t.file.Close())
		}
		p.group.close()
		return nil, fmt.Errorf("start the handler: %w", err)
	}
	sinks := []func([]byte){
		func(b []byte) {
			if c.tee != nil {
				c.tee(b)
			}
			p.untagged(streamOut, b)
		},
		func(b []byte) { p.untagged(streamErr, b) },
	}
	if withLogs {
		sinks = append(sinks, p.logs.write)
	}
	for _, sink := range sinks {
		t, end, err := newTap(sink)
		if err != nil {
			return fail(err)
		}
		p.taps, ends = append(p.taps, t), append(ends, end)
	}
	p.cmd.Stdout, p.cmd.Stderr = ends[0], ends[1]
	p.cmd.ExtraFiles = append(slices.Clone(c.files), ends[2:]...)
	p.group = openGroup()
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, UseCgroupFD: p.group.fd >= 0, CgroupFD: p.group.fd}
	if err := p.cmd.Start(); err != nil {
		return fail(err)
	}
	for i, t := range p.taps {
		_ = ends[i].Close() // the process has its own
		go t.run()
	}
	go p.wait()
	return p, nil
}

// wait waits for the process, and then ends all that it started.
func (p *process) wait() {
	defer close(p.exited)
	// The number of the process stays its own until it is waited for.
	for unix.Waitid(unix.P_PID, p.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
		continue
	}
	p.mu.Lock()
	p.group.close()
	_ = unix.Kill(-p.cmd.Process.Pid, unix.SIGKILL) // there is none if all have ended
	p.gone = true
	p.mu.Unlock()
	_ = p.cmd.Wait() // the state says the same
	p.state = p.cmd.ProcessState
	status, _ := p.state.Sys().(syscall.WaitStatus)
	p.drain()
	for _, t := range p.taps {
		t.close()
	}
	select {
	case <-p.killed:
	default:
		p.memory = status.Signaled() && (status.Signal() == syscall.SIGKILL && oomKills() > p.ooms ||
			status.Signal() == syscall.SIGABRT && bytes.Contains(p.tail, []byte("heap out of memory")))
	}
}

// kill ends the process and what it started.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retired = true
	if p.gone {
		return
	}
	select {
	case <-p.killed:
	default:
		close(p.killed)
	}
	p.group.kill()
	killTree(p.cmd.Process.Pid, 0)
}

// terminate asks the process to end, if c is its only call.
func (p *process) terminate(c *call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.gone && len(p.calls) == 1 && p.calls[0] == c {
		p.warned = true
		_ = unix.Kill(-p.cmd.Process.Pid, unix.SIGTERM) // one that has ended needs none
	}
}

// wasWarned reports whether the process was asked to end because of a deadline.
func (p *process) wasWarned() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.warned
}

// add registers a call, so that it gets output. It fails if the process takes no more.
func (p *process) add(c *call) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.retired || p.ended() {
		return false
	}
	p.calls = append(p.calls, c)
	return true
}

// remove ends a call. A process that takes no more ends with its last.
func (p *process) remove(c *call) {
	p.mu.Lock()
	p.calls = slices.DeleteFunc(p.calls, func(x *call) bool { return x == c })
	last := p.retired && len(p.calls) == 0
	p.mu.Unlock()
	if last {
		p.kill()
	}
}

// retire lets the calls end that run, but for one that has no time left, and takes no more.
func (p *process) retire(late *call) {
	p.mu.Lock()
	p.retired = true
	last := !slices.ContainsFunc(p.calls, func(x *call) bool { return x != late })
	p.mu.Unlock()
	if last {
		p.kill()
	}
}

func (p *process) ended() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// usable reports whether the process takes calls.
func (p *process) usable() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.retired && !p.ended()
}

// settle delivers the output of a call that has ended: what was written until now, or all if the process was killed.
func (p *process) settle() {
	select {
	case <-p.killed:
		<-p.exited
	case <-p.exited:
	default:
		p.drain()
	}
}

// drain delivers the output that was written until now.
func (p *process) drain() {
	for _, t := range p.taps {
		t.drain()
	}
}

// untagged takes what was written to a standard output: by programs that the handler started, for example.
func (p *process) untagged(stream int, b []byte) {
	p.mu.Lock()
	if stream == streamErr {
		p.tail = append(p.tail, b...)
		p.tail = p.tail[max(0, len(p.tail)-maxRecord):]
	}
	var to *capture
	if len(p.calls) > 0 {
		to = p.calls[0].out
	}
	p.mu.Unlock()
	if to == nil {
		p.rest(stream, b)
		return
	}
	to.add(stream, b)
}

// deliver takes a record of the output of a call.
func (p *process) deliver(stream int, number uint32, b []byte) {
	p.mu.Lock()
	i := slices.IndexFunc(p.calls, func(c *call) bool { return c.number == number })
	var to *capture
	if i >= 0 {
		to = p.calls[i].out
	}
	p.mu.Unlock()
	if to == nil {
		p.rest(stream, b)
		return
	}
	to.add(stream, b)
}

// peak returns the most memory that the process had so far.
func (p *process) peak() int64 {
	if p.ended() {
		if usage, ok := p.state.SysUsage().(*syscall.Rusage); ok {
			return usage.Maxrss << 10
		}
		return 0
	}
	return kilobytes("/proc/"+strconv.Itoa(p.cmd.Process.Pid)+"/status", "VmHWM:") << 10
}

// exitWait is how long a process may take to end after its connection has ended.
const exitWait = 2 * time.Second

// ending waits for the exit of a process whose connection has ended, and returns how it ended. The end of ctx comes
// first: then it is the reason.
func (p *process) ending(ctx context.Context) (*failure, *int) {
	t := time.NewTimer(exitWait)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return timedOut(), nil
	default:
	}
	select {
	case <-ctx.Done():
		return timedOut(), nil
	case <-p.exited:
		return exitFailure(p.state, p.memory)
	case <-t.C:
		p.retire(nil)
		return failed(typeClosed, "the handler closed the connection of its call"), nil
	}
}

// oomKills returns how many processes of this machine the kernel has killed for their memory.
func oomKills() int64 { return kilobytes("/proc/vmstat", "oom_kill") }

// kilobytes reads the figure after a name in a file of /proc; 0 if there is none.
func kilobytes(file, name string) int64 {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == name {
			n, _ := strconv.ParseInt(fields[1], 10, 64) // 0 is no figure
			return n
		}
	}
	return 0
}

// killTree stops a process before it looks for its children, so that it makes no new ones meanwhile.
func killTree(pid, depth int) {
	_ = unix.Kill(pid, unix.SIGSTOP) // one that has ended needs none of this
	if depth < 64 {
		tasks, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children") // the pattern is well formed
		for _, file := range tasks {
			data, _ := os.ReadFile(file) // nothing: the thread has ended
			for word := range strings.FieldsSeq(string(data)) {
				if n, err := strconv.Atoi(word); err == nil {
					killTree(n, depth+1)
				}
			}
		}
	}
	_ = unix.Kill(pid, unix.SIGKILL)
}

// controlGroup holds a process and all that it starts. Without one, fd is -1 and its methods do nothing.
type controlGroup struct {
	dir string
	fd  int
}

// openGroup makes a control group below that of this process. A machine without control groups of version 2, or a
// process that is not root, has none.
func openGroup() controlGroup {
	none := controlGroup{fd: -1}
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil || os.Getuid() != 0 {
		return none
	}
	own, ok := strings.CutPrefix(strings.TrimSpace(string(data)), "0::")
	if !ok || strings.Contains(own, "\n") {
		return none
	}
	dir, err := os.MkdirTemp(filepath.Join("/sys/fs/cgroup", own), "function-")
	if err != nil {
		return none
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		_ = os.Remove(dir) // an empty directory that the end of the machine removes too
		return none
	}
	return controlGroup{dir: dir, fd: fd}
}

// kill kills all processes of the group at once, so that none can fork out of reach.
func (g controlGroup) kill() {
	if g.fd >= 0 {
		_ = os.WriteFile(filepath.Join(g.dir, "cgroup.kill"), []byte("1"), 0) // killTree does it again
	}
}

// close kills the group and removes it, when its processes are gone.
func (g controlGroup) close() {
	if g.fd < 0 {
		return
	}
	g.kill()
	_ = unix.Close(g.fd)
	for range 100 {
		if err := os.Remove(g.dir); !errors.Is(err, unix.EBUSY) {
			return
		}
		t := time.NewTimer(time.Millisecond)
		<-t.C
	}
}
