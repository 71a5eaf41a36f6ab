// Package initd is what the first process of a machine does before it is the guest agent: file systems,
// kernel modules, the switch from the initramfs into the root file system, signals, and the device of the
// guest channel.
//
// It owns nothing afterwards. It must run once, in the first process; nothing here is safe elsewhere.
package initd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Modules is the directory of kernel modules in the initramfs. Its file "order" names them, with their
// checksums, in the order in which they are loaded.
const Modules = "/modules"

// devicePatience is how many milliseconds a device may take to appear.
const devicePatience = 30_000

type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

// Devices prepares the initramfs: the kernel's file systems, and the modules that its devices need.
func Devices() error {
	for _, m := range []mount{
		{"proc", "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"sysfs", "/sys", "sysfs", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"devtmpfs", "/dev", "devtmpfs", unix.MS_NOSUID, "mode=0755"},
	} {
		if err := m.do(); err != nil {
			return err
		}
	}
	return loadModules(Modules)
}

// Root mounts the root device that the command line names as pandastack.root (or /dev/vda), and makes it the
// root directory of this process. It returns the device. Devices comes first.
func Root() (device string, err error) {
	device = argument("pandastack.root", "/dev/vda")
	if !await(func() bool { return unix.Access(device, unix.F_OK) == nil }) {
		return "", fmt.Errorf("root device %s does not appear", device)
	}
	const root = "/root.new"
	if err := (mount{device, root, "ext4", unix.MS_NOATIME, ""}).do(); err != nil {
		return "", err
	}
	_ = os.RemoveAll(Modules) // only to give its memory back
	_ = os.Remove("/init")    // as above; this program lives on without its name
	return device, enter(root)
}

// do mounts, over a directory that it makes if it must. What is mounted already stays.
func (m mount) do() error {
	if err := os.MkdirAll(m.target, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", m.target, err)
	}
	if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil && err != unix.EBUSY {
		return fmt.Errorf("mount %s: %w", m.target, err)
	}
	return nil
}

// enter makes dir the root directory, with /proc, /sys and /dev moved into it.
func enter(dir string) error {
	for _, sub := range []string{"/proc", "/sys", "/dev"} {
		if err := (mount{sub, dir + sub, "", unix.MS_MOVE, ""}).do(); err != nil {
			return err
		}
	}
	for _, step := range []func() error{
		func() error { return unix.Chdir(dir) },
		func() error { return unix.Mount(".", "/", "", unix.MS_MOVE, "") },
		func() error { return unix.Chroot(".") },
		func() error { return unix.Chdir("/") },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("switch root: %w", err)
		}
	}
	return nil
}

// Mounts makes what a root file system expects to be there when its programs run.
func Mounts() error {
	const plain = unix.MS_NOSUID | unix.MS_NODEV
	for _, m := range []mount{
		{"devpts", "/dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "gid=5,mode=620,ptmxmode=666"},
		{"tmpfs", "/dev/shm", "tmpfs", plain, "mode=1777"},
		{"tmpfs", "/run", "tmpfs", plain, "mode=755"},
		{"cgroup2", "/sys/fs/cgroup", "cgroup2", plain | unix.MS_NOEXEC, ""},
	} {
		if err := m.do(); err != nil {
			return err
		}
	}
	for name, to := range map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0",
		"stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"} {
		if err := os.Symlink(to, "/dev/"+name); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("make /dev/%s: %w", name, err)
		}
	}
	for _, dir := range []string{"/tmp", "/run/lock"} {
		if err := os.Mkdir(dir, 0o777); err != nil {
			continue // it is there, with a mode of its own
		}
		if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
			return fmt.Errorf("make %s: %w", dir, err)
		}
	}
	return nil
}

// BootID binds a file of our own over the kernel's boot id, which restored copies would share, and
// returns it open.
func BootID() (int, error) {
	const kernel, own = "/proc/sys/kernel/random/boot_id", "/run/pandastack/boot_id"
	id, err := os.ReadFile(kernel)
	if err == nil {
		err = os.MkdirAll(path.Dir(own), 0o755)
	}
	if err == nil {
		err = os.WriteFile(own, id, 0o444)
	}
	if err == nil {
		err = unix.Mount(own, kernel, "", unix.MS_BIND, "")
	}
	if err != nil {
		return 0, fmt.Errorf("bind boot id: %w", err)
	}
	fd, err := unix.Open(own, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open boot id: %w", err)
	}
	return fd, nil
}

// DisableRouterAdvertisements has the kernel not look for IPv6 routers on a link: there are none, and a machine that was just
// restored would spend its first moments on it. A kernel without IPv6 does not either.
func DisableRouterAdvertisements(link string) {
	for _, of := range []string{"default", link} {
		for _, setting := range []string{"accept_ra", "router_solicitations"} {
			_ = os.WriteFile(path.Join("/proc/sys/net/ipv6/conf", of, setting), []byte("0"), 0) // as said
		}
	}
}

