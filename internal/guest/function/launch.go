package function

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxProcesses bounds the processes and threads of the handler's user.
const maxProcesses = 1024

// launch becomes the program of args, "UID -- PROGRAM ARG...", as that user and without a way to gain privileges. -1
// stands for the user who runs it.
func launch(args []string) error {
	if len(args) < 3 || args[1] != "--" {
		return errors.New("usage: pandastack-runtime launch UID -- PROGRAM [ARG...]")
	}
	uid, err := strconv.Atoi(args[0])
	if err != nil {
		return fmt.Errorf("user: %w", err)
	}
	program, err := exec.LookPath(args[2])
	if err != nil {
		return err
	}
	limits := map[int]uint64{unix.RLIMIT_CORE: 0}
	if uid >= 0 {
		limits[unix.RLIMIT_NPROC] = maxProcesses
	}
	for limit, n := range limits {
		if err := unix.Setrlimit(limit, &unix.Rlimit{Cur: n, Max: n}); err != nil {
			return fmt.Errorf("limit %d: %w", limit, err)
		}
	}
	syscall.Umask(0o022)
	// A machine that is out of memory ends the handler, and not what runs it.
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("500"), 0); err != nil {
		return err
	}
	if uid >= 0 {
		err := errors.Join(syscall.Setgroups(nil), syscall.Setresgid(uid, uid, uid), syscall.Setresuid(uid, uid, uid))
		if err != nil {
			return fmt.Errorf("become user %d: %w", uid, err)
		}
	}
	runtime.LockOSThread() // the thread that becomes the program keeps what it has renounced
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("renounce privileges: %w", err)
	}
	return fmt.Errorf("%s: %w", program, syscall.Exec(program, args[2:], os.Environ()))
}
