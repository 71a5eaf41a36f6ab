package qemu

import (
	"errors"
	"flag"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/os/seccomp"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/qemu/qmp"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got:\n%s\nwant %s:\n%s", got, path, want)
	}
}

func TestArguments(t *testing.T) {
	mac, err := net.ParseMAC("02:fc:00:00:00:05")
	if err != nil {
		t.Fatal(err)
	}
	ten, seven := version{10, 0, "10.0.2"}, version{7, 2, "7.2.22"}
	restore := launchSpec{
		id: "mch1", version: ten, accel: vmm.TCG, vcpus: 2, memoryMiB: 512, monitor: 3, channel: 4, memory: fdPath(5),
		incoming: 6, disks: []diskFD{{read: 7, write: 8}, {read: 9}}, tap: 10, mac: mac,
	}
	boot := restore
	boot.incoming, boot.kernel, boot.initramfs, boot.acpi = 0, fdPath(11), fdPath(12), true
	boot.cmdline = kernelCmdline(2445424, "pandastack.root=/dev/vda")
	old, kvm, bound := restore, restore, restore
	bound.disks = []diskFD{
		{read: 7, write: 8, rate: vmm.Rate{Bytes: 1 << 20, Ops: 100}},
		{read: 9, volatile: true, rate: vmm.Rate{Ops: 7}},
	}
	old.version, kvm.accel = seven, vmm.KVM
	for name, s := range map[string]launchSpec{"restore": restore, "boot": boot, "restore-7.2": old, "restore-kvm": kvm,
		"restore-bound": bound} {
		t.Run(name, func(t *testing.T) {
			golden(t, name+".args", strings.ReplaceAll(strings.Join(s.arguments(), "\n"), "\n-", "\n\n-")+"\n")
		})
	}
}

func TestParseVersion(t *testing.T) {
	for _, c := range []struct {
		text string
		want version
		ok   bool
	}{
		{"QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)\nCopyright", version{10, 0, "10.0.2"}, true},
		{"QEMU emulator version 7.2.22", version{7, 2, "7.2.22"}, true},
		{"hello", version{}, false},
	} {
		got, err := parseVersion(c.text)
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("parseVersion(%q) = %+v, %v; want %+v", c.text, got, err, c.want)
		}
	}
	if !(version{10, 0, ""}).atLeast(8, 2) || (version{8, 1, ""}).atLeast(8, 2) || !(version{8, 2, ""}).atLeast(8, 2) {
		t.Error("atLeast(8, 2) is wrong for 10.0, 8.1 or 8.2")
	}
}

// TestDirtyPages uses a private file mapping of the test process as a guest's memory.
func TestDirtyPages(t *testing.T) {
	const size = 8 << 20
	f, err := os.CreateTemp(t.TempDir(), "memory")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	content := slices.Repeat([]byte("base"), size/4)
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	var sum byte
	for i := 0; i < size; i += pageSize {
		sum += mem[i] // makes the page present, but it remains the file's
	}
	for _, page := range []int{0, 3, 4, 5, 2047} {
		mem[page*pageSize+int(sum)%7]++
	}
	key, err := vmmproc.KeyOf(f)
	if err != nil {
		t.Fatal(err)
	}
	r, err := findGuestMemory(os.Getpid(), key.Inode, size)
	if err != nil {
		t.Fatal(err)
	}
	want := []span{{0, 1 * pageSize}, {3 * pageSize, 6 * pageSize}, {2047 * pageSize, 2048 * pageSize}}
	got, err := r.dirty()
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("dirty() = %v, %v; want %v", got, err, want)
	}
	buf, err := newBuffer(total(got))
	if err != nil {
		t.Fatal(err)
	}
	defer buf.free()
	if err := r.read(got, buf.mem); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(buf.mem[pageSize:2*pageSize], mem[3*pageSize:4*pageSize]) {
		t.Error("the copy of page 3 differs")
	}
	copy(mem, content)
	if err := r.write(got, buf.mem); err != nil {
		t.Fatal(err)
	}
	if mem[3*pageSize+int(sum)%7] == content[3*pageSize+int(sum)%7] {
		t.Error("page 3 was not written back")
	}
}

