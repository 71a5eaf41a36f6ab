// Package uffdtest starts processes whose memory is served by a pager, for tests and benchmarks.
// Such a process is to a pager what a monitor is, but it has no guest.
//
// The program calls Main first. In a process started by Start, Main executes commands and does not
// return. The process maps memory, creates a userfaultfd for it, and sends it to a socket. It then
// reads, writes and drops memory on command.
//
// Only one goroutine may use a Process.
package uffdtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"
)

// mark is the first argument of a process started by Start.
const mark = "uffdtest-process"

// Options describe the memory of a process.
type Options struct {
	Socket   string // path of the pager's socket
	Bytes    int64
	PageSize int // uffd.Page or uffd.Huge
}

// Process is a process whose memory another process serves.
type Process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// Start runs this program as a new process that sends its memory to o.Socket. It does not wait for
// the handshake.
func Start(ctx context.Context, o Options) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, mark, o.Socket, fmt.Sprint(o.Bytes), fmt.Sprint(o.PageSize))
	cmd.Stderr = os.Stderr
	p := &Process{cmd: cmd}
	if p.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return p, nil
}

// PID returns the process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Kill kills the process, even if it is blocked on a fault, and waits for it to exit.
func (p *Process) Kill() error {
	err := p.cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	_ = p.cmd.Wait() // returns an error because the process was killed
	return err
}

// request sends a command and returns the response.
func (p *Process) request(format string, args ...any) (string, error) {
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err != nil {
		return "", err
	}
	line, err := p.out.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("process with served memory: %w", err)
	}
	line = strings.TrimSpace(line)
	if why, ok := strings.CutPrefix(line, "error "); ok {
		return "", errors.New(why)
	}
	return line, nil
}

// Sum reads length bytes from off on, page by page, and returns their SHA-256 in hexadecimal.
func (p *Process) Sum(off, length int64) (string, error) { return p.request("sum %d %d", off, length) }

// Touch reads one byte of each page of a range, in order, and returns the time that took.
func (p *Process) Touch(off, length int64) (time.Duration, error) {
	line, err := p.request("touch %d %d", off, length)
	if err != nil {
		return 0, err
	}
	return time.ParseDuration(line)
}

// Scatter is like Touch, but reads from several threads, each with its own part of the range.
func (p *Process) Scatter(off, length int64, threads int) (time.Duration, error) {
	line, err := p.request("scatter %d %d %d", off, length, threads)
	if err != nil {
		return 0, err
	}
	return time.ParseDuration(line)
}

// Write fills a range with one byte.
func (p *Process) Write(off, length int64, with byte) error {
	_, err := p.request("write %d %d %d", off, length, with)
	return err
}

// Drop gives a range back to the kernel (MADV_DONTNEED), as a balloon does. It returns once the
// pager has read the event.
func (p *Process) Drop(off, length int64) error {
	_, err := p.request("drop %d %d", off, length)
	return err
}

// Main runs the commands in a process started by Start. In any other process it does nothing.
func Main() {
	if len(os.Args) != 5 || os.Args[1] != mark {
		return
	}
	if err := serveCommands(os.Args[2], os.Args[3], os.Args[4]); err != nil && !errors.Is(err, io.EOF) {
		fmt.Fprintln(os.Stderr, "uffdtest:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// dial connects to the pager's socket.
func dial(socket string) (*net.UnixConn, error) {
	return net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
}