// OwnFiles are what Own binds in a machine.
var OwnFiles = []string{"/etc/hostname", "/etc/hosts", "/etc/machine-id"}

// BindInMemory binds files of our own in memory, with the present content, over those of the root file system that
// every restore writes, and returns them open by path: a write to a disk's file system costs a machine
// that was just restored many times as much. What is written to them does not reach the disk. As in
// containers, they can be written but not replaced or removed.
func BindInMemory(paths []string) (map[string]int, error) {
	open := make(map[string]int, len(paths))
	for _, name := range paths {
		fd, err := bindInMemory(name)
		if err != nil {
			return nil, fmt.Errorf("bind %s: %w", name, err)
		}
		open[name] = fd
	}
	return open, nil
}

func bindInMemory(name string) (int, error) {
	mine := path.Join("/run/pandastack", path.Base(name))
	if err := os.MkdirAll(path.Dir(mine), 0o755); err != nil {
		return 0, err
	}
	mode := os.FileMode(0o644)
	content, err := os.ReadFile(name)
	if st, missing := os.Stat(name); missing == nil {
		mode = st.Mode().Perm()
	}
	if errors.Is(err, unix.ENOENT) {
		_ = os.Remove(name) // a link to nowhere: nothing can be bound over it
		if err = os.MkdirAll(path.Dir(name), 0o755); err == nil {
			err = os.WriteFile(name, nil, mode)
		}
	}
	if err == nil {
		err = os.WriteFile(mine, content, mode)
	}
	if err == nil {
		err = unix.Mount(mine, name, "", unix.MS_BIND, "")
	}
	if err != nil {
		return 0, err
	}
	return unix.Open(mine, unix.O_RDWR|unix.O_CLOEXEC, 0)
}

// WaitForRootSize waits until a root device is as large as the file system on it: a machine that waited for its disk
// hears of the disk's size a moment later.
func WaitForRootSize() error {
	device := argument("pandastack.root", "/dev/vda")
	var problem error
	if !await(func() bool {
		var whole bool
		whole, problem = fits(device)
		return whole || problem != nil
	}) {
		return fmt.Errorf("root device %s stays smaller than its file system", device)
	}
	return problem
}

// fits tells whether a device is as large as the ext4 file system on it, by its superblock
// (Documentation/filesystems/ext4/super.rst). What holds no ext4 fits: mounting it says what is wrong.
func fits(device string) (_ bool, err error) {
	fd, err := unix.Open(device, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("open root device: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	size, err := unix.IoctlGetInt(fd, unix.BLKGETSIZE64)
	if err != nil {
		return false, fmt.Errorf("read size of root device: %w", err)
	}
	var b [superblockBytes]byte
	if n, err := unix.Pread(fd, b[:], superblockAt); err != nil || n < len(b) {
		return false, fmt.Errorf("read superblock of root device: %d bytes, %w", n, err)
	}
	return uint64(size) >= superblock(b).bytes(), nil
}

// Where an ext4 superblock lies on its device.
const superblockAt, superblockBytes = 1024, 1024

type superblock [superblockBytes]byte

// bytes is the size of the file system; 0 where there is none.
func (b superblock) bytes() uint64 {
	const blocksLow, logBlock, magic, features, blocksHigh = 0x4, 0x18, 0x38, 0x60, 0x150
	const ext4, wide, maxLogBlock = 0xef53, 0x80, 6
	log := binary.LittleEndian.Uint32(b[logBlock:])
	if binary.LittleEndian.Uint16(b[magic:]) != ext4 || log > maxLogBlock {
		return 0
	}
	blocks := uint64(binary.LittleEndian.Uint32(b[blocksLow:]))
	if binary.LittleEndian.Uint32(b[features:])&wide != 0 {
		blocks |= uint64(binary.LittleEndian.Uint32(b[blocksHigh:])) << 32
	}
	return blocks << (10 + log)
}

// Flag tells whether a word stands on the kernel's command line.
func Flag(name string) bool {
	line, _ := os.ReadFile("/proc/cmdline") // an empty one has no words
	return slices.Contains(strings.Fields(string(line)), name)
}

// argument finds name=value on the kernel's command line.
func argument(name, otherwise string) string {
	line, _ := os.ReadFile("/proc/cmdline") // an empty one has no arguments
	for f := range strings.FieldsSeq(string(line)) {
		if value, ok := strings.CutPrefix(f, name+"="); ok {
			return value
		}
	}
	return otherwise
}

// await looks for something every few milliseconds; false if it does not come.
func await(there func() bool) bool {
	const step = 2
	for waited := 0; !there(); waited += step {
		if waited > devicePatience {
			return false
		}
		_, _ = unix.Poll(nil, step) // only to let time pass
	}
	return true
}
