package netslot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// namespaces is the directory where named network namespaces are mounted, as for ip-netns(8).
const namespaces = "/run/netns"

// onThread runs do on a thread of its own, which do may move into other network namespaces. The thread returns to its
// own namespace; if that fails, it ends with its goroutine.
func onThread(do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("open the thread's own namespace: %w", err)
			return
		}
		defer home.Close()
		err = do()
		if back := enter(home); back != nil { // still locked: the runtime ends the thread
			done <- errors.Join(err, back)
			return
		}
		runtime.UnlockOSThread()
		done <- err
	}()
	return <-done
}

// within runs do on a thread inside the namespace ns.
func within(ns *os.File, do func() error) error {
	return onThread(func() error {
		if err := enter(ns); err != nil {
			return err
		}
		return do()
	})
}

// enter moves the calling thread, which must be locked, into ns.
func enter(ns *os.File) error {
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter namespace %s: %w", ns.Name(), err)
	}
	return nil
}

// makeNamespace makes a named network namespace and leaves the calling thread, which must be locked, in it.
func makeNamespace(name string) (*os.File, error) {
	if err := os.MkdirAll(namespaces, 0o755); err != nil {
		return nil, fmt.Errorf("make directory for namespaces: %w", err)
	}
	path := filepath.Join(namespaces, name)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return nil, fmt.Errorf("make namespace: %w", err)
	}
	_ = f.Close() // an empty file, only a mount point
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, errors.Join(fmt.Errorf("make namespace %s: %w", name, err), os.Remove(path))
	}
	if err := unix.Mount("/proc/thread-self/ns/net", path, "none", unix.MS_BIND, ""); err != nil {
		return nil, errors.Join(fmt.Errorf("mount namespace %s: %w", name, err), os.Remove(path))
	}
	return os.Open(path)
}

// removeNamespace removes the name; the namespace ends with its last user. It is not an error if no namespace has the
// name.
func removeNamespace(name string) error {
	path := filepath.Join(namespaces, name)
	err := unix.Unmount(path, unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // EINVAL: a plain file
		return fmt.Errorf("unmount namespace %s: %w", name, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove namespace %s: %w", name, err)
	}
	return nil
}

// sysctl sets a kernel setting such as "net/ipv4/ip_forward" in the namespace of the calling thread.
func sysctl(name, value string) error {
	if err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0); err != nil {
		return fmt.Errorf("set %s to %s: %w", name, value, err)
	}
	return nil
}

// sysctlIfExists is sysctl for settings that some kernels do not have.
func sysctlIfExists(name, value string) error {
	if err := sysctl(name, value); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
