package uffdtest

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/os/uffd"
)

// maxThreads bounds the threads of Scatter.
const maxThreads = 64

// serveCommands is the main function of the process. It sends the handshake and then executes
// commands until its input ends.
func serveCommands(socket, bytes, page string) error {
	size, err1 := strconv.Atoi(bytes)
	pageSize, err2 := strconv.Atoi(page)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	mem, base, err := memory(size, pageSize)
	if err != nil {
		return fmt.Errorf("map %d bytes in pages of %d: %w", size, pageSize, err)
	}
	features := uffd.EventRemove
	if pageSize == uffd.Huge {
		features |= uffd.HugePages
	}
	fd, err := uffd.New(features)
	if err != nil {
		return err
	}
	if err := fd.Register(base, uint64(size)); err != nil {
		return err
	}
	conn, err := dial(socket)
	if err != nil {
		return err
	}
	defer conn.Close() // open until the process exits, which is how the pager notices the exit
	if err := uffd.Send(conn, fd, []uffd.Region{{Base: base, Size: uint64(size),
		PageSize: uint64(pageSize)}}); err != nil {
		return err
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		response, err := execute(in.Text(), mem, pageSize)
		if err != nil {
			response = "error " + err.Error()
		}
		if _, err := fmt.Println(response); err != nil {
			return err
		}
	}
	return in.Err()
}

// execute runs one command.
func execute(line string, mem []byte, page int) (string, error) {
	var verb string
	var off, length, extra int
	if _, err := fmt.Sscan(line, &verb, &off, &length); err != nil {
		return "", err
	}
	if off < 0 || length < 0 || off > len(mem) || length > len(mem)-off {
		return "", fmt.Errorf("%q is not within %d bytes", line, len(mem))
	}
	if verb == "write" || verb == "scatter" {
		if _, err := fmt.Sscan(line, &verb, &off, &length, &extra); err != nil {
			return "", err
		}
	}
	part := mem[off : off+length]
	began := time.Now()
	switch verb {
	case "sum":
		return fmt.Sprintf("%x", sha256.Sum256(part)), nil
	case "touch":
		touch(part, page)
		return time.Since(began).String(), nil
	case "scatter":
		scatter(part, page, min(max(extra, 1), maxThreads))
		return time.Since(began).String(), nil
	case "write":
		for i := range part {
			part[i] = byte(extra)
		}
		return "ok", nil
	case "drop":
		return "ok", unix.Madvise(part, unix.MADV_DONTNEED)
	}
	return "", fmt.Errorf("unknown command %q", verb)
}

// touched keeps the compiler from removing the reads.
var touched struct {
	sync.Mutex
	sum int
}

func touch(mem []byte, page int) {
	sum := 0
	for at := 0; at < len(mem); at += page {
		sum += int(mem[at])
	}
	touched.Lock()
	defer touched.Unlock()
	touched.sum += sum
}

func scatter(mem []byte, page, threads int) {
	var wait sync.WaitGroup
	share := (len(mem)/threads + page - 1) / page * page
	for at := 0; at < len(mem); at += share {
		wait.Go(func() { touch(mem[at:min(at+share, len(mem))], page) })
	}
	wait.Wait()
}
