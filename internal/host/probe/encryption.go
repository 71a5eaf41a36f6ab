package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxStack bounds how many block devices may lie on top of each other.
const maxStack = 16

// errUnknownDevice is the reason why the devices below a file system are not known: it has none, or several.
var errUnknownDevice = errors.New("the kernel names no block device for it")

// encryption reports whether the data directory is on an encrypted block device. That is for information: the disks of
// a host may be safe by other means.
func (c Config) encryption(context.Context) Finding {
	at := nearestExisting(c.DataDir)
	device, err := c.unencrypted(at, maxStack)
	switch {
	case err != nil:
		return ok("not known for %s: %v", at, err)
	case device == "":
		return ok("%s is on an encrypted block device (dm-crypt)", at)
	}
	return ok("%s is on a block device without dm-crypt (%s): anyone with the disk can read snapshots and disks of "+
		"sandboxes, unless the device encrypts by itself", at, device)
}

// unencrypted returns a device that holds data of the file at path and is not encrypted, "" if there is none.
func (c Config) unencrypted(path string, depth int) (device string, err error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return c.unencryptedDevice(fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)), depth)
}

// unencryptedDevice is unencrypted for the block device with a number. A loop device is as its file is, and a device
// that is made of others, such as a logical volume, as these are.
func (c Config) unencryptedDevice(number string, depth int) (device string, err error) {
	dir := filepath.Join("sys/dev/block", number)
	if _, err := os.Stat(filepath.Join("/", c.system, dir)); err != nil || depth == 0 {
		return "", errUnknownDevice
	}
	if strings.HasPrefix(c.read(filepath.Join(dir, "dm/uuid")), "CRYPT-") {
		return "", nil
	}
	if file := c.read(filepath.Join(dir, "loop/backing_file")); file != "" {
		return c.unencrypted(file, depth-1)
	}
	below, err := os.ReadDir(filepath.Join("/", c.system, dir, "slaves"))
	if err != nil || len(below) == 0 { // partitions have no such directory
		return number, nil //nolint:nilerr // a device that is made of no others
	}
	for _, e := range below {
		device, err := c.unencryptedDevice(c.read(filepath.Join(dir, "slaves", e.Name(), "dev")), depth-1)
		if device != "" || err != nil {
			return device, err
		}
	}
	return "", nil
}
