package uffd

import (
	"errors"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From linux/userfaultfd.h.
const (
	uffdAPI         = 0xaa
	ioctlNew        = 0xaa00 // for /dev/userfaultfd
	ioctlAPI        = 0xc018aa3f
	ioctlRegister   = 0xc020aa00
	ioctlUnregister = 0x8010aa01
	ioctlWake       = 0x8010aa02
	ioctlCopy       = 0xc028aa03
	ioctlZero       = 0xc020aa04
	ioctlContinue   = 0xc020aa07
	registerMissing = 1
)

// openDevice returns a new userfaultfd, from the device or, if there is none, from the system call.
func openDevice() (int, error) {
	const flags = unix.O_CLOEXEC | unix.O_NONBLOCK
	dev, err := unix.Open("/dev/userfaultfd", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, flags, 0, 0)
		if errno != 0 {
			return 0, errno
		}
		return int(fd), nil
	}
	if err != nil {
		return 0, err
	}
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(dev), ioctlNew, flags)
	err = unix.Close(dev)
	if errno != 0 {
		err = errors.Join(errno, err)
	}
	return int(fd), err
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

func api(fd int, features uint64) error {
	arg := struct{ api, features, ioctls uint64 }{api: uffdAPI, features: features}
	return ioctl(fd, ioctlAPI, unsafe.Pointer(&arg))
}

func register(fd int, start, length uint64) error {
	arg := struct{ start, length, mode, ioctls uint64 }{start: start, length: length, mode: registerMissing}
	return ioctl(fd, ioctlRegister, unsafe.Pointer(&arg))
}

func unregister(fd int, start, length uint64) error {
	arg := [2]uint64{start, length}
	return ioctl(fd, ioctlUnregister, unsafe.Pointer(&arg))
}

func wake(fd int, start, length uint64) error {
	arg := [2]uint64{start, length}
	return ioctl(fd, ioctlWake, unsafe.Pointer(&arg))
}

// copyPages is UFFDIO_COPY. The kernel reads src before the call returns and keeps no reference to
// it.
func copyPages(fd int, to uint64, src []byte) (int64, error) {
	if len(src) == 0 {
		return 0, unix.EINVAL
	}
	arg := struct {
		dst, src, length, mode uint64
		done                   int64
	}{dst: to, src: uint64(uintptr(unsafe.Pointer(&src[0]))), length: uint64(len(src))}
	err := ioctl(fd, ioctlCopy, unsafe.Pointer(&arg))
	runtime.KeepAlive(src) // the garbage collector does not see the address in arg
	return arg.done, err
}

func zero(fd int, start, length uint64) (int64, error) {
	arg := struct {
		start, length, mode uint64
		done                int64
	}{start: start, length: length}
	err := ioctl(fd, ioctlZero, unsafe.Pointer(&arg))
	return arg.done, err
}

func continueRange(fd int, start, length uint64) (int64, error) {
	arg := struct {
		start, length, mode uint64
		done                int64
	}{start: start, length: length}
	err := ioctl(fd, ioctlContinue, unsafe.Pointer(&arg))
	return arg.done, err
}
