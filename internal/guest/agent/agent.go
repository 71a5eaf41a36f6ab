package agent

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/guest/initd"
	"github.com/pandastack/pandastack/internal/guest/process"
	"github.com/pandastack/pandastack/internal/guest/server"
	"github.com/pandastack/pandastack/internal/guest/system"
)

// PortName is the name of the virtio-serial port that is the guest channel.
const PortName = "agent.0"

// reservedBytes is how much memory stays with the agent and the kernel when the workload takes all it can.
const reservedBytes = 24 << 20

// openFiles is the limit of open files of the agent and, unless they change it, of all processes. fs/file.c allows a
// million by default.
const openFiles, maxOpenFiles = 1 << 16, 1 << 20

// growHeap allocates memory and returns it to Go's heap, so that the first request in a restored machine does not
// have to ask the kernel for more.
func growHeap() {
	runtime.KeepAlive(make([]byte, 4<<20))
	runtime.GC()
}

// Run runs the first process of a machine, starting in the initramfs. It returns only on an error that it cannot
// recover from; then the machine must end.
func Run(ctx context.Context) error {
	debug.SetGCPercent(
		200,
	) // the heap is small: in a restored machine, collecting it costs more than the memory is worth
	growHeap()
	limit := syscall.Rlimit{Cur: openFiles, Max: maxOpenFiles}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil { // processes inherit the limit
		return fmt.Errorf("set limit of open files: %w", err)
	}
	if err := initd.IgnoreSignals(); err != nil {
		return err
	}
	if err := initd.Devices(); err != nil {
		return err
	}
	if err := initd.StopIntervalTimer(); err != nil {
		return err
	}
	if err := initd.UseBatchScheduling(); err != nil {
		return err
	}
	failed := make(chan error, 2)
	var b guestapi.Backend = &deferredRoot{begin: func(id guestapi.Identity) (guestapi.Backend, error) {
		if err := prepareRoot(id); err != nil {
			return nil, err
		}
		return mountRoot(failed)
	}}
	if !initd.HasFlag(guestapi.WaitForRootArgument) {
		var err error
		if b, err = mountRoot(failed); err != nil {
			return err
		}
	}
	hosts, err := channel(ctx, b)
	if err != nil {
		return err
	}
	go func() { failed <- hosts() }()
	return <-failed
}

// prepareRoot prepares a machine that waited for its root device to mount that device. It comes first, because the file
// system records the time, and later steps may need entropy that no other copy of the machine has.
func prepareRoot(id guestapi.Identity) error {
	var sys system.Linux
	if err := sys.AddEntropy(id.Entropy); err != nil {
		return fmt.Errorf("set entropy: %w", err)
	}
	if err := sys.SetClock(id.Time); err != nil {
		return fmt.Errorf("set clock: %w", err)
	}
	return initd.WaitForRootSize()
}

// mountRoot mounts the root file system and returns the backend of the machine on it. The reaper runs for as long as
// the machine lives; its error goes to failed.
func mountRoot(failed chan<- error) (guestapi.Backend, error) {
	device, err := initd.Root()
	if err != nil {
		return nil, err
	}
	if err := initd.Mounts(); err != nil {
		return nil, err
	}
	b, reaper, err := newBackend(device)
	if err != nil {
		return nil, err
	}
	go func() { failed <- reaper.Run() }()
	return b, nil
}

// channel opens the guest channel and returns the function that serves hosts over it.
func channel(ctx context.Context, b guestapi.Backend) (serveHosts func() error, err error) {
	number, err := initd.VsockPort()
	if err != nil {
		return nil, err
	}
	if number == 0 {
		port, err := initd.OpenPort(PortName)
		return func() error { return servePort(ctx, port, b) }, err
	}
	l, err := initd.Listen(number)
	return func() error {
		return serveSockets(ctx, func() (io.ReadWriteCloser, error) { return l.Accept() }, server.New(b))
	}, err
}

// newBackend makes the backend of the machine whose root is device.
func newBackend(device string) (*Backend, *process.Reaper, error) {
	bootID, err := initd.BootID()
	if err != nil {
		return nil, nil, err
	}
	initd.DisableRouterAdvertisements("eth0")
	own, err := initd.BindInMemory(initd.InMemoryFiles)
	if err != nil {
		return nil, nil, err
	}
	random, err := unix.Open("/dev/urandom", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open /dev/urandom: %w", err)
	}
	if err := system.LinkUp("lo"); err != nil {
		return nil, nil, err
	}
	group, err := system.OpenCgroup("/sys/fs/cgroup", "workload", limits())
	if err != nil {
		return nil, nil, err
	}
	reaper := process.NewReaper(true)
	return New(Config{
		System:   &system.Linux{BootID: bootID, Root: device, Link: "eth0", Random: random, Files: own},
		Workload: group,
		Cgroup:   group.FD(),
		Reaper:   reaper,
	}), reaper, nil
}

// limits returns the limits of the workload. They leave the agent enough to reply while the workload uses everything
// else.
func limits() system.Limits {
	var l system.Limits
	b, _ := os.ReadFile("/proc/sys/kernel/threads-max") // without the file there is no limit
	if n, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil {
		l.Pids = n - n/8
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		l.MemoryBytes = max(0, int64(info.Totalram)*int64(info.Unit)-reservedBytes)
	}
	return l
}

// servePort serves one host after the other over a virtio-serial port.
func servePort(ctx context.Context, port *initd.Port, b guestapi.Backend) error {
	s := server.New(b)
	for {
		if err := s.Serve(ctx, port); err != nil {
			return fmt.Errorf("serve host: %w", err)
		}
		if err := port.Connected(); err != nil {
			return err
		}
	}
}
