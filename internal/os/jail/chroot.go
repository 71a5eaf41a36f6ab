package jail

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/lib/proc"
)

// Start implements vmm.Jail. The process starts in the cgroup and within its limits.
func (g *Cgroup) Start(spec Spec, argv []string, attr *syscall.ProcAttr) (pid int, err error) {
	pid, err = g.start(spec, argv, attr)
	if err != nil {
		return 0, fmt.Errorf("jail %s: %w", g.name, err)
	}
	if err := g.restrict(pid); err != nil {
		err = errors.Join(fmt.Errorf("jail %s: %w", g.name, err), syscall.Kill(pid, syscall.SIGKILL))
		_, _ = syscall.Wait4(pid, nil, 0, nil) // it was killed on the line above
		return 0, err
	}
	return pid, nil
}

// enterThread moves the calling thread into a v1 cgroup. The thread must be one of onNewThread.
// What it starts is in the cgroup from the beginning, so nothing can be started outside. With
// cgroup v2, which has no cgroups of threads for these controllers, the process is created in its
// cgroup instead. The cgroup cannot be removed until the thread has exited, shortly after its work.
func (g *Cgroup) enterThread() error {
	if g.manager.cfg.Hierarchy.Version == 2 {
		return nil
	}
	for _, root := range g.manager.cfg.Hierarchy.roots() {
		if err := writeControl(filepath.Join(g.dir(root), "tasks"), "0"); err != nil {
			return fmt.Errorf("enter control group: %w", err)
		}
	}
	return nil
}

func (g *Cgroup) start(spec Spec, argv []string, attr *syscall.ProcAttr) (pid int, err error) {
	if err := checkSpec(spec, attr); err != nil {
		return 0, err
	}
	ns, root, err := g.manager.programs.root(spec)
	if err != nil {
		return 0, err
	}
	c := chrootBuilder{spec: spec, programs: root}
	defer func() { err = errors.Join(err, c.close()) }()
	if err := c.open(); err != nil {
		return 0, err
	}
	sys := *attr.Sys
	inside := *attr
	inside.Sys = &sys
	if inside.Dir == "" {
		inside.Dir = "/"
	}
	if g.manager.cfg.Hierarchy.Version == 2 {
		dir, err := os.Open(g.dir(g.manager.cfg.Hierarchy.CPU))
		if err != nil {
			return 0, err
		}
		defer dir.Close()
		sys.UseCgroupFD, sys.CgroupFD = true, int(dir.Fd())
	}
	// Descriptors that this process inherited may lack close-on-exec. Those that it opened never
	// do.
	if err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return 0, fmt.Errorf("close-on-exec: %w", err)
	}
	err = onNewThread(func() error {
		if err := g.enterThread(); err != nil {
			return err
		}
		if spec.BootClockOffset != 0 {
			if err := proc.EnterClock(spec.BootClockOffset); err != nil {
				return err
			}
		}
		if err := enterNamespace(ns); err != nil {
			return err
		}
		if err := c.unshare(); err != nil {
			return err
		}
		if err := runSteps(c.steps()); err != nil {
			return err
		}
		calls, err := dropPrivileges(spec.Syscalls, g.manager.cfg.RecordCalls)
		if err != nil {
			return err
		}
		if calls != nil {
			g.manager.handleCalls(g.name, calls)
		}
		pid, err = syscall.ForkExec(spec.Program, argv, &inside)
		if err != nil {
			return fmt.Errorf("run %s: %w", spec.Program, err)
		}
		return nil
	})
	return pid, err
}

// checkSpec refuses requests that would weaken the jail.
func checkSpec(spec Spec, attr *syscall.ProcAttr) error {
	if attr.Sys == nil || attr.Sys.Credential == nil || attr.Sys.Credential.Uid == 0 || attr.Sys.Credential.Gid == 0 {
		return errors.New("a jailed process needs its own user and group ID, other than 0")
	}
	for _, fd := range attr.Files {
		var st unix.Stat_t
		if err := unix.Fstat(int(fd), &st); err != nil {
			return fmt.Errorf("inherited descriptor: %w", err)
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR { // a process could leave the jail through it
			return errors.New("an inherited descriptor is a directory, through which the jail could be left")
		}
	}
	for _, path := range append([]string{spec.Program}, spec.Data...) {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("path %q is not absolute", path)
		}
	}
	for _, b := range spec.Binds {
		if !filepath.IsAbs(b.Target) || filepath.Clean(b.Target) != b.Target || b.Target == "/" {
			return fmt.Errorf("bind target %q: not an absolute, clean path", b.Target)
		}
	}
	for _, d := range spec.Devices {
		if !knownDevice(d) {
			return fmt.Errorf("device %s is not allowed in jails", d)
		}
	}
	return nil
}

