package node

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/image/kernel"
	"github.com/pandastack/pandastack/internal/lib/config"
	"github.com/pandastack/pandastack/internal/lib/durable"
	"github.com/pandastack/pandastack/internal/vmm"
)

// newNode makes a node with the default settings and a data directory of its own; nothing runs.
func newNode(t *testing.T, env ...string) *node {
	t.Helper()
	l, err := config.Load(config.Sources{Env: append([]string{"PANDASTACK_DATA_DIR=" + t.TempDir()}, env...)})
	if err != nil {
		t.Fatal(err)
	}
	n := &node{fail: func(error) {}}
	n.Config, n.Version, n.Log = &l.Node, "test", slog.New(slog.NewTextHandler(io.Discard, nil))
	return n
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	first, err := lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = lock(dir)
	busy, ok := errors.AsType[*InUseError](err)
	if !ok || busy.PID != os.Getpid() || !strings.Contains(err.Error(), dir) ||
		!strings.Contains(err.Error(), "--data-dir") {
		t.Errorf("a second lock: %v, want an error with the directory, this process and a remedy", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := lock(dir)
	if err != nil {
		t.Fatalf("after the first has gone: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	if who := (&InUseError{Dir: "/d"}).Error(); !strings.HasPrefix(who, "another node uses") {
		t.Errorf("an unknown holder: %q", who)
	}
}

func TestSecret(t *testing.T) {
	n := newNode(t)
	made, err := n.secret()
	if err != nil || len(made) != secretBytes || bytes.Equal(made, make([]byte, secretBytes)) {
		t.Fatalf("%d bytes, %v", len(made), err)
	}
	again, err := n.secret()
	if err != nil || !bytes.Equal(made, again) {
		t.Errorf("the second time it is another one (%v)", err)
	}
	if info, err := os.Stat(n.path("secret")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("its file: %v, %v", info, err)
	}
	if bytes.Equal(derive(made, "agent"), derive(made, "preview")) || len(derive(made, "agent")) != 32 {
		t.Error("two purposes have one key")
	}
	if err := os.WriteFile(n.path("secret"), made[:7], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := n.secret(); err == nil || !strings.Contains(err.Error(), "7 bytes") ||
		!strings.Contains(err.Error(), "remove it") {
		t.Errorf("a cut file: %v", err)
	}
}

// TestAccess keeps the key of the first start for the command line.
func TestAccess(t *testing.T) {
	n := newNode(t)
	read := func() config.NodeAccess {
		t.Helper()
		var a config.NodeAccess
		if err := durable.ReadJSON(config.NodeFile(n.Config.DataDir), &a); err != nil {
			t.Fatal(err)
		}
		return a
	}
	if err := n.leaveAccess(Ready{URL: "http://127.0.0.1:1", FirstKey: "pds_a"}); err != nil {
		t.Fatal(err)
	}
	if got := read(); got.APIKey != "pds_a" || got.APIURL != "http://127.0.0.1:1" {
		t.Errorf("after the first start %+v", got)
	}
	if err := n.leaveAccess(Ready{URL: "http://127.0.0.1:2", TLSURL: "https://localhost:3"}); err != nil {
		t.Fatal(err)
	}
	if got := read(); got.APIKey != "pds_a" || got.APIURL != "http://127.0.0.1:2" ||
		got.TLSURL != "https://localhost:3" {
		t.Errorf("after the second %+v", got)
	}
	if info, err := os.Stat(config.NodeFile(n.Config.DataDir)); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("others may read it: %v, %v", info, err)
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
		t.Errorf("a port that is taken: %v", err)
	}
	if url := n.url(l); url != "http://"+l.Addr().String() {
		t.Errorf("address %s", url)
	}
	if err := n.stop(t.Context()); err != nil {
		t.Errorf("stop: %v", err)
	}
	if again, err := net.Listen("tcp", l.Addr().String()); err != nil {
		t.Errorf("the port is not free again: %v", err)
	} else if err := again.Close(); err != nil {
		t.Error(err)
	}
	if none, err := n.listenTLS(t.Context()); err != nil || none != nil {
		t.Errorf("TLS that was not asked for: %v, %v", none, err)
	}
}

func TestNames(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	told, all := newNode(t).names(l)
	if told != "localhost" || !slices.Contains(all, "*.localhost") || slices.Contains(all, "*.example.com") {
		t.Errorf("%s, %v", told, all)
	}
	told, all = newNode(t, "PANDASTACK_PUBLIC_URL=https://panda.example.com:8443").names(l)
	if told != "panda.example.com" || !slices.Contains(all, "*.panda.example.com") || !slices.IsSorted(all) {
		t.Errorf("%s, %v", told, all)
	}
}

// TestComponentFails lets a component end before it is asked to: the node ends with its name and reason, and what
// was started ends in reverse order.
func TestComponentFails(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want string
	}{{"error", errors.New("broken"), "second: broken"}, {"quiet", nil, "second: ended"}} {
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
			n.back.Push("middle", func(context.Context) error { order = append(order, "middle undone"); return nil })
			n.run(ctx, "second", func(context.Context) error { return tt.err })
			<-ctx.Done()
			if got := context.Cause(ctx); got == nil || got.Error() != tt.want {
				t.Errorf("the node ends for %v, want %s", got, tt.want)
			}
			if err := n.stop(ctx); err != nil {
				t.Errorf("stop: %v", err)
			}
			if want := []string{"middle undone", "first ended"}; !slices.Equal(order, want) {
				t.Errorf("ended in the order %v, want %v", order, want)
			}
		})
	}
}

