// Package vmlab prepares tests with real guests: a data directory with reflinks, a kernel with the guest agent, and
// a small root disk.
//
// It builds the guest agent and the root disk once and keeps them below the data directory that "make prepare"
// makes. Several test programs may use it at once.
package vmlab

import (
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/image/imagebuild"
	"github.com/pandastack/pandastack/internal/image/kernel"
	"github.com/pandastack/pandastack/internal/image/recipe"

	"github.com/pandastack/pandastack/internal/host/probe"
	"github.com/pandastack/pandastack/internal/host/probe/probetest"
)

var data = flag.String(
	"vmlab.data",
	"",
	"data directory with reflinks and a guest kernel (default: .cache/data of the repository)",
)

// Lab is the result of Open.
type Lab struct {
	Data  string // data directory
	Dir   string // empty directory of this test program in it, removed at the end
	Agent string // program of the guest agent
	Boot  kernel.Boot
	Root  string // ext4 image of template mini
}

// Open prepares a lab for t. It skips t if "make prepare" was never run.
func Open(t testing.TB) Lab {
	t.Helper()
	l := Lab{Data: *data}
	repository := repository(t)
	if l.Data == "" {
		l.Data = filepath.Join(repository, ".cache", "data")
	}
	probetest.Need(t, probe.Config{DataDir: l.Data}, probe.Root, probe.Reflink, probe.QEMU, probe.Kernel, probe.Tools)
	cache := filepath.Join(l.Data, "vmlab")
	must(t, os.MkdirAll(cache, 0o755))
	unlock := lock(t, filepath.Join(cache, "lock"))
	defer unlock()
	l.Agent = filepath.Join(cache, "pandastack-guest")
	build(t, repository, l.Agent)
	var err error
	l.Boot, err = kernel.Find(t.Context(), filepath.Join(l.Data, "kernel"), l.Agent)
	must(t, err)
	l.Root = root(t, cache)
	l.Dir, err = os.MkdirTemp(l.Data, "vmlab-")
	must(t, err)
	must(t, os.Chmod(l.Dir, 0o711))
	t.Cleanup(func() { must(t, os.RemoveAll(l.Dir)) })
	return l
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// repository returns the directory of go.mod.
func repository(t testing.TB) string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOMOD").Output()
	must(t, err)
	return filepath.Dir(strings.TrimSpace(string(out)))
}

// lock keeps other test programs out until the result is called.
func lock(t testing.TB, path string) func() {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	must(t, err)
	must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	return func() { must(t, f.Close()) }
}

// build compiles the guest agent to path.
func build(t testing.TB, repository, path string) {
	t.Helper()
	cmd := exec.Command(
		"go",
		"build",
		"-trimpath",
		"-buildvcs=false",
		"-ldflags",
		"-s -w",
		"-o",
		path+".new",
		"./cmd/pandastack-guest",
	)
	cmd.Dir = repository
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the guest agent: %v\n%s", err, out)
	}
	must(t, os.Rename(path+".new", path))
}

// root builds the disk of template mini once.
func root(t testing.TB, cache string) string {
	t.Helper()
	all, err := recipe.Builtin(recipe.Options{})
	must(t, err)
	mini, ok := all["mini"]
	if !ok {
		t.Fatal("no built-in template mini")
	}
	path := filepath.Join(cache, "mini-"+mini.Digest()[:16]+".img")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	must(t, errors.Join(os.RemoveAll(path+".new"), os.RemoveAll(filepath.Join(cache, "work"))))
	err = imagebuild.Build(context.WithoutCancel(t.Context()), imagebuild.Options{
		Recipe: mini, Work: filepath.Join(cache, "work"), Cache: filepath.Join(cache, "packages"),
		Image: path + ".new", Log: func(line string) { t.Log(line) },
	})
	must(t, err)
	must(t, os.Rename(path+".new", path))
	return path
}
