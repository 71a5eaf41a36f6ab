package jail

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// pollInterval is the time between attempts where the kernel sends no event: after a process of a
// v1 cgroup has exited until it has left the cgroup, and until a v2 cgroup can be removed.
const pollInterval = 5 * time.Millisecond

// killAndRemove kills all processes in the cgroup and removes its directories. Missing directories
// are not an error.
func (g *Cgroup) killAndRemove(ctx context.Context) error {
	for _, root := range g.manager.cfg.Hierarchy.roots() {
		dir := g.dir(root)
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := g.killAll(ctx, dir); err != nil {
			return err
		}
		for {
			err := removeDir(dir)
			if err == nil {
				break
			}
			if !errors.Is(err, unix.EBUSY) {
				return err
			}
			if err := waitInterval(ctx, err); err != nil {
				return err
			}
		}
	}
	return nil
}

// waitInterval waits for pollInterval. If ctx ends first, it returns the cause joined with why.
func waitInterval(ctx context.Context, why error) error {
	t := time.NewTimer(pollInterval)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), why)
	case <-t.C:
		return nil
	}
}

// killAll kills processes until none is left in dir.
func (g *Cgroup) killAll(ctx context.Context, dir string) error {
	// With this limit no process can fork faster than it is killed.
	if err := writeControl(filepath.Join(dir, "pids.max"), "0"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for {
		pids, err := memberPIDs(dir)
		if err != nil || len(pids) == 0 {
			return err
		}
		if g.manager.cfg.Hierarchy.Version == 2 {
			err = killGroup(ctx, dir, pids)
		} else {
			err = killEach(ctx, dir, pids)
		}
		if err != nil {
			return err
		}
	}
}

func memberPIDs(dir string) ([]int, error) {
	list, err := readFields(filepath.Join(dir, "cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, w := range list {
		pid, err := strconv.Atoi(w)
		if err != nil {
			return nil, fmt.Errorf("member %q of %s: %w", w, dir, err)
		}
		if pid > 0 && pid != os.Getpid() { // 0: in another PID namespace; own ID: a thread in enterThread
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// killGroup kills all processes of a v2 cgroup with cgroup.kill and waits until it is empty.
func killGroup(ctx context.Context, dir string, pids []int) error {
	err := writeControl(filepath.Join(dir, "cgroup.kill"), "1")
	if errors.Is(err, fs.ErrNotExist) { // Linux before 5.14
		return killEach(ctx, dir, pids)
	}
	if err != nil {
		return err
	}
	return waitUnpopulated(ctx, dir)
}

// killEach kills the given members of dir and waits until they have exited. It opens pidfds before
// it checks the membership again, so that a PID which was reused by another process is not killed.
func killEach(ctx context.Context, dir string, pids []int) error {
	fds := map[int]int{}
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd) // the descriptors are only polled
		}
	}()
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return fmt.Errorf("open process %d: %w", pid, err)
		}
		fds[pid] = fd
	}
	now, err := memberPIDs(dir)
	if err != nil {
		return err
	}
	for pid, fd := range fds {
		if !slices.Contains(now, pid) {
			continue
		}
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill process %d: %w", pid, err)
		}
		if err := poll(ctx, fd, unix.POLLIN, nil); err != nil {
			return fmt.Errorf("process %d was killed: %w", pid, err)
		}
	}
	return waitInterval(ctx, fmt.Errorf("processes %v were killed", pids))
}

// waitUnpopulated waits for the event that a v2 cgroup has no processes.
func waitUnpopulated(ctx context.Context, dir string) error {
	f, err := os.Open(filepath.Join(dir, "cgroup.events"))
	if err != nil {
		return err
	}
	defer f.Close()
	return poll(ctx, int(f.Fd()), unix.POLLPRI, func() (bool, error) {
		buf := make([]byte, 4096)
		n, err := f.ReadAt(buf, 0)
		if err != nil && n == 0 {
			return false, err
		}
		populated, err := field(string(buf[:n]), "populated")
		return populated == 0, err
	})
}

// poll waits for an event on fd. If done is not nil, poll checks it after each event and returns
// once it is true. ctx is checked ten times a second, because poll(2) cannot wait for it.
func poll(ctx context.Context, fd int, events int16, done func() (bool, error)) error {
	for {
		if done != nil {
			if ok, err := done(); ok || err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p := []unix.PollFd{{Fd: int32(fd), Events: events}}
		n, err := unix.Poll(p, 100)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("poll: %w", err)
		}
		if n > 0 && done == nil {
			return nil
		}
	}
}