// chrootBuilder builds the root directory of one jail.
type chrootBuilder struct {
	spec     Spec
	programs *programRoot
	binds    []openBind
}

// openBind is a bind mount of a file or directory of the host that is not attached yet.
type openBind struct {
	Bind
	mount *os.File
	dir   bool
}

// open opens the files of the host, because their paths do not exist inside the jail.
func (c *chrootBuilder) open() error {
	for _, b := range c.spec.Binds {
		attributes := uint64(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC)
		if !b.Write {
			attributes |= unix.MOUNT_ATTR_RDONLY
		}
		f, err := openDetached(b.Path, attributes)
		if err != nil {
			return fmt.Errorf("bind %w", err)
		}
		c.binds = append(c.binds, openBind{Bind: b, mount: f})
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			return err
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			c.binds[len(c.binds)-1].dir = true
		case unix.S_IFREG, unix.S_IFSOCK, unix.S_IFIFO:
		default:
			return fmt.Errorf("bind %s: not a file, socket or directory", b.Path)
		}
	}
	return nil
}

func (c *chrootBuilder) close() error {
	var all error
	for _, b := range c.binds {
		all = errors.Join(all, b.mount.Close())
	}
	return all
}

// unshare creates new namespaces for the calling thread. The PID namespace applies to its first
// child.
func (c *chrootBuilder) unshare() error {
	flags := unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
	if c.spec.Netns == nil {
		flags |= unix.CLONE_NEWNET
	}
	if err := unix.Unshare(flags); err != nil {
		return fmt.Errorf("create namespaces: %w", err)
	}
	if c.spec.Netns == nil {
		return nil
	}
	if err := unix.Setns(int(c.spec.Netns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	return nil
}

// steps build the jail's root directory in the calling thread's copy of the program namespace, and
// change into it.
//
// The root is a chroot below the root of the mount namespace, which contains nothing that is not in
// the jail as well. A process in a chroot cannot create user namespaces (user_namespaces(7)). It
// therefore never gets capabilities in any namespace with which it could escape.
func (c *chrootBuilder) steps() []step {
	return []step{
		{"set the host name", func() error { return unix.Sethostname([]byte("jail")) }},
		{"mount the root directory", func() error { return mountTmpfs(chrootDir, unix.MS_NODEV, "256") }},
		{"change into the root directory", func() error { return unix.Chdir(chrootDir) }},
		{"mount the programs", c.placeTree},
		{"mount the files", c.placeBinds},
		{"mount the devices", c.placeDevices},
		{"make the root read-only", func() error { return readOnly(chrootDir) }},
		{"make the namespace read-only", func() error { return readOnly("/") }},
		{"change the root", func() error { return unix.Chroot(".") }},
	}
}

// readOnly makes one mount read-only.
func readOnly(path string) error {
	return unix.MountSetattr(unix.AT_FDCWD, path, 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
}

// placeTree mounts the program root's files and directories into the jail's root.
func (c *chrootBuilder) placeTree() error {
	for name, i := range c.programs.top {
		if i.target != "" {
			if err := unix.Symlink(i.target, name); err != nil {
				return err
			}
			continue
		}
		if err := mkdirs(name); err != nil {
			return err
		}
		if err := unix.Mount(filepath.Join(c.programs.at, name), name, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// makeMountPoint creates an empty file or directory and its parent directories. path is relative to
// the root of the jail.
func makeMountPoint(path string, dir bool) (string, error) {
	path = strings.TrimPrefix(path, "/")
	for i, r := range path {
		if r == '/' {
			if err := mkdirs(path[:i]); err != nil {
				return "", err
			}
		}
	}
	if dir {
		return path, mkdirs(path)
	}
	fd, err := unix.Open(path, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o444)
	if err != nil {
		return "", err
	}
	return path, unix.Close(fd)
}

func (c *chrootBuilder) placeBinds() error {
	for _, b := range c.binds {
		at, err := makeMountPoint(b.Target, b.dir)
		if err == nil {
			err = unix.MoveMount(int(b.mount.Fd()), "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
		}
		if err != nil {
			return fmt.Errorf("%s at %s: %w", b.Path, b.Target, err)
		}
	}
	return nil
}

func (c *chrootBuilder) placeDevices() error {
	for _, d := range c.spec.Devices {
		at, err := makeMountPoint(d, false)
		if err == nil {
			err = unix.Mount(filepath.Join(devicesDir, deviceName(d)), at, "", unix.MS_BIND, "")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", d, err)
		}
	}
	return nil
}
