package node

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/image/kernel"
	"github.com/pandastack/pandastack/internal/lib/config"
	"github.com/pandastack/pandastack/internal/lib/durable"
	"github.com/pandastack/pandastack/internal/os/disk"
	"github.com/pandastack/pandastack/internal/os/jail"
	"github.com/pandastack/pandastack/internal/vmm"
)

// newNode returns a node with default settings, changed by env, and its own data directory. Nothing is started.
func newNode(t *testing.T, env ...string) *node {
	t.Helper()
	env = append([]string{"PANDASTACK_DATA_DIR=" + t.TempDir(), "PANDASTACK_DATABASES_LISTEN="}, env...)
	l, err := config.Load(config.Sources{Env: env})
	if err != nil {
		t.Fatal(err)
	}
	n := &node{fail: func(error) {}}
	n.Config, n.Version, n.Log = &l.Node, "test", slog.New(slog.NewTextHandler(io.Discard, nil))
	return n
}

// TestRefusedCallsAreLogged checks that refused system calls are logged with their names, and that a monitor cannot
// fill the log with them.
func TestRefusedCallsAreLogged(t *testing.T) {
	n := newNode(t)
	var out bytes.Buffer
	n.Log = slog.New(slog.NewTextHandler(&out, nil))
	synctest.Test(t, func(*testing.T) {
		log := n.refusedCallLogger()
		for range 1000 {
			log(jail.RefusedCall{Cgroup: "m1", PID: 7, Name: "bpf", Args: [6]uint64{1, 255}})
		}
		<-time.After(time.Minute) // passes at once here
		log(jail.RefusedCall{Cgroup: "m1", PID: 7, Name: "mount", Continued: true})
	})
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 101 {
		t.Errorf("1001 calls made %d lines, want 101", len(lines))
	}
	for line, want := range map[string]string{
		lines[0]: `msg="refused a system call of a monitor" call=bpf args="[0x1 0xff 0x0 0x0 0x0 0x0]" ` +
			`machine=m1`,
		lines[len(lines)-1]: `msg="recorded a system call of a monitor that is not allowed" call=mount`,
	} {
		if !strings.Contains(line, want) || !strings.Contains(line, "vmm.seccomp_allow") {
			t.Errorf("got line %s, want %s", line, want)
		}
	}
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	first, err := lockDataDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = lockDataDir(dir)
	busy, ok := errors.AsType[*InUseError](err)
	if !ok || busy.PID != os.Getpid() || !strings.Contains(err.Error(), dir) ||
		!strings.Contains(err.Error(), "--data-dir") {
		t.Errorf("second lock: error %v, want an InUseError with the directory, this process and a remedy", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := lockDataDir(dir)
	if err != nil {
		t.Fatalf("lock after the first was closed: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	if got := (&InUseError{Dir: "/d"}).Error(); !strings.HasPrefix(got, "another node uses") {
		t.Errorf("error with an unknown process = %q, want it to begin with \"another node uses\"", got)
	}
}

func TestSecret(t *testing.T) {
	n := newNode(t)
	made, err := n.secret()
	if err != nil || len(made) != secretBytes || bytes.Equal(made, make([]byte, secretBytes)) {
		t.Fatalf("secret has %d bytes (%v), want %d random bytes", len(made), err, secretBytes)
	}
	again, err := n.secret()
	if err != nil || !bytes.Equal(made, again) {
		t.Errorf("the second call returned another secret or an error (%v), want the same secret", err)
	}
	if info, err := os.Stat(n.path("secret")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("file of the secret: %v, %v, want mode 0600", info, err)
	}
	if bytes.Equal(derive(made, "agent"), derive(made, "preview")) || len(derive(made, "agent")) != 32 {
		t.Error("keys of two purposes are equal or not 32 bytes long")
	}
	if err := os.WriteFile(n.path("secret"), made[:7], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := n.secret(); err == nil || !strings.Contains(err.Error(), "7 bytes") ||
		!strings.Contains(err.Error(), "restore it") {
		t.Errorf("truncated file: error %v, want its length and a remedy", err)
	}
}

// TestAccessFileKeepsFirstKey checks that a later start keeps the API key of the first one in the access file.
func TestAccessFileKeepsFirstKey(t *testing.T) {
	n := newNode(t)
	read := func() config.NodeAccess {
		t.Helper()
		var a config.NodeAccess
		if err := durable.ReadJSON(config.NodeFile(n.Config.DataDir), &a); err != nil {
			t.Fatal(err)
		}
		return a
	}
	if err := n.writeAccessFile(Ready{URL: "http://127.0.0.1:1", FirstKey: "pds_a"}); err != nil {
		t.Fatal(err)
	}
	if got := read(); got.APIKey != "pds_a" || got.APIURL != "http://127.0.0.1:1" {
		t.Errorf("access file after the first start = %+v, want the key and URL of that start", got)
	}
	if err := n.writeAccessFile(Ready{URL: "http://127.0.0.1:2", TLSURL: "https://localhost:3"}); err != nil {
		t.Fatal(err)
	}
	if got := read(); got.APIKey != "pds_a" || got.APIURL != "http://127.0.0.1:2" ||
		got.TLSURL != "https://localhost:3" {
		t.Errorf("access file after the second start = %+v, want the first key and the new URLs", got)
	}
	if info, err := os.Stat(config.NodeFile(n.Config.DataDir)); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("access file: %v, %v, want no permissions for group and others", info, err)
	}
}

func TestListen(t *testing.T) {
	n := newNode(t, "PANDASTACK_LISTEN=127.0.0.1:0")
	l, err := n.listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	taken := newNode(t, "PANDASTACK_LISTEN="+l.Addr().String())
	if _, err := taken.listen(t.Context()); err == nil ||
		!strings.Contains(err.Error(), l.Addr().String()+" is in use") ||
		!strings.Contains(err.Error(), "--listen") {
		t.Errorf("port in use: error %v, want the address and a remedy", err)
	}
	if url := n.url(l); url != "http://"+l.Addr().String() {
		t.Errorf("url = %s, want http://%s", url, l.Addr())
	}
	if err := n.stop(t.Context()); err != nil {
		t.Errorf("stop: %v", err)
	}
	if again, err := net.Listen("tcp", l.Addr().String()); err != nil {
		t.Errorf("the port is still in use after stop: %v", err)
	} else if err := again.Close(); err != nil {
		t.Error(err)
	}
	if none, err := n.listenTLS(t.Context()); err != nil || none != nil {
		t.Errorf("listenTLS without a configured address = %v, %v, want nil, nil", none, err)
	}
}

func TestCertificateNames(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	name, all := newNode(t).certificateNames(l)
	if name != "localhost" || !slices.Contains(all, "*.localhost") || slices.Contains(all, "*.example.com") ||
		!slices.Contains(all, "*.app.localhost") {
		t.Errorf("certificateNames() = %s, %v, want localhost with its wildcard", name, all)
	}
	name, all = newNode(t, "PANDASTACK_PUBLIC_URL=https://panda.example.com:8443").certificateNames(l)
	if name != "panda.example.com" || !slices.Contains(all, "*.panda.example.com") || !slices.IsSorted(all) {
		t.Errorf("certificateNames() = %s, %v, want panda.example.com with its wildcard, sorted", name, all)
	}
	n := newNode(t,
		"PANDASTACK_PUBLIC_URL=https://panda.example.com:8443", "PANDASTACK_PREVIEW_DOMAIN=guests.example.net")
	if name, all = n.certificateNames(l); name != "panda.example.com" || !slices.Contains(all, "*.guests.example.net") {
		t.Errorf("certificateNames() = %s, %v, want the wildcard of previews too", name, all)
	}
	if got := n.sandboxDomain(); got != "guests.example.net:8443" {
		t.Errorf("sandboxDomain() = %s, want the domain of previews with the port of the public URL", got)
	}
}

// TestComponentFails runs a component that returns before the node stops. The node must fail with the name and error
// of that component, and stop the others in reverse order.
func TestComponentFails(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want string
	}{{"error", errors.New("broken"), "second: broken"}, {"no-error", nil, "second: stopped unexpectedly"}} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			ctx, fail := context.WithCancelCause(t.Context())
			n.fail = fail
			var order []string
			n.run(ctx, "first", func(ctx context.Context) error {
				<-ctx.Done()
				order = append(order, "first ended")
				return ctx.Err()
			})
			n.undo.Push("middle", func(context.Context) error { order = append(order, "middle undone"); return nil })
			n.run(ctx, "second", func(context.Context) error { return tt.err })
			<-ctx.Done()
			if got := context.Cause(ctx); got == nil || got.Error() != tt.want {
				t.Errorf("the node stopped with %v, want %s", got, tt.want)
			}
			if err := n.stop(ctx); err != nil {
				t.Errorf("stop: %v", err)
			}
			if want := []string{"middle undone", "first ended"}; !slices.Equal(order, want) {
				t.Errorf("cleanups ran in the order %v, want %v", order, want)
			}
		})
	}
}

