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

	"github.com/pandastack/pandastack/internal/vmm"
)

// Names in the prison's root.
const (
	chrootDir   = "/cell"    // where a cell's root directory is mounted
	devicesDir  = "/devices" // device nodes
	programsDir = "/trees"   // copies of programs, one directory each
)

// devices are all that a cell may have.
var devices = []string{"/dev/kvm", "/dev/net/tun", "/dev/null", "/dev/urandom", "/dev/userfaultfd"}

// programNamespace is a mount namespace that holds the copies of programs and device nodes and nothing of the host's.
// Every cell begins as a copy of it, which takes no longer for a host with many mounts.
type programNamespace struct {
	dir string // directory of the host with the copies; "": no process can be jailed

	mu    sync.Mutex
	ns    *os.File                // +checklocks:mu; nil: not made yet
	roots map[string]*programRoot // +checklocks:mu; by program and data
}

// programRoot is a copy of a program in the prison.
type programRoot struct {
	at  string               // in the prison
	top map[string]planEntry // names in it
}

// root answers the copy of a cell's program and data, and makes it if there is none.
func (p *programNamespace) root(cell vmm.JailSpec) (*os.File, *programRoot, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := strings.Join(append([]string{cell.Program}, cell.Data...), "\x00")
	if t := p.roots[key]; t != nil {
		return p.ns, t, nil
	}
	if p.dir == "" {
		return nil, nil, errors.New("no directory for copies of programs")
	}
	l, err := newLoader()
	if err != nil {
		return nil, nil, err
	}
	content, err := l.plan(cell.Program, cell.Data)
	if err != nil {
		return nil, nil, err
	}
	path, err := content.build(p.dir)
	if err != nil {
		return nil, nil, err
	}
	if p.ns == nil {
		if p.ns, err = p.make(); err != nil {
			return nil, nil, fmt.Errorf("make a namespace for jails: %w", err)
		}
	}
	t := &programRoot{filepath.Join(programsDir, strconv.Itoa(len(p.roots))), content.top()}
	if err := mountInto(p.ns, path, t.at); err != nil {
		return nil, nil, fmt.Errorf("bring %s into the namespace for jails: %w", path, err)
	}
	p.roots[key] = t
	return p.ns, t, nil
}

// make makes the prison. Nobody but this process and those in it can reach it, and it ends with them.
func (p *programNamespace) make() (ns *os.File, err error) {
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
				"leave the host's mounts alone",
				func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") },
			},
			{"mount a root", func() error { return mountTmpfs(p.dir, unix.MS_NODEV, "16") }},
			{"go there", func() error { return unix.Chdir(p.dir) }},
			{"change the root", func() error { return unix.PivotRoot(".", ".") }},
			{"leave the old root", func() error { return unix.Unmount(".", unix.MNT_DETACH) }},
			{"go to the new root", func() error { return unix.Chdir("/") }},
			{"make directories", func() error { return mkdirs(chrootDir, devicesDir, programsDir) }},
			{"mount a place for devices", func() error { return mountTmpfs(devicesDir, 0, "16") }},
			{"make devices", func() error { return makeDevices(nodes) }},
		}
		if err := runSteps(steps); err != nil {
			return err
		}
		ns, err = openNamespace()
		return err
	})
	return ns, err
}

// openNamespace opens the mount namespace of the calling thread, which sees no /proc.
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

// step is one of a row of system calls.
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

// statDevices finds the numbers of the devices that this host has.
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

// makeDevices makes nodes that everybody may use: only cells that have one see it.
func makeDevices(nodes map[string]uint64) error {
	for name, number := range nodes {
		at := filepath.Join(devicesDir, name)
		if err := unix.Mknod(at, unix.S_IFCHR|0o666, int(number)); err != nil {
			return err
		}
		if err := unix.Chmod(at, 0o666); err != nil { // whatever the umask
			return err
		}
	}
	return nil
}

// mountInto mounts a directory of the host into the prison, read-only.
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

// enterNamespace moves the calling thread, which must be a scratch one, into a mount namespace.
func enterNamespace(ns *os.File) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter the namespace for jails: %w", err)
	}
	return nil
}

// openDetached answers a mount of a file or directory, not through a symbolic link, that is nowhere yet.
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

// close lets go of the prison; who is in it stays.
func (p *programNamespace) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	ns := p.ns
	p.ns, p.roots = nil, map[string]*programRoot{}
	if ns == nil {
		return nil
	}
	return ns.Close()
}

// knownDevice tells whether a cell may ask for a device.
func knownDevice(path string) bool { return slices.Contains(devices, path) }
