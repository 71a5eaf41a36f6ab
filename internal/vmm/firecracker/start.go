package firecracker

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/lib/proc"
	"github.com/pandastack/pandastack/internal/os/jail"
	"github.com/pandastack/pandastack/internal/vmm/firecracker/fcapi"
)

// jailDir is the path of the monitor's directory in one of our own jails.
const jailDir = "/machine"

// devices are the devices that a monitor opens. Devices that this host lacks are left out.
var devices = []string{"/dev/kvm", "/dev/net/tun", "/dev/urandom", "/dev/userfaultfd"}

// arguments are the monitor's arguments apart from its ID.
var arguments = []string{"--api-sock", apiSocket, "--level", "Warning"}

// start starts the monitor: in our own jail, with Firecracker's jailer, or without a jail.
func (m *machine) start(mark string) (*proc.Process, error) {
	d, confine := m.driver, m.spec.Confine
	var netns *os.File
	if m.spec.NIC != nil {
		netns = m.spec.NIC.Netns
	}
	cmd := proc.Command{
		Path: d.config.Binary, Args: append([]string{"--id", m.spec.ID}, arguments...),
		Env: []string{mark}, Dir: m.root(), UID: confine.UID, GID: confine.GID, Groups: d.groups,
	}
	switch {
	case d.config.Jailer != "":
		cmd = m.jailerCommand(mark, netns)
	case confine.Jail != nil:
		cmd.Dir = jailDir
		spec := jail.Spec{
			Program: d.config.Binary, Binds: append([]jail.Bind{{Path: m.root(), Target: jailDir, Write: true}},
				m.binds...),
			Devices: existing(devices), Netns: netns,
		}
		cmd.Fork = func(_ string, argv []string, attr *syscall.ProcAttr) (int, error) {
			return confine.Jail.Start(spec, argv, attr)
		}
		return proc.Start(cmd)
	case netns != nil:
		cmd.Fork = forkInNetns(netns)
	}
	p, err := proc.Start(cmd)
	if err != nil || confine.Enter == nil {
		return p, err
	}
	if err := confine.Enter(p.PID()); err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(m.lifetime), d.config.Limit)
		defer cancel()
		return nil, errors.Join(fmt.Errorf("confine monitor: %w", err), p.Kill(ctx), p.Release())
	}
	return p, nil
}

func existing(paths []string) []string {
	var there []string
	for _, p := range paths {
		if _, err := os.Stat(p); err == nil {
			there = append(there, p)
		}
	}
	return there
}

// forkInNetns returns a fork function that starts a process in a network namespace.
func forkInNetns(netns *os.File) func(string, []string, *syscall.ProcAttr) (int, error) {
	return func(path string, argv []string, attr *syscall.ProcAttr) (pid int, err error) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread()
			own, oerr := os.Open("/proc/thread-self/ns/net")
			if err = oerr; err != nil {
				return
			}
			defer own.Close()
			if err = unix.Setns(int(netns.Fd()), unix.CLONE_NEWNET); err == nil {
				pid, err = syscall.ForkExec(path, argv, attr)
			}
			// The main thread does not end with its goroutine, so try to restore its namespace
			// first.
			if unix.Setns(int(own.Fd()), unix.CLONE_NEWNET) == nil {
				runtime.UnlockOSThread()
			}
		}()
		<-done
		return pid, err
	}
}

// jailerCommand returns the command of Firecracker's jailer, which executes the monitor in the same
// process. The jailer clears the environment. Therefore a monitor without a record is found only
// through its cgroup. It gets no options for cgroups: with --cgroup-version 2 alone it would move the
// monitor into a cgroup with the program's name, if there is one, and out of its limits.
func (m *machine) jailerCommand(mark string, netns *os.File) proc.Command {
	d, confine := m.driver, m.spec.Confine
	args := []string{
		"--id", m.spec.ID, "--exec-file", d.config.Binary, "--uid", strconv.Itoa(confine.UID), "--gid",
		strconv.Itoa(confine.GID),
		"--chroot-base-dir", m.inDir(rootDir),
	}
	if netns != nil { // the jailer closes inherited descriptors before it opens the namespace
		args = append(args, "--netns", fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), netns.Fd()))
	}
	return proc.Command{Path: d.config.Jailer, Args: append(append(args, "--"), arguments...), Env: []string{mark}}
}

// root returns the monitor's directory. With the jailer its path is <base>/<exec file>/<id>/root.
func (m *machine) root() string {
	if m.driver.config.Jailer == "" {
		return m.inDir(rootDir)
	}
	return filepath.Join(m.inDir(rootDir), filepath.Base(m.driver.config.Binary), m.spec.ID, "root")
}

// CheckJailer returns an error if Firecracker's jailer cannot be used with a Firecracker program. Both
// must be of the same release, the jailer must have no known vulnerability, and the program must
// need no shared libraries, because the jailer copies only the program itself.
func CheckJailer(ctx context.Context, path, program string, want fcapi.Version) error {
	ctx, cancel := context.WithTimeout(ctx, versionLimit)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return fmt.Errorf("run %s --version: %w", path, err)
	}
	v, err := fcapi.ParseVersion(string(out))
	if err != nil {
		return fmt.Errorf("run %s --version: %w", path, err)
	}
	if v != want {
		return fmt.Errorf("jailer %s does not match Firecracker %s", v, want)
	}
	if dynamic(program) {
		return fmt.Errorf(
			"%s needs shared libraries, which Firecracker's jailer does not provide: install the static program of "+
				"the release, or leave vmm.jailer empty",
			program,
		)
	}
	return checkJailerRelease(v)
}

// dynamic reports whether a program is an ELF file with an interpreter, which loads shared libraries.
func dynamic(program string) bool {
	f, err := elf.Open(program)
	if err != nil {
		return false // the jailer reports what is wrong
	}
	defer f.Close()
	return slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}
