// Package uffdtest is a process whose memory another process serves, for tests and measurements: what a
// monitor is to a pager, without a guest.
//
// A program calls Main first thing; in a process that Start made of it, Main does what it is told and does
// not return. The process maps memory, makes a userfaultfd for it, hands it over at a socket, and then
// touches, writes and gives back memory line by line.
//
// A Process belongs to one goroutine.
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

// mark is the first argument of a process that is told what to do.
const mark = "uffdtest-process"

// Options say what memory a process has.
type Options struct {
	Socket   string // of the pager
	Bytes    int64
	PageSize int // uffd.Page or uffd.Huge
}

// Process is a process with memory that somebody else serves.
type Process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// Start starts a process, of this program, that hands its memory over at o.Socket. It returns before that.
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

// PID is the process's.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Kill ends it, whatever it waits for, and waits for its end.
func (p *Process) Kill() error {
	err := p.cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	_ = p.cmd.Wait() // it was killed, which is told as an error
	return err
}

// request sends a line and reads the answer.
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

// Sum reads length bytes from off on, page after page, and answers their SHA-256 in hexadecimal.
func (p *Process) Sum(off, length int64) (string, error) { return p.request("sum %d %d", off, length) }

// Touch reads one byte of each page of a range, in order, and answers how long that took.
func (p *Process) Touch(off, length int64) (time.Duration, error) {
	line, err := p.request("touch %d %d", off, length)
	if err != nil {
		return 0, err
	}
	return time.ParseDuration(line)
}

// Scatter is Touch from several threads at once, each with its own part of the range.
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

// Drop gives a range back to the kernel, as a balloon does. It returns when the pager read of it.
func (p *Process) Drop(off, length int64) error {
	_, err := p.request("drop %d %d", off, length)
	return err
}

// Main does nothing in a process that Start did not make.
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

// dial connects to the pager.
func dial(socket string) (*net.UnixConn, error) {
	return net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
}
