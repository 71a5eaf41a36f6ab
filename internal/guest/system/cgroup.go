package system

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"

	"golang.org/x/sys/unix"
)

// Cgroup is a version 2 control group that holds the workload.
type Cgroup struct {
	dir    string
	fd     int // the open directory, to start processes in
	freeze int // cgroup.freeze
	events int // cgroup.events
}

// Limits are the resource limits of a cgroup; 0 is none. A limit that the kernel does not support is ignored.
type Limits struct {
	Pids        int
	MemoryBytes int64
}

// OpenCgroup creates the cgroup name below parent, a mounted version 2 hierarchy.
func OpenCgroup(parent, name string, limits Limits) (*Cgroup, error) {
	g := &Cgroup{dir: path.Join(parent, name)}
	if err := os.Mkdir(g.dir, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("make control group: %w", err)
	}
	for _, c := range []string{"pids", "memory"} {
		_ = write(path.Join(parent, "cgroup.subtree_control"), "+"+c) // a kernel may lack either controller
	}
	if limits.Pids > 0 {
		_ = write(path.Join(g.dir, "pids.max"), strconv.Itoa(limits.Pids)) // the kernel may lack the controller
	}
	if limits.MemoryBytes > 0 {
		// The kernel may lack the controller.
		_ = write(path.Join(g.dir, "memory.max"), strconv.FormatInt(limits.MemoryBytes, 10))
	}
	var err error
	for _, one := range []struct {
		fd   *int
		name string
		mode int
	}{
		{&g.fd, ".", unix.O_RDONLY | unix.O_DIRECTORY},
		{&g.freeze, "cgroup.freeze", unix.O_WRONLY},
		{&g.events, "cgroup.events", unix.O_RDONLY},
	} {
		if *one.fd, err = unix.Open(path.Join(g.dir, one.name), one.mode|unix.O_CLOEXEC, 0); err != nil {
			return nil, fmt.Errorf("open control group: %s: %w", one.name, err)
		}
	}
	return g, nil
}

func write(file, content string) error {
	fd, err := unix.Open(file, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_, err = unix.Write(fd, []byte(content))
	return errors.Join(err, unix.Close(fd))
}

// FD returns an open directory of the cgroup, for processes to start in. It stays open.
func (g *Cgroup) FD() int { return g.fd }

// Freeze stops all processes of the cgroup, and returns when they have stopped.
func (g *Cgroup) Freeze(ctx context.Context) error { return g.set(ctx, "1") }

// Thaw lets the processes of the cgroup run again.
func (g *Cgroup) Thaw(ctx context.Context) error { return g.set(ctx, "0") }

func (g *Cgroup) set(ctx context.Context, state string) error {
	if _, err := pwrite(g.freeze, []byte(state), 0); err != nil {
		return fmt.Errorf("write cgroup.freeze: %w", err)
	}
	var buf [256]byte
	want := []byte("frozen " + state + "\n")
	for {
		n, err := pread(g.events, buf[:], 0)
		if err != nil {
			return fmt.Errorf("read cgroup.events: %w", err)
		}
		if bytes.Contains(buf[:n], want) {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		fds := []unix.PollFd{{Fd: int32(g.events), Events: unix.POLLPRI}}
		if _, err := unix.Poll(fds, pollMillis); err != nil && err != unix.EINTR {
			return fmt.Errorf("wait for control group: %w", err)
		}
	}
}

// pollMillis is how often a wait checks whether its context has ended.
const pollMillis = 100

// Remove removes the cgroup, which must be empty. It is for tests.
func (g *Cgroup) Remove() error {
	for _, fd := range []int{g.fd, g.freeze, g.events} {
		_ = unix.Close(fd) // nothing was written
	}
	return unix.Rmdir(g.dir)
}

// Unfrozen is a Workload that cannot be frozen. It is for an agent that is not the first process of a machine.
type Unfrozen struct{}

// Freeze does nothing.
func (Unfrozen) Freeze(context.Context) error { return nil }

// Thaw does nothing.
func (Unfrozen) Thaw(context.Context) error { return nil }
