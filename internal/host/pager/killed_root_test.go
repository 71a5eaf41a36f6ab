//go:build root

package pager_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/host/pager"
	"github.com/pandastack/pandastack/internal/host/pager/pagertest"
	"github.com/pandastack/pandastack/internal/host/probe"
	"github.com/pandastack/pandastack/internal/host/probe/probetest"
	"github.com/pandastack/pandastack/internal/os/uffd"
	"github.com/pandastack/pandastack/internal/os/uffd/uffdtest"
)

// pagerProcessArg is the first argument of the test binary that makes it a pager serving one process at a
// socket.
const pagerProcessArg = "pager-process"

const killedSize = 8 << 20

func pagerProcess(socket string) error {
	source := pagertest.New(map[string][]byte{"memory": pagertest.Pattern(killedSize, nil)})
	f, err := pager.NewFile(source, "memory", time.Hour)
	if err != nil {
		return err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	conn, err := l.AcceptUnix()
	if err != nil {
		return err
	}
	return f.Serve(context.Background(), conn, pager.ServeOptions{})
}

// When the pager is killed, installed pages remain usable. A thread that faults on another page blocks
// silently and can be killed, which the owner of the process does when its pager ends.
func TestPagerKilled(t *testing.T) {
	probetest.Need(t, probe.Config{}, probe.Root, probe.Userfaultfd)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	socket := filepath.Join(t.TempDir(), "s")
	served := exec.CommandContext(ctx, self, pagerProcessArg, socket)
	served.Stderr = os.Stderr
	out, err := served.StdoutPipe()
	if err := errors.Join(err, served.Start()); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewScanner(out)
	if !said.Scan() || said.Text() != "ready" {
		t.Fatalf("the pager printed %q, want \"ready\"", said.Text())
	}
	p, err := uffdtest.Start(ctx, uffdtest.Options{Socket: socket, Bytes: killedSize, PageSize: uffd.Page})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Kill() }()
	want, err := p.Sum(0, killedSize/4)
	if err != nil {
		t.Fatal(err)
	}
	if err := served.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = served.Wait() // the process was killed, which Wait reports as an error
	if got, err := p.Sum(0, killedSize/4); err != nil || got != want {
		t.Errorf("installed pages: got sum %s, %v; want %s", got, err, want)
	}
	waits := make(chan error, 1)
	go func() {
		_, err := p.Sum(killedSize/2, uffd.Page)
		waits <- err
	}()
	if err := p.Kill(); err != nil {
		t.Errorf("kill of a process that waits for a dead pager: %v", err)
	}
	if err := <-waits; err == nil {
		t.Error("read of a page that no pager serves: got nil, want an error")
	}
}
