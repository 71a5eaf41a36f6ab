package buildplan

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// command is a program to run to its end.
type command struct {
	argv []string
	dir  string
	env  map[string]string // all of it
	out  io.Writer         // of its standard output; nil: lines of the step's, as standard error always is
	in   io.Reader
}

// exec runs a command, and returns when it and everything that it started have ended.
//
// What outlives the command is killed: a snapshot of the machine has none of it. Processes that leave their group and
// their parent are found because this program is the reaper of its descendants, and in a control group of their own
// where the machine has them.
func (r *run) exec(ctx context.Context, c command) error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become reaper: %w", err)
	}
	group := openGroup()
	defer group.close()
	cmd := exec.Command(c.argv[0], c.argv[1:]...)
	cmd.Dir, cmd.Stdin = c.dir, c.in
	cmd.Env = environ(c.env)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, UseCgroupFD: group.fd >= 0, CgroupFD: group.fd}
	if path := find(c.argv[0], c.env["PATH"]); path != "" {
		cmd.Path, cmd.Err = path, nil
	}
	lines := &lineWriter{o: r.out}
	said, err := openOutput(lines, lines.end)
	if err != nil {
		return err
	}
	defer said.close()
	cmd.Stdout, cmd.Stderr = said.write, said.write
	own := said
	if c.out != nil {
		if own, err = openOutput(c.out, func() {}); err != nil {
			return err
		}
		defer own.close()
		cmd.Stdout = own.write
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	said.begin()
	if own != said {
		own.begin()
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	select {
	case err = <-exited:
	case <-ctx.Done():
		group.kill()
		killDescendants(cmd.Process.Pid)
		<-exited
		err = context.Cause(ctx)
	}
	group.kill()
	killDescendants(0)
	err = errors.Join(err, <-said.copied)
	if own != said {
		err = errors.Join(err, <-own.copied)
	}
	return err
}

// outputPipe brings what a command writes to where it belongs.
type outputPipe struct {
	read, write *os.File
	to          io.Writer
	end         func()     // is called after the last byte
	copied      chan error // gets one value after that
}

func openOutput(to io.Writer, end func()) (*outputPipe, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	return &outputPipe{read: read, write: write, to: to, end: end, copied: make(chan error, 1)}, nil
}

// begin copies once the command has the other end.
func (p *outputPipe) begin() {
	_ = p.write.Close() // the command has its own
	go func() {
		_, err := io.Copy(p.to, p.read)
		p.end()
		p.copied <- err
	}()
}

// close closes both ends, of which one may be closed.
func (p *outputPipe) close() {
	_ = p.write.Close()
	_ = p.read.Close()
}

// find looks a program up in search as a shell does; "" if it has a path, or is not there.
func find(name, search string) string {
	if strings.Contains(name, "/") {
		return ""
	}
	for dir := range strings.SplitSeq(search, ":") {
		at := filepath.Join(dir, name)
		if info, err := os.Stat(at); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return at
		}
	}
	return ""
}

func environ(env map[string]string) []string {
	list := make([]string, 0, len(env))
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	slices.Sort(list)
	return list
}

// killDescendants kills and reaps every descendant of this process but the one that is waited for elsewhere.
//
// A killed process hands its children to this one, so the loop ends when nothing is left.
func killDescendants(waited int) {
	for {
		children := childrenOf(os.Getpid())
		left := 0
		for _, pid := range children {
			killTree(pid, 0)
			if pid == waited {
				continue
			}
			left++
			var status unix.WaitStatus
			_, _ = unix.Wait4(pid, &status, 0, nil) // it is killed, and no other waits for it
		}
		if left == 0 {
			return
		}
	}
}

// killTree stops a process before it looks for its children, so that it makes no new ones meanwhile.
func killTree(pid, depth int) {
	_ = unix.Kill(pid, unix.SIGSTOP) // one that has ended needs none of this
	if depth < 64 {
		for _, child := range childrenOf(pid) {
			killTree(child, depth+1)
		}
	}
	_ = unix.Kill(pid, unix.SIGKILL)
}

func childrenOf(pid int) []int {
	tasks, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	if err != nil {
		return nil
	}
	var all []int
	for _, file := range tasks {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // the thread ended
		}
		for word := range strings.FieldsSeq(string(data)) {
			if n, err := strconv.Atoi(word); err == nil {
				all = append(all, n)
			}
		}
	}
	return all
}

// controlGroup holds the processes of one command. Without one, fd is -1 and its methods do nothing.
type controlGroup struct {
	dir string
	fd  int
}

// openGroup makes a control group below that of this process, so that what freezes this one freezes the command too.
// A machine without control groups, or a process that is not root, has none.
func openGroup() *controlGroup {
	none := &controlGroup{fd: -1}
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil || os.Getuid() != 0 {
		return none
	}
	own, ok := strings.CutPrefix(strings.TrimSpace(string(data)), "0::")
	if !ok || strings.Contains(own, "\n") {
		return none
	}
	for _, mount := range []string{"/sys/fs/cgroup"} {
		dir := filepath.Join(mount, own, "pandastack-build-"+strconv.Itoa(os.Getpid()))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			_ = os.Remove(dir) // an empty directory that the end of the machine removes too
			continue
		}
		return &controlGroup{dir: dir, fd: fd}
	}
	return none
}

// kill kills all processes of the group at once, so that none can fork out of reach.
func (g *controlGroup) kill() {
	if g.fd >= 0 {
		_ = os.WriteFile(filepath.Join(g.dir, "cgroup.kill"), []byte("1"), 0) // killDescendants does it again
	}
}

func (g *controlGroup) close() {
	if g.fd >= 0 {
		_ = unix.Close(g.fd)
		_ = unix.Rmdir(g.dir) // it is empty: its processes were reaped
	}
}
