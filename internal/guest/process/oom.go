package process

import (
	"bytes"
	"strconv"

	"golang.org/x/sys/unix"
)

// kernelLog is the kernel's log, which returns one record per read (Documentation/ABI/testing/dev-kmsg).
const kernelLog = "/dev/kmsg"

// maxRecords limits how much of the log is read; the log of a guest holds some thousands.
const maxRecords = 20000

// outOfMemory reports whether the kernel killed a process because memory ran out. Without a log it returns false.
func outOfMemory(log string, pid int) bool {
	fd, err := unix.Open(log, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd) // the log was only read
	record := make([]byte, 8<<10)
	for range maxRecords {
		n, err := unix.Read(fd, record)
		switch {
		case err == unix.EPIPE || err == unix.EINTR: // records were overwritten during the read: continue with the next
			continue
		case err != nil || n <= 0: // EAGAIN: no more records
			return false
		}
		if killedForMemory(record[:n], pid) {
			return true
		}
	}
	return false
}

// killedForMemory reports whether a record describes such a kill: "6,1234,5678,-;Out of memory: Killed process 42
// (name) ...". The number before the first comma holds the writer of the record, above three bits of priority. 0 is
// the kernel; programs cannot write records of the kernel.
func killedForMemory(record []byte, pid int) bool {
	head, text, ok := bytes.Cut(record, []byte(";"))
	level, _, _ := bytes.Cut(head, []byte(","))
	n, err := strconv.Atoi(string(level))
	if !ok || err != nil || n < 0 || n > 7 {
		return false
	}
	line, _, _ := bytes.Cut(text, []byte("\n"))
	if !bytes.HasPrefix(line, []byte("Out of memory")) &&
		!bytes.HasPrefix(line, []byte("Memory cgroup out of memory")) {
		return false
	}
	return bytes.Contains(line, []byte(": Killed process "+strconv.Itoa(pid)+" ("))
}