// TestStopIsBounded stops a node with a component that does not stop: after the shutdown timeout, stop must fail and
// name it.
func TestStopIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, "PANDASTACK_LIFECYCLE_SHUTDOWN_TIMEOUT=7s")
		release := make(chan struct{})
		n.run(t.Context(), "stubborn", func(context.Context) error { <-release; return nil })
		began := time.Now()
		err := n.stop(t.Context())
		if err == nil || !strings.Contains(err.Error(), "stubborn did not stop") || time.Since(began) != 7*time.Second {
			t.Errorf("stop returned after %v with %v, want an error that names the component after 7s",
				time.Since(began), err)
		}
		close(release)
	})
}

// TestStartFails starts nodes with invalid settings: Up must return the reason and never call Ready.
func TestStartFails(t *testing.T) {
	for _, tt := range []struct {
		name string
		env  string
		want string
	}{
		{"no-data", "PANDASTACK_DATA_DIR=/proc/nowhere", "data directory"},
		{"port", "PANDASTACK_LISTEN=192.0.2.1:1", "listen on 192.0.2.1:1"},
		{"tls-port", "PANDASTACK_TLS_LISTEN=192.0.2.1:2", "listen on 192.0.2.1:2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t, "PANDASTACK_LISTEN=127.0.0.1:0", tt.env)
			ready := func(Ready) { t.Error("Ready was called") }
			err := Up(t.Context(), Options{Config: n.Config, Version: "test", Log: n.Log, Ready: ready})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Up: error %v, want it to contain %q", err, tt.want)
			}
		})
	}
}

