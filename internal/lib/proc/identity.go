package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ErrGone means that the process of an Identity has ended.
var ErrGone = errors.New("process has ended")

// Identity identifies one process until the host reboots. A process ID alone does not, since process IDs are reused
// and start again after a boot.
type Identity struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks from the host's boot to the start of the process
	Boot  string `json:"boot"`  // the kernel's ID of that boot
}

// Alive reports whether the process is running. A zombie is not.
func (id Identity) Alive() bool {
	now, state, err := identify(id.PID)
	return err == nil && now == id && state != 'Z' && state != 'X'
}

// Identify returns the identity of the process pid. The error is ErrGone if no process has that ID.
func Identify(pid int) (Identity, error) {
	id, state, err := identify(pid)
	if err != nil {
		return Identity{}, err
	}
	if state == 'Z' || state == 'X' {
		return Identity{}, fmt.Errorf("process %d: %w", pid, ErrGone)
	}
	return id, nil
}

func identify(pid int) (Identity, byte, error) {
	if pid <= 0 {
		return Identity{}, 0, fmt.Errorf("process %d: %w", pid, ErrGone)
	}
	st, err := readStat(pid)
	if err != nil {
		return Identity{}, 0, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Identity{}, 0, err
	}
	return Identity{PID: pid, Start: st.start, Boot: strings.TrimSpace(string(boot))}, st.state, nil
}

// stat holds the fields of /proc/PID/stat that this package uses (proc_pid_stat(5)).
type stat struct {
	state        byte
	utime, stime uint64
	threads      int
	start        uint64
}

func readStat(pid int) (stat, error) {
	data, err := os.ReadFile(procFile(pid, "stat"))
	if err != nil {
		return stat{}, fmt.Errorf("process %d: %w", pid, errors.Join(ErrGone, err))
	}
	return parseStat(data)
}

// parseStat parses the fields after the command name, which may itself contain spaces and parentheses.
func parseStat(data []byte) (stat, error) {
	end := bytes.LastIndexByte(data, ')')
	if end < 0 {
		return stat{}, errors.New("process status has no command name")
	}
	f := strings.Fields(string(data[end+1:]))
	if len(f) < 20 || len(f[0]) != 1 {
		return stat{}, errors.New("process status is too short")
	}
	var s stat
	var errs [4]error
	s.state = f[0][0]
	s.utime, errs[0] = strconv.ParseUint(f[11], 10, 64)
	s.stime, errs[1] = strconv.ParseUint(f[12], 10, 64)
	s.threads, errs[2] = strconv.Atoi(f[17])
	s.start, errs[3] = strconv.ParseUint(f[19], 10, 64)
	return s, errors.Join(errs[:]...)
}

// Find returns the processes that started with the environment variable marker ("NAME=value"). It skips processes
// that this one may not inspect.
func Find(marker string) ([]Identity, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var found []Identity
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		env, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil || !hasVariable(env, marker) {
			continue // the process has ended, or access is denied
		}
		if id, err := Identify(pid); err == nil {
			found = append(found, id)
		}
	}
	return found, nil
}

func hasVariable(env []byte, marker string) bool {
	for v := range bytes.SplitSeq(env, []byte{0}) {
		if string(v) == marker {
			return true
		}
	}
	return false
}

func procFile(pid int, name string) string {
	return "/proc/" + strconv.Itoa(pid) + "/" + name
}
