// Package initd contains the steps of the first process of a machine before it becomes the guest agent: mounting file
// systems, loading kernel modules, switching from the initramfs to the root file system, setting signal actions, and
// opening the device of the guest channel.
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

// Modules is the directory of kernel modules in the initramfs. Its file "order" lists their checksums and names in
// load order.
const Modules = "/modules"

// devicePatience is how many milliseconds a device may take to appear.
const devicePatience = 30_000

type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

// Devices mounts the kernel's file systems and loads the modules of the initramfs.
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

// Root mounts the root device, makes it the root directory of this process and returns the device. The kernel command
// line names the device as pandastack.root; the default is /dev/vda. Call Devices first.
func Root() (device string, err error) {
	device = argument("pandastack.root", "/dev/vda")
	if !poll(func() bool { return unix.Access(device, unix.F_OK) == nil }) {
		return "", fmt.Errorf("root device %s does not appear", device)
	}
	const root = "/root.new"
	if err := (mount{device, root, "ext4", unix.MS_NOATIME, ""}).do(); err != nil {
		return "", err
	}
	_ = os.RemoveAll(Modules) // frees the memory of the modules
	_ = os.Remove("/init")    // as above; this program runs on without its name
	return device, switchRoot(root)
}

// do mounts m and makes the target directory if needed. A target that is already mounted is left as it is.
func (m mount) do() error {
	if err := os.MkdirAll(m.target, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", m.target, err)
	}
	if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil && err != unix.EBUSY {
		return fmt.Errorf("mount %s: %w", m.target, err)
	}
	return nil
}

// switchRoot makes dir the root directory, with /proc, /sys and /dev moved into it.
func switchRoot(dir string) error {
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

// Mounts creates the mounts, links and directories that programs expect in a root file system.
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
	for _, device := range []string{"/dev/fuse", "/dev/net/tun"} { // as udev sets them: the kernel checks their users
		if err := os.Chmod(device, 0o666); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("set the mode of %s: %w", device, err)
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
			continue // the directory exists, with a mode of its own
		}
		if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
			return fmt.Errorf("make %s: %w", dir, err)
		}
	}
	return nil
}

// BootID binds a file over the kernel's boot ID and returns that file open. Restored copies of a machine would
// otherwise share one boot ID.
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

// DisableRouterAdvertisements stops the kernel from looking for IPv6 routers on a link. The network has none, and the
// search would take time in a machine that was just restored. It ignores errors: a kernel without IPv6 does not look
// for routers either.
func DisableRouterAdvertisements(link string) {
	for _, of := range []string{"default", link} {
		for _, setting := range []string{"accept_ra", "router_solicitations"} {
			// Fails only in a kernel without IPv6.
			_ = os.WriteFile(path.Join("/proc/sys/net/ipv6/conf", of, setting), []byte("0"), 0)
		}
	}
}

// InMemoryFiles are the files that the agent passes to BindInMemory.
var InMemoryFiles = []string{"/etc/hostname", "/etc/hosts", "/etc/machine-id"}

// BindInMemory binds in-memory copies over the files at paths and returns them open by path. Every restore writes
// these files, and in a machine that was just restored a write to a file system on disk costs many times as much as
// one in memory. Changes do not reach the disk. As in containers, programs can write the files but not replace or
// remove them.
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
		_ = os.Remove(name) // a dangling symbolic link: no file can be bound over it
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

// WaitForRootSize waits until the root device is as large as the file system on it. A machine that waited for its
// disk learns the disk's size a moment later.
func WaitForRootSize() error {
	device := argument("pandastack.root", "/dev/vda")
	var problem error
	if !poll(func() bool {
		var whole bool
		whole, problem = fitsFileSystem(device)
		return whole || problem != nil
	}) {
		return fmt.Errorf("root device %s stays smaller than its file system", device)
	}
	return problem
}

// fitsFileSystem reports whether a device is as large as the ext4 file system on it, by its superblock
// (Documentation/filesystems/ext4/super.rst). A device without ext4 fits: mounting it returns the error.
func fitsFileSystem(device string) (_ bool, err error) {
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

// superblockAt is where an ext4 superblock starts on its device.
const superblockAt, superblockBytes = 1024, 1024

type superblock [superblockBytes]byte

// bytes returns the size of the file system; 0 if the superblock is not valid.
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

// HasFlag reports whether the kernel command line contains a word.
func HasFlag(name string) bool {
	line, _ := os.ReadFile("/proc/cmdline") // an empty command line has no words
	return slices.Contains(strings.Fields(string(line)), name)
}

// argument returns the value of name=value on the kernel command line, or otherwise.
func argument(name, otherwise string) string {
	line, _ := os.ReadFile("/proc/cmdline") // an empty command line has no arguments
	for f := range strings.FieldsSeq(string(line)) {
		if value, ok := strings.CutPrefix(f, name+"="); ok {
			return value
		}
	}
	return otherwise
}

// poll polls a condition every few milliseconds. It returns false if the condition stays false for devicePatience.
func poll(there func() bool) bool {
	const step = 2
	for waited := 0; !there(); waited += step {
		if waited > devicePatience {
			return false
		}
		_, _ = unix.Poll(nil, step) // sleeps
	}
	return true
}