func TestDataDirError(t *testing.T) {
	denied := &fs.PathError{Op: "mkdir", Path: "/x", Err: syscall.EACCES}
	for _, tt := range []struct {
		err  error
		uid  int
		want string
	}{
		{denied, 1000, "starting a node requires root; use sudo: mkdir /x: permission denied"},
		{denied, 0, "data directory: mkdir /x: permission denied"},
		{&disk.NoReflinkError{Dir: "/x", Type: "ext4"}, 0, "data directory: /x is on ext4, which cannot clone files " +
			"(reflink); run `pandastack setup` to put an XFS image there, or choose a directory on XFS or btrfs"},
	} {
		if got := dataDirError(tt.err, tt.uid).Error(); got != tt.want {
			t.Errorf("user %d: got %q, want %q", tt.uid, got, tt.want)
		}
	}
}

// TestMissingKernel checks that the error names the remedy, once.
func TestMissingKernel(t *testing.T) {
	_, err := newNode(t).findKernel(t.Context())
	if err == nil || strings.Count(err.Error(), "pandastack setup") != 1 {
		t.Errorf("findKernel without a kernel: %v, want the command that installs one, once", err)
	}
}

func TestKernelIsFoundOnce(t *testing.T) {
	calls := 0
	find := rememberSuccess(func(context.Context) (kernel.Boot, error) {
		if calls++; calls == 1 {
			return kernel.Boot{}, errors.New("not yet")
		}
		return kernel.Boot{Digest: "d"}, nil
	})
	if _, err := find(t.Context()); err == nil {
		t.Error("first call succeeded, want the error of find")
	}
	for range 3 {
		if b, err := find(t.Context()); err != nil || b.Digest != "d" {
			t.Errorf("find() = %+v, %v, want digest d", b, err)
		}
	}
	if calls != 2 {
		t.Errorf("find was called %d times, want 2: only a success is remembered", calls)
	}
	n := newNode(t)
	if _, err := n.findKernel(t.Context()); err == nil || !strings.Contains(err.Error(), "pandastack setup") {
		t.Errorf("findKernel without a kernel: error %v, want a remedy", err)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	total, available, err := newNode(t, "PANDASTACK_CAPACITY_MEMORY_MIB=64").hostMemory()()
	if err != nil || total != 64<<20 || available > 64<<20 {
		t.Errorf("hostMemory() = %d, %d, %v, want a total of 64 MiB and at most that available", total, available, err)
	}
	if total, _, err := newNode(t).hostMemory()(); err != nil || total <= 64<<20 {
		t.Errorf("total without a limit = %d, %v, want the memory of this host", total, err)
	}
}

func TestRecipes(t *testing.T) {
	n := newNode(t, "PANDASTACK_TEMPLATES_ALIASES=mine=mini")
	all, err := n.recipes()
	if err != nil {
		t.Fatal(err)
	}
	size := map[string]int{}
	for _, r := range all {
		size[string(r.Name)] = r.MemoryMiB
	}
	if size["mini"] != 256 || size["mini.1g"] != 1024 || size["base"] == 0 {
		t.Errorf("memory of templates in MiB = %v, want mini 256, mini.1g 1024, and base present", size)
	}
	names, err := n.aliases()
	if err != nil || names["mine"] != "mini" {
		t.Errorf("aliases() = %v, %v, want mine for mini", names, err)
	}
	if _, err := newNode(t, "PANDASTACK_TEMPLATES_PARAMS=base.nothing=1").recipes(); err == nil ||
		!strings.Contains(err.Error(), "nothing") {
		t.Errorf("unknown parameter: error %v, want it to name the parameter", err)
	}
}

func TestObjects(t *testing.T) {
	if o, err := newNode(t).objects(t.Context()); o != nil || err != nil {
		t.Errorf("objects() without a URL = %v, %v, want nil, nil", o, err)
	}
	n := newNode(t, "PANDASTACK_OBJECT_STORE_URL=file://"+filepath.Join(t.TempDir(), "store"))
	o, err := n.objects(t.Context())
	if err != nil || o == nil || o.Chunks == nil || o.Cache == nil {
		t.Errorf("objects() = %+v, %v, want a chunk store and a cache", o, err)
	}
	if err := n.stop(t.Context()); err != nil {
		t.Error(err)
	}
}

// stubDriver is a driver that has capabilities only.
type stubDriver struct {
	vmm.Driver
	capabilities vmm.Capabilities
}

func (d stubDriver) Capabilities() vmm.Capabilities { return d.capabilities }

// TestPlatform checks that everything that makes snapshots incompatible changes the name of the platform, so that
// templates are baked for it.
func TestPlatform(t *testing.T) {
	seen := map[string]string{}
	for what, capabilities := range map[string]vmm.Capabilities{
		"first":               {Name: "q", Version: "1", Accelerator: "tcg", Format: "a"},
		"another monitor":     {Name: "r", Version: "1", Accelerator: "tcg", Format: "a"},
		"another version":     {Name: "q", Version: "2", Accelerator: "tcg", Format: "a"},
		"another accelerator": {Name: "q", Version: "1", Accelerator: "kvm", Format: "a"},
		"other hardware":      {Name: "q", Version: "1", Accelerator: "tcg", Format: "b"},
	} {
		for _, digest := range []string{"k1", "k2"} {
			find := func(context.Context) (kernel.Boot, error) { return kernel.Boot{Digest: digest}, nil }
			name, err := newNode(t).platform(stubDriver{capabilities: capabilities}, find)(t.Context())
			if other, ok := seen[name]; ok || err != nil {
				t.Errorf(
					"platform of %s with kernel %s = %q (%v), want it to differ from %s",
					what,
					digest,
					name,
					err,
					other,
				)
			}
			seen[name] = what
		}
	}
}

// TestLimits checks the machine limits for configured ones, which use MiB and Mbit per second.
func TestLimits(t *testing.T) {
	n := newNode(
		t,
		"PANDASTACK_LIMITS_DISK_MIB_PER_S=50",
		"PANDASTACK_LIMITS_DISK_IOPS=700",
		"PANDASTACK_LIMITS_NETWORK_IN_MBIT=80",
	)
	defaults := hostapi.Limits{Connections: 4096, NewConnections: 200}
	want := defaults
	want.DiskMiB, want.DiskOps, want.NetworkInMbit = 50, 700, 80
	if got := n.limits(); got != want {
		t.Errorf("limits() = %+v, want %+v", got, want)
	}
	if got := machine.LineBytes(n.limits().NetworkInMbit); got != 10_000_000 {
		t.Errorf("network limit = %d bytes a second, want 10000000", got)
	}
	if got := newNode(t).limits(); got != defaults {
		t.Errorf("limits() without settings = %+v, want %+v", got, defaults)
	}
}
