// Package volume mounts the volumes of a machine in its guest.
//
// It owns the mounts that it made and knows what a check of a file system found. A volume that was not unmounted is
// checked with the image's own e2fsck before it is mounted; without that program the kernel replays the journal.
package volume

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// Run runs a program outside the workload. It returns the end of what the program printed and its exit code.
type Run func(argv []string) (output string, code int, err error)

// Manager mounts volumes. Its methods may be called concurrently.
type Manager struct {
	run Run

	mu      sync.Mutex
	mounted map[int]mount // by disk
}

// mount is a volume that is mounted.
type mount struct {
	guestapi.VolumeMount
	report guestapi.VolumeReport
}

// New returns a manager. Checks of file systems use run.
func New(run Run) *Manager { return &Manager{run: run, mounted: map[int]mount{}} }

// device returns the path of a disk.
func device(disk int) string { return "/dev/vd" + string(rune('a'+disk)) }

// Mount mounts a volume. One that is mounted there already is no error.
func (m *Manager) Mount(v guestapi.VolumeMount) error {
	if v.Disk < 1 || v.Disk > 'z'-'a' || !path.IsAbs(v.Dir) || path.Clean(v.Dir) != v.Dir || v.Dir == "/" {
		return fmt.Errorf("%w: volume on disk %d at %q", guestapi.ErrInvalid, v.Disk, v.Dir)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if have, ok := m.mounted[v.Disk]; ok && have.Dir == v.Dir && isMounted(device(v.Disk), v.Dir) {
		return nil
	}
	if err := awaitSize(device(v.Disk), v.Bytes); err != nil {
		return err
	}
	one := mount{VolumeMount: v}
	if v.Check {
		var err error
		if one.report, err = m.check(device(v.Disk)); err != nil {
			return fmt.Errorf("check the volume at %s: %w", v.Dir, err)
		}
		if one.report.Check == guestapi.CheckDamaged && !v.ReadOnly {
			return fmt.Errorf("%w: the volume at %s; its check says: %s", guestapi.ErrDamaged, v.Dir, one.report.Log)
		}
	}
	if err := os.MkdirAll(v.Dir, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", v.Dir, err)
	}
	if err := mountAt(v); err != nil {
		return fmt.Errorf("mount %s on %s: %w", device(v.Disk), v.Dir, err)
	}
	m.mounted[v.Disk] = one
	if v.ReadOnly {
		return nil
	}
	return grow(device(v.Disk), v.Dir)
}

func mountAt(v guestapi.VolumeMount) error {
	flags := uintptr(unix.MS_NOATIME | unix.MS_NODEV | unix.MS_NOSUID)
	if v.ReadOnly {
		flags |= unix.MS_RDONLY
	}
	return unix.Mount(device(v.Disk), v.Dir, "ext4", flags, "")
}

// Do performs an action on a volume; see guestapi.Backend.
func (m *Manager) Do(req guestapi.VolumeRequest) (guestapi.VolumeReport, error) {
	if req.Action == guestapi.VolumeMountAt {
		if err := m.Mount(req.Volume); err != nil {
			return guestapi.VolumeReport{}, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	one, ok := m.mounted[req.Volume.Disk]
	if !ok && req.Action != guestapi.VolumeMountAt && req.Action != guestapi.VolumeLastCheck {
		one, ok = mountedElse(req.Volume.Disk)
	}
	if !ok {
		return guestapi.VolumeReport{}, fmt.Errorf("%w: no volume is mounted from disk %d",
			guestapi.ErrNotFound, req.Volume.Disk)
	}
	switch req.Action {
	case guestapi.VolumeMountAt, guestapi.VolumeLastCheck:
		return one.report, nil
	case guestapi.VolumeSync:
		return one.report, syncFS(one.Dir)
	case guestapi.VolumeGrow:
		if err := awaitSize(device(one.Disk), req.Volume.Bytes); err != nil {
			return one.report, err
		}
		if one.ReadOnly {
			return one.report, nil
		}
		return one.report, grow(device(one.Disk), one.Dir)
	case guestapi.VolumeUnmount:
		clean, err := unmount(one.VolumeMount, req.Force)
		if err != nil {
			return one.report, err
		}
		delete(m.mounted, one.Disk)
		one.report.Clean = clean
		return one.report, nil
	}
	return guestapi.VolumeReport{}, fmt.Errorf("%w: action %d", guestapi.ErrInvalid, req.Action)
}

// Exit codes of e2fsck(8), which are added up.
const (
	fsckRepaired = 1 | 2
	fsckFailed   = ^fsckRepaired
)

// check checks the file system of a device, without a question to anybody.
func (m *Manager) check(dev string) (guestapi.VolumeReport, error) {
	program := findProgram("e2fsck")
	if program == "" {
		return guestapi.VolumeReport{}, nil // mounting it replays the journal
	}
	log, code, err := m.run([]string{program, "-p", dev})
	if err == nil && code&fsckFailed != 0 { // beyond what may be repaired without asking
		log, code, err = m.run([]string{program, "-f", "-y", dev})
	}
	if err != nil {
		return guestapi.VolumeReport{}, err
	}
	r := guestapi.VolumeReport{Check: guestapi.CheckClean, Log: tail(log)}
	switch {
	case code&fsckFailed != 0:
		r.Check = guestapi.CheckDamaged
	case code != 0:
		r.Check = guestapi.CheckRepaired
	}
	return r, nil
}

func tail(log string) string {
	return strings.ToValidUTF8(log[max(0, len(log)-guestapi.MaxCheckLog):], "")
}

// findProgram returns the path of a system program, "" if the image has none.
func findProgram(name string) string {
	for _, dir := range []string{"/sbin", "/usr/sbin", "/bin", "/usr/bin"} {
		if at := path.Join(dir, name); unix.Access(at, unix.X_OK) == nil {
			return at
		}
	}
	return ""
}

// patience is how many milliseconds a disk may take to get its size.
const patience, interval = 30_000, 2

// awaitSize waits until a device has at least so many bytes: the monitor announces a new size while the guest runs. It
// drops what the kernel has cached of another disk that was there.
func awaitSize(dev string, bytes int64) error {
	fd, err := unix.Open(dev, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	for waited := 0; err != nil; waited += interval {
		if waited > patience {
			return fmt.Errorf("open %s: %w", dev, err)
		}
		_, _ = unix.Poll(nil, interval) // sleeps
		fd, err = unix.Open(dev, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	defer func() { _ = unix.Close(fd) }() // was only read
	for waited := 0; ; waited += interval {
		size, err := deviceBytes(fd)
		if err != nil {
			return fmt.Errorf("read size of %s: %w", dev, err)
		}
		if size >= bytes {
			break
		}
		if waited > patience {
			return fmt.Errorf("%s has %d bytes, and the volume %d", dev, size, bytes)
		}
		_, _ = unix.Poll(nil, interval) // sleeps
	}
	if err := flushBuffers(fd); err != nil {
		return fmt.Errorf("drop the cache of %s: %w", dev, err)
	}
	return nil
}

// mountedElse returns the mount of a disk that the manager has not mounted: a volume in place of a data disk of the
// template is mounted as that. Whichever mount of the file system it is makes no difference to the file system.
func mountedElse(disk int) (mount, bool) {
	dev := device(disk)
	list, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return mount{}, false
	}
	for line := range strings.Lines(string(list)) {
		f := strings.Fields(line) // proc_pid_mounts(5): device, directory, type, options
		if len(f) < 4 || f[0] != dev || f[2] != "ext4" {
			continue
		}
		if dir := unescape(f[1]); isMounted(dev, dir) {
			readOnly := slices.Contains(strings.Split(f[3], ","), "ro")
			return mount{VolumeMount: guestapi.VolumeMount{Disk: disk, Dir: dir, ReadOnly: readOnly}}, true
		}
	}
	return mount{}, false
}

// unescape decodes the octal escapes of proc_pid_mounts(5).
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`, `\043`, "#").Replace(s)
}

func isMounted(dev, dir string) bool {
	var d, at unix.Stat_t
	return unix.Stat(dev, &d) == nil && unix.Stat(dir, &at) == nil && d.Rdev == at.Dev
}

func syncFS(dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	if err := errors.Join(unix.Syncfs(fd), unix.Close(fd)); err != nil {
		return fmt.Errorf("write back %s: %w", dir, err)
	}
	return nil
}

// unmount unmounts a volume and reports whether nothing of it is in use any more.
func unmount(v guestapi.VolumeMount, force bool) (clean bool, err error) {
	if !isMounted(device(v.Disk), v.Dir) { // a program of the guest did it
		return !inUse(device(v.Disk)), nil
	}
	if err := syncFS(v.Dir); err != nil && !force {
		return false, err
	}
	err = unix.Unmount(v.Dir, 0)
	if err == nil && !force && inUse(device(v.Disk)) { // another mount of it exists
		if err := mountAt(v); err != nil {
			return false, fmt.Errorf("mount %s again: %w", v.Dir, err)
		}
		err = unix.EBUSY
	}
	if err == unix.EBUSY && !force {
		return false, fmt.Errorf("%w: the volume at %s", guestapi.ErrInUse, v.Dir)
	}
	if force && (err == unix.EBUSY || inUse(device(v.Disk))) {
		err = evict(v)
	}
	if err != nil {
		return false, fmt.Errorf("unmount %s: %w", v.Dir, err)
	}
	return !inUse(device(v.Disk)), nil
}

// evictPatience is how many milliseconds killed processes may take to end.
const evictPatience = 5_000

// evict kills the processes that use a volume and unmounts it. What still keeps it then, such as a mount in another
// namespace, keeps a file system without a disk.
func evict(v guestapi.VolumeMount) error {
	var dev unix.Stat_t
	if err := unix.Stat(device(v.Disk), &dev); err != nil {
		return err
	}
	for waited := 0; waited < evictPatience; waited += interval {
		for _, pid := range users("/proc", dev.Rdev) {
			_ = unix.Kill(pid, unix.SIGKILL) // it may have ended meanwhile
		}
		err := unix.Unmount(v.Dir, 0)
		if err == nil || err == unix.EINVAL { // EINVAL: it is unmounted already
			return nil
		}
		_, _ = unix.Poll(nil, interval) // sleeps
	}
	return unix.Unmount(v.Dir, unix.MNT_DETACH)
}

// users returns the processes that have a file, a directory or a mapping on a device.
func users(proc string, dev uint64) []int {
	list, err := os.ReadDir(proc)
	if err != nil {
		return nil
	}
	on := func(at string) bool {
		var st unix.Stat_t
		return unix.Stat(at, &st) == nil && st.Dev == dev
	}
	within := func(dir string) bool {
		list, _ := os.ReadDir(dir) // of a process that has ended: none
		return slices.ContainsFunc(list, func(e os.DirEntry) bool { return on(path.Join(dir, e.Name())) })
	}
	var pids []int
	for _, e := range list {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid <= 1 {
			continue
		}
		dir := path.Join(proc, e.Name())
		if on(dir+"/cwd") || on(dir+"/root") || on(dir+"/exe") || within(dir+"/fd") || within(dir+"/map_files") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// inUse reports whether a file system of the device is still mounted somewhere, or a program has the device to itself.
func inUse(dev string) bool {
	fd, err := unix.Open(dev, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if err != nil {
		return true
	}
	_ = unix.Close(fd) // was not read
	return false
}
