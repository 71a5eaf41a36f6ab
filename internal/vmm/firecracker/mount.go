package firecracker

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// What the official jailer finds in the directory that becomes its root is what its monitor has, with all that
// is mounted below it. unmount takes away what is mounted here.

// jailerDevices is where the official jailer makes device nodes.
const jailerDevices = "dev"

// mountDevices makes a place for device nodes that can be opened: on the file system of machines, which may be
// mounted without that right, they could not.
func mountDevices(at string) error {
	if err := os.Mkdir(at, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", at, "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=0700,size=64k,nr_inodes=16"); err != nil {
		return &os.PathError{Op: "mount a place for devices at", Path: at, Err: err}
	}
	return nil
}

// mountFile mounts a file under another name.
func mountFile(path, at string, readOnly bool) error {
	f, err := os.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := unix.Mount(path, at, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "mount " + path + " at", Path: at, Err: err}
	}
	flags := uintptr(unix.MS_BIND | unix.MS_REMOUNT | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	if readOnly {
		flags |= unix.MS_RDONLY
	}
	if err := unix.Mount("", at, "", flags, ""); err != nil {
		return errors.Join(
			&os.PathError{Op: "mount " + path + " at", Path: at, Err: err},
			unix.Unmount(at, unix.MNT_DETACH),
		)
	}
	return nil
}

// unmount takes away what was mounted in the directory of a monitor that has ended.
func unmount(dir string) error {
	root := filepath.Join(dir, rootDir, "*", "*", "root")
	mounted, err := filepath.Glob(filepath.Join(root, "disk*"))
	if err != nil {
		return err
	}
	devices, err := filepath.Glob(filepath.Join(root, jailerDevices))
	for _, at := range append(mounted, devices...) {
		// EINVAL: nothing is mounted there. What the monitor put there is no link that is followed.
		if e := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); e != nil && !errors.Is(e, unix.EINVAL) {
			err = errors.Join(err, &os.PathError{Op: "unmount", Path: at, Err: e})
		}
	}
	return err
}
