package firecracker

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Firecracker's jailer makes a directory the root of its monitor, with everything mounted below it.
// unmount removes these mounts.

// jailerDevices is the directory in which the jailer creates device nodes.
const jailerDevices = "dev"

// mountDevices mounts a tmpfs for device nodes. The file system of machines may be mounted with
// nodev, where they could not be opened.
func mountDevices(at string) error {
	if err := os.Mkdir(at, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", at, "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC,
		"mode=0700,size=64k,nr_inodes=16"); err != nil {
		return &os.PathError{Op: "mount a tmpfs for devices at", Path: at, Err: err}
	}
	return nil
}

// mountFile bind-mounts a file under another name.
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

// unmount unmounts everything in the directory of a monitor that has exited.
func unmount(dir string) error {
	root := filepath.Join(dir, rootDir, "*", "*", "root")
	mounted, err := filepath.Glob(filepath.Join(root, "disk*"))
	if err != nil {
		return err
	}
	devices, err := filepath.Glob(filepath.Join(root, jailerDevices))
	for _, at := range append(mounted, devices...) {
		// EINVAL: not a mount point. The monitor may have placed symbolic links, which must not be
		// followed.
		if e := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); e != nil && !errors.Is(e, unix.EINVAL) {
			err = errors.Join(err, &os.PathError{Op: "unmount", Path: at, Err: e})
		}
	}
	return err
}
