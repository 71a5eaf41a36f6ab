package jail

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Directories in the root of the program namespace.
const (
	chrootDir   = "/cell"    // mount point for the root directory of a jail
	devicesDir  = "/devices" // device nodes
	programsDir = "/trees"   // copies of programs, one directory each
)

// devices are all devices that a jail may have.
var devices = []string{"/dev/kvm", "/dev/net/tun", "/dev/null", "/dev/urandom", "/dev/userfaultfd"}

// programNamespace is a mount namespace that contains copies of programs and device nodes, and no
// mounts of the host. Every jail starts with a copy of it. Copying takes the same time on a host
// with many mounts.
type programNamespace struct {
	dir string // directory of the copies on the host; "": no process can be jailed

	mu    sync.Mutex
	ns    *os.File                // +checklocks:mu; nil: not made yet
	roots map[string]*programRoot // +checklocks:mu; by program and data
}

// programRoot is a copy of a program with its files in the program namespace.
type programRoot struct {
	at  string               // path in the namespace
	top map[string]planEntry // top-level names
}

// root returns the copy of a jail's program and data, and creates it if necessary.
func (n *programNamespace) root(spec Spec) (*os.File, *programRoot, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	key := strings.Join(append([]string{spec.Program}, spec.Data...), "\x00")
	if t := n.roots[key]; t != nil {
		return n.ns, t, nil
	}
	if n.dir == "" {
		return nil, nil, errors.New("no directory is configured for copies of programs")
	}
	l, err := newLoader()
	if err != nil {
		return nil, nil, err
	}
	content, err := l.plan(spec.Program, spec.Data)
	if err != nil {
		return nil, nil, err
	}
	path, err := content.build(n.dir)
	if err != nil {
		return nil, nil, err
	}
	if n.ns == nil {
		if n.ns, err = n.make(); err != nil {
			return nil, nil, fmt.Errorf("create the program namespace: %w", err)
		}
	}
	t := &programRoot{filepath.Join(programsDir, strconv.Itoa(len(n.roots))), content.top()}
	if err := mountInto(n.ns, path, t.at); err != nil {
		return nil, nil, fmt.Errorf("mount %s in the program namespace: %w", path, err)
	}
	n.roots[key] = t
	return n.ns, t, nil
}

// make creates the mount namespace. Only this process and the processes in the namespace can reach
// it, and it ends with them.
func (n *programNamespace) make() (ns *os.File, err error) {
	nodes, err := statDevices()
	if err != nil {
		return nil, err
	}
	err = onNewThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		steps := []step{
			{
				"make the mounts private",
				func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") },
			},
			{"mount the root directory", func() error { return mountTmpfs(n.dir, unix.MS_NODEV, "16") }},
			{"change into the root directory", func() error { return unix.Chdir(n.dir) }},
			{"change the root", func() error { return unix.PivotRoot(".", ".") }},
			{"unmount the old root", func() error { return unix.Unmount(".", unix.MNT_DETACH) }},
			{"change into the new root", func() error { return unix.Chdir("/") }},
			{"create the directories", func() error { return mkdirs(chrootDir, devicesDir, programsDir) }},
			{"mount a directory for devices", func() error { return mountTmpfs(devicesDir, 0, "16") }},
			{"create the devices", func() error { return makeDevices(nodes) }},
		}
		if err := runSteps(steps); err != nil {
			return err
		}
		ns, err = openNamespace()
		return err
	})
	return ns, err
}

// openNamespace opens the mount namespace of the calling thread, which has no /proc.
func openNamespace() (*os.File, error) {
	if err := unix.Mkdir("/proc", 0o755); err != nil {
		return nil, err
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return nil, err
	}
	fd, err := unix.Open("/proc/thread-self/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err := errors.Join(err, unix.Unmount("/proc", 0), unix.Rmdir("/proc")); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "jail"), nil
}

// step is one of a sequence of system calls.
type step struct {
	name string
	do   func() error
}

func runSteps(steps []step) error {
	for _, s := range steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

func mountTmpfs(at string, flags uintptr, inodes string) error {
	return unix.Mount("tmpfs", at, "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC|flags, "mode=0755,size=64k,nr_inodes="+inodes)
}

func mkdirs(paths ...string) error {
	for _, p := range paths {
		if err := unix.Mkdir(p, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	return nil
}

// statDevices returns the device numbers of the devices that this host has.
func statDevices() (map[string]uint64, error) {
	nodes := map[string]uint64{}
	for _, d := range devices {
		var st unix.Stat_t
		err := unix.Stat(d, &st)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d, err)
		}
		nodes[deviceName(d)] = uint64(st.Rdev)
	}
	return nodes, nil
}

func deviceName(path string) string {
	return strings.ReplaceAll(strings.TrimPrefix(path, "/dev/"), "/", "-")
}

// makeDevices creates device nodes that every user may open. Only jails that ask for a device see
// its node.
func makeDevices(nodes map[string]uint64) error {
	for name, number := range nodes {
		at := filepath.Join(devicesDir, name)
		if err := unix.Mknod(at, unix.S_IFCHR|0o666, int(number)); err != nil {
			return err
		}
		if err := unix.Chmod(at, 0o666); err != nil { // regardless of the umask
			return err
		}
	}
	return nil
}

// mountInto mounts a directory of the host into the namespace, read-only.
func mountInto(ns *os.File, path, at string) error {
	mount, err := openDetached(path, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return err
	}
	defer mount.Close()
	return onNewThread(func() error {
		if err := enterNamespace(ns); err != nil {
			return err
		}
		if err := mkdirs(at); err != nil {
			return err
		}
		return unix.MoveMount(int(mount.Fd()), "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
	})
}

// enterNamespace moves the calling thread, which must be one of onNewThread, into a mount
// namespace.
func enterNamespace(ns *os.File) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter the program namespace: %w", err)
	}
	return nil
}

// openDetached returns a detached bind mount of a file or directory. It does not follow a symbolic
// link.
func openDetached(path string, attributes uint64) (*os.File, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: attributes}); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	return f, nil
}

// close closes the namespace. Processes in it keep it alive.
func (n *programNamespace) close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	ns := n.ns
	n.ns, n.roots = nil, map[string]*programRoot{}
	if ns == nil {
		return nil
	}
	return ns.Close()
}

// knownDevice reports whether a jail may ask for a device.
func knownDevice(path string) bool { return slices.Contains(devices, path) }