func TestCheckManifest(t *testing.T) {
	good := vmm.Manifest{
		Version: 1, Driver: "qemu", VMM: "10.0.2", Accelerator: vmm.TCG, CPU: "tcg-max", TSCkHz: 2445424,
		VCPUs: 1, MemoryMiB: 256, Disks: 1, NIC: true, Machine: machineFormat,
	}
	if err := checkManifest(good, good); err != nil {
		t.Fatal(err)
	}
	near := good
	near.TSCkHz += 100
	if err := checkManifest(near, good); err != nil {
		t.Errorf("TSC frequency within the tolerance: got %v, want nil", err)
	}
	far := good
	far.TSCkHz *= 2
	var mismatch *vmm.MismatchError
	if err := checkManifest(far, good); !errors.As(err, &mismatch) || mismatch.Field != "tsc_khz" {
		t.Errorf("TSC frequency beyond the tolerance: got %v, want a mismatch of tsc_khz", err)
	}
}

func TestParseMemDelta(t *testing.T) {
	for _, c := range []struct {
		name, spans string
		ok          bool
	}{
		{"none", `[]`, true},
		{"two", `[[0,4096],[8192,16384]]`, true},
		{"not_pages", `[[0,100]]`, false},
		{"overlap", `[[0,8192],[4096,12288]]`, false},
		{"backwards", `[[8192,4096]]`, false},
		{"empty", `[[4096,4096]]`, false},
		{"negative", `[[-4096,4096]]`, false},
		{"beyond", `[[0,1048576000]]`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := parseMemDelta([]byte(`{"path":"/x","spans":`+c.spans+`}`), 1<<20)
			if (err == nil) != c.ok {
				t.Errorf("parseMemDelta() = %+v, %v; want success: %v", l, err, c.ok)
			}
		})
	}
}

func TestMemDeltaOfChangedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "memory")
	if err := os.WriteFile(path, make([]byte, 8192), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	l, err := newMemDelta(f, []span{{0, 4096}})
	if err != nil || l == nil {
		t.Fatalf("newMemDelta() = %v, %v; want a delta", l, err)
	}
	same, err := l.open(os.O_RDONLY)
	if err != nil || same == nil {
		t.Fatalf("open() = %v, %v; want the file", same, err)
	}
	if err := same.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 4096); err != nil {
		t.Fatal(err)
	}
	if other, err := l.open(os.O_RDONLY); other != nil || err != nil {
		t.Errorf("open() of a changed file = %v, %v; want nil, nil", other, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if gone, err := l.open(os.O_RDONLY); gone != nil || err != nil {
		t.Errorf("open() of a removed file = %v, %v; want nil, nil", gone, err)
	}
	if l, err := newMemDelta(f, nil); l != nil || err != nil {
		t.Errorf("newMemDelta() on a removed file = %v, %v; want nil, nil", l, err)
	}
	if l, err := newMemDelta(f, []span{{0, maxMemDelta + 4096}}); l != nil || err != nil {
		t.Errorf("newMemDelta() with too many pages = %v, %v; want nil, nil", l, err)
	}
}

func FuzzParseMemDelta(f *testing.F) {
	f.Add([]byte(`{"path":"/x","spans":[[0,4096]]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := parseMemDelta(data, 1<<20)
		if err == nil && total(l.spans()) > 1<<20 {
			t.Errorf("parseMemDelta(%q) has more pages than the memory", data)
		}
	})
}

// TestNoSpaceEvents feeds events of the monitor to a machine in the order of QEMU: the guest waits from the failed
// write until it continues, and no other event makes it wait.
func TestNoSpaceEvents(t *testing.T) {
	m := newMachine(newDriverForTest(), vmm.Spec{ID: "m", Dir: t.TempDir()}, vmm.Manifest{})
	stop := `{"device":"d0","operation":"write","action":"stop","nospace":true,"reason":"No space left on device"}`
	for _, step := range []struct {
		name, event, data string
		want              bool
	}{
		{"stop_of_the_host", "STOP", "{}", false},
		{"reported_error", "BLOCK_IO_ERROR", `{"device":"d0","operation":"read","action":"report"}`, false},
		{"malformed", "BLOCK_IO_ERROR", `["stop"]`, false},
		{"other_error", "BLOCK_IO_ERROR", `{"action":"stop","nospace":false}`, false},
		{"full", "BLOCK_IO_ERROR", stop, true},
		{"stop", "STOP", "{}", true},
		{"resume", "RESUME", "{}", false},
		{"full_again", "BLOCK_IO_ERROR", stop, true},
		{"and_again", "BLOCK_IO_ERROR", stop, true},
	} {
		m.event(qmp.Event{Name: step.event, Data: []byte(step.data)})
		if got := m.WaitsForSpace(); got != step.want {
			t.Errorf("%s: WaitsForSpace() = %v, want %v", step.name, got, step.want)
		}
	}
	select {
	case <-m.OutOfSpace():
	default:
		t.Error("OutOfSpace() has no value, want one")
	}
}

func FuzzBlockError(f *testing.F) {
	full := `{"device":"d0","action":"stop","nospace":true}`
	for _, seed := range []string{full, `{}`, `null`, `[]`, `{"action":1}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m := newMachine(newDriverForTest(), vmm.Spec{ID: "m", Dir: "/nonexistent"}, vmm.Manifest{})
		m.event(qmp.Event{Name: "BLOCK_IO_ERROR", Data: data})
		m.event(qmp.Event{Name: "RESUME"})
		if m.WaitsForSpace() {
			t.Error("the machine waits after RESUME")
		}
	})
}

// newDriverForTest returns a driver that can run nothing.
func newDriverForTest() *Driver {
	return &Driver{
		config:   Config{Log: slog.New(slog.DiscardHandler)},
		monitors: vmmproc.NewRegistry(time.Minute, func(string) error { return nil }),
	}
}

// TestSyscallPolicies checks which calls monitors may make where arguments decide, and additions to them.
func TestSyscallPolicies(t *testing.T) {
	tcg, stub, err := syscallPolicies(vmm.TCG, []string{"timerfd_create"})
	if err != nil {
		t.Fatal(err)
	}
	kvm, _, err := syscallPolicies(vmm.KVM, nil)
	if err != nil {
		t.Fatal(err)
	}
	const thread = unix.CLONE_VM | unix.CLONE_THREAD
	for _, c := range []struct {
		call           string
		args           [6]uint64
		tcg, kvm, stub bool
	}{
		{"read", [6]uint64{}, true, true, true},
		{"timerfd_create", [6]uint64{}, true, false, true},
		{"clone", [6]uint64{thread}, true, true, true},
		{"clone", [6]uint64{thread | unix.CLONE_NEWUSER}, false, false, false},
		{"clone", [6]uint64{unix.CLONE_VM | unix.CLONE_VFORK}, true, true, true},
		{"clone", [6]uint64{uint64(unix.SIGCHLD)}, false, false, false}, // fork
		{"ioctl", [6]uint64{0, unix.TUNSETOFFLOAD}, true, true, true},
		{"ioctl", [6]uint64{0, unix.TIOCSTI}, false, false, false},
		{"ioctl", [6]uint64{0, unix.TUNSETIFF}, false, false, false},
		{"ioctl", [6]uint64{0, 0xae80}, false, true, false}, // KVM_RUN
		{"prctl", [6]uint64{unix.PR_SET_NAME}, true, true, true},
		{"prctl", [6]uint64{unix.PR_SET_MM, unix.PR_SET_MM_MAP}, false, false, true},
		{"prctl", [6]uint64{unix.PR_SET_MM, unix.PR_SET_MM_EXE_FILE}, false, false, false},
		{"prctl", [6]uint64{unix.PR_SET_DUMPABLE, 1}, false, false, false},
		{"socket", [6]uint64{unix.AF_UNIX}, false, false, false},
		{"io_uring_setup", [6]uint64{}, false, false, false},
		{"ptrace", [6]uint64{}, false, false, false}, {"mount", [6]uint64{}, false, false, false},
		{"unshare", [6]uint64{}, false, false, false}, {"bpf", [6]uint64{}, false, false, false},
	} {
		for name, p := range map[string]struct {
			policy *seccomp.Policy
			want   bool
		}{"tcg": {tcg, c.tcg}, "kvm": {kvm, c.kvm}, "stub": {stub, c.stub}} {
			if got := p.policy.Allows(c.call, c.args); got != p.want {
				t.Errorf("%s: %s(%#x) allowed: %v, want %v", name, c.call, c.args[:2], got, p.want)
			}
		}
	}
	if _, _, err := syscallPolicies(vmm.TCG, []string{"fly"}); err == nil || !strings.Contains(err.Error(), `"fly"`) {
		t.Errorf("syscallPolicies with an unknown call = %v, want an error with its name", err)
	}
	for _, denied := range []string{"execveat", "fork", "vfork", "setns", "keyctl", "userfaultfd", "process_vm_readv"} {
		if tcg.Allows(denied, [6]uint64{}) {
			t.Errorf("%s is allowed", denied)
		}
	}
}
