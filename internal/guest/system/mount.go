package system

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// diskPatience is how many milliseconds a disk may take to appear.
const diskPatience = 30_000

// mountFlags are the mount options that the kernel takes as flags. It takes all others as text.
var mountFlags = map[string]uintptr{
	"defaults": 0, "rw": 0, "ro": unix.MS_RDONLY, "noatime": unix.MS_NOATIME, "nodiratime": unix.MS_NODIRATIME,
	"relatime": unix.MS_RELATIME, "lazytime": unix.MS_LAZYTIME, "nodev": unix.MS_NODEV, "nosuid": unix.MS_NOSUID,
	"noexec": unix.MS_NOEXEC, "sync": unix.MS_SYNCHRONOUS, "dirsync": unix.MS_DIRSYNC,
}

// Mount implements System.
func (*Linux) Mount(device, dir string, options []string) error {
	const step = 2
	for waited := 0; unix.Access(device, unix.F_OK) != nil; waited += step {
		if waited > diskPatience {
			return fmt.Errorf("disk %s does not appear", device)
		}
		_, _ = unix.Poll(nil, step) // sleeps
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	var flags uintptr
	var text []string
	for _, o := range options {
		if flag, ok := mountFlags[o]; ok {
			flags |= flag
		} else {
			text = append(text, o)
		}
	}
	err := unix.Mount(device, dir, "ext4", flags, strings.Join(text, ","))
	if err == unix.EBUSY && mounted(device, dir) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("mount %s on %s: %w", device, dir, err)
	}
	return nil
}

// mounted reports whether the file system at dir is on a device.
func mounted(device, dir string) bool {
	var dev, at unix.Stat_t
	return unix.Stat(device, &dev) == nil && unix.Stat(dir, &at) == nil && dev.Rdev == at.Dev
}
