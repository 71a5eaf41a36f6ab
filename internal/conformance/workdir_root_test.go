//go:build root

package conformance

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/pandastack/pandastack/internal/host/probe"
	"github.com/pandastack/pandastack/internal/host/probe/probetest"
	"github.com/pandastack/pandastack/internal/os/jail"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/fake"
)

// TestMonitorsRunInJail checks that monitors of a run are confined as those of a node are, and can open devices that
// only root may open outside.
func TestMonitorsRunInJail(t *testing.T) {
	probetest.Need(t, probe.Config{}, probe.Jail)
	o := Options{
		DataDir: t.TempDir(), Open: func(context.Context, string) (vmm.Driver, error) { return fake.New(), nil },
	}
	a, err := openWorkdir(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	c, err := a.confine(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if c.Jail == nil || c.UID == 0 || c.GID == 0 {
		t.Fatalf("confinement = %+v, want a jail and a user other than root", c)
	}
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	const program = "/bin/ls"
	spec := jail.Spec{Program: program, Devices: []string{"/dev/null"}}
	pid, err := c.Jail.Start(spec, []string{program, "-l", "/dev"},
		&syscall.ProcAttr{Files: []uintptr{out.Fd(), in.Fd(), in.Fd()}, Sys: &syscall.SysProcAttr{
			Credential: &syscall.Credential{Uid: uint32(c.UID), Gid: uint32(c.GID)},
		}})
	if err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	_ = in.Close() // ends what is read below
	if _, err := text.ReadFrom(out); err != nil || status.ExitStatus() != 0 ||
		!bytes.Contains(text.Bytes(), []byte("crw-rw-rw-")) {
		t.Errorf("the program ended with status %#x, %v and printed %s; want a device that everybody may open",
			int(status), err, &text)
	}
	_ = out.Close()
	for _, name := range []string{"mount", "bpf", "mount"} {
		a.refuse(jail.RefusedCall{Name: name})
	}
	if got := (&Lab{work: a}).RefusedCalls(); !slices.Equal(got, []string{"bpf", "mount"}) {
		t.Errorf("RefusedCalls() = %v, want bpf and mount", got)
	}
	if err := a.close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(a.dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("stat of the closed work directory: %v, want it to be removed", err)
	}
	if c, err := (&workdir{}).confine(t.Context(), Options{DisableJail: true}); err != nil || c.Jail != nil {
		t.Errorf("confinement without a jail = %+v, %v; want none", c, err)
	}
}
