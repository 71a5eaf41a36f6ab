package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/os/jail"
	"golang.org/x/sys/unix"
)

func cgroups(context.Context) Finding {
	layout, err := jail.Probe()
	if err != nil {
		return fail(
			"boot with control groups and run as root; in a container, give it its own writable hierarchy",
			"%v",
			err,
		)
	}
	return ok("%v", layout)
}

// userfaultfd is needed by restores that fetch memory while the guest runs, and by nothing else.
func userfaultfd(context.Context) Finding {
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if errno != 0 {
		return warn(
			"use a kernel with CONFIG_USERFAULTFD, and run as root",
			"not usable: %v; monitors that hand page faults over (Firecracker) need it",
			errno,
		)
	}
	_ = unix.Close(int(fd)) // nothing was registered
	return ok("usable")
}

// wantFiles is how many open files a node should have: a machine takes about a dozen of the host agent.
const wantFiles = 65536

func files(context.Context) Finding {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return warn("raise the limit of open files", "the limit is not known: %v", err)
	}
	if l.Max < wantFiles {
		return warn(fmt.Sprintf("raise the limit to %d (LimitNOFILE in the service, or ulimit -n)", wantFiles),
			"%d open files are allowed, enough for about %d sandboxes", l.Max, l.Max/16)
	}
	return ok("%d allowed", l.Max)
}

const (
	memoryFailMiB = 768
	memoryWarnMiB = 3 << 10
)

var available = regexp.MustCompile(`(?m)^MemAvailable:\s+(\d+) kB`)

func memory(context.Context) Finding {
	data, err := os.ReadFile("/proc/meminfo")
	m := available.FindSubmatch(data)
	if err != nil || m == nil {
		return warn("mount /proc", "free memory is not known: %v", err)
	}
	kib, err := strconv.ParseInt(string(m[1]), 10, 64)
	if err != nil {
		return warn("mount the kernel's own /proc", "free memory is not known: %v", err)
	}
	text := fmt.Sprintf("%.1f GiB free", gib(kib<<10))
	switch mib := kib >> 10; {
	case mib < memoryFailMiB:
		return fail("end other programs or use a larger machine", "%s; a bake needs %d MiB", text, memoryFailMiB)
	case mib < memoryWarnMiB:
		return warn("use a larger machine", "%s, enough for a few sandboxes", text)
	}
	return ok("%s", text)
}

// released is a date before the first release of this program, so the clock must be later.
var released = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const clockSources = "/sys/devices/system/clocksource/clocksource0/current_clocksource"

func clock(context.Context) Finding {
	if now := time.Now(); now.Before(released) {
		return fail(
			"set the clock",
			"the clock is wrong: it says %s, so certificates will not be valid in guests",
			now.UTC().Format(time.DateOnly),
		)
	}
	source := "unknown"
	if data, err := os.ReadFile(clockSources); err == nil {
		source = strings.TrimSpace(string(data))
	}
	cpu, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return warn("mount /proc", "the processor is not known: %v", err)
	}
	flags := " " + strings.Join(strings.Fields(firstFlags(string(cpu))), " ") + " "
	var missing []string
	for _, f := range []string{"constant_tsc", "nonstop_tsc"} {
		if strings.Contains(string(cpu), "flags") && !strings.Contains(flags, " "+f+" ") {
			missing = append(missing, f)
		}
	}
	if len(missing) > 0 {
		return warn("use a processor with a constant time stamp counter; guests may lose time otherwise",
			"the time stamp counter lacks %s; clock source %s", strings.Join(missing, ", "), source)
	}
	return ok("set; clock source %s", source)
}

func firstFlags(cpuinfo string) string {
	for _, line := range strings.Split(cpuinfo, "\n") {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "flags" {
			return value
		}
	}
	return ""
}

// errNotRoot replaces confusing messages of the kernel in probes that need root.
var errNotRoot = errors.New("this check needs root")