// TestStopIsBounded has a component that does not end: the stop names it when its time is over.
func TestStopIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, "PANDASTACK_LIFECYCLE_SHUTDOWN_TIMEOUT=7s")
		release := make(chan struct{})
		n.run(t.Context(), "stubborn", func(context.Context) error { <-release; return nil })
		began := time.Now()
		err := n.stop(t.Context())
		if err == nil || !strings.Contains(err.Error(), "stubborn does not end") || time.Since(began) != 7*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		close(release)
	})
}

// TestStartFails starts nodes that cannot be: each says why, and what was taken is free again.
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
			ready := func(Ready) { t.Error("it is ready") }
			err := Up(t.Context(), Options{Config: n.Config, Version: "test", Log: n.Log, Ready: ready})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

func TestKernelIsFoundOnce(t *testing.T) {
	calls := 0
	find := once(func(context.Context) (kernel.Boot, error) {
		if calls++; calls == 1 {
			return kernel.Boot{}, errors.New("not yet")
		}
		return kernel.Boot{Digest: "d"}, nil
	})
	if _, err := find(t.Context()); err == nil {
		t.Error("a failure was hidden")
	}
	for range 3 {
		if b, err := find(t.Context()); err != nil || b.Digest != "d" {
			t.Errorf("%+v, %v", b, err)
		}
	}
	if calls != 2 {
		t.Errorf("looked %d times, want twice: a failure is not remembered, a success is", calls)
	}
	n := newNode(t)
	if _, err := n.boot(t.Context()); err == nil || !strings.Contains(err.Error(), "pandastack setup") {
		t.Errorf("without a kernel: %v, want a remedy", err)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	total, available, err := newNode(t, "PANDASTACK_CAPACITY_MEMORY_MIB=64").memory()()
	if err != nil || total != 64<<20 || available > 64<<20 {
		t.Errorf("%d of %d, %v", available, total, err)
	}
	if total, _, err := newNode(t).memory()(); err != nil || total <= 64<<20 {
		t.Errorf("without a bound %d, %v", total, err)
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
		t.Errorf("%v", size)
	}
	names, err := n.aliases()
	if err != nil || names["mine"] != "mini" {
		t.Errorf("%v, %v", names, err)
	}
	if _, err := newNode(t, "PANDASTACK_TEMPLATES_PARAMS=base.nothing=1").recipes(); err == nil ||
		!strings.Contains(err.Error(), "nothing") {
		t.Errorf("a parameter that no recipe has: %v", err)
	}
}

func TestObjects(t *testing.T) {
	if o, err := newNode(t).objects(t.Context()); o != nil || err != nil {
		t.Errorf("without a store: %v, %v", o, err)
	}
	n := newNode(t, "PANDASTACK_OBJECT_STORE_URL=file://"+filepath.Join(t.TempDir(), "store"))
	o, err := n.objects(t.Context())
	if err != nil || o == nil || o.Chunks == nil || o.Cache == nil {
		t.Errorf("%+v, %v", o, err)
	}
	if err := n.stop(t.Context()); err != nil {
		t.Error(err)
	}
}

// asDriver is a driver of which nothing but its abilities is asked.
type asDriver struct {
	vmm.Driver
	can vmm.Capabilities
}

func (d asDriver) Capabilities() vmm.Capabilities { return d.can }

// TestPlatform: whatever makes images that others refuse makes another platform, so that templates are baked for it.
func TestPlatform(t *testing.T) {
	seen := map[string]string{}
	for what, can := range map[string]vmm.Capabilities{
		"first": {Name: "q", Version: "1", Accelerator: "tcg", Format: "a"}, "another monitor": {Name: "r", Version: "1", Accelerator: "tcg", Format: "a"},
		"another version": {Name: "q", Version: "2", Accelerator: "tcg", Format: "a"}, "another accelerator": {Name: "q", Version: "1", Accelerator: "kvm", Format: "a"},
		"other hardware": {Name: "q", Version: "1", Accelerator: "tcg", Format: "b"},
	} {
		for _, digest := range []string{"k1", "k2"} {
			find := func(context.Context) (kernel.Boot, error) { return kernel.Boot{Digest: digest}, nil }
			name, err := newNode(t).platform(asDriver{can: can}, find)(t.Context())
			if other, ok := seen[name]; ok || err != nil {
				t.Errorf("%s with kernel %s is %q, as %s is (%v)", what, digest, name, other, err)
			}
			seen[name] = what
		}
	}
}

// Limits are told in units for people and held in bytes.
func TestLimits(t *testing.T) {
	n := newNode(
		t,
		"PANDASTACK_LIMITS_DISK_MIB=50",
		"PANDASTACK_LIMITS_DISK_OPS=700",
		"PANDASTACK_LIMITS_NETWORK_IN_MBIT=80",
	)
	if got := n.limits(); got != (hostapi.Limits{DiskMiB: 50, DiskOps: 700, NetworkInMbit: 80}) {
		t.Errorf("disks are held to %+v", got)
	}
	if got := machine.LineBytes(n.limits().NetworkInMbit); got != 10_000_000 {
		t.Errorf("the network is held to %d bytes a second", got)
	}
	if got := newNode(t).limits(); got != (hostapi.Limits{}) {
		t.Errorf("without a setting disks are held to %+v", got)
	}
}
