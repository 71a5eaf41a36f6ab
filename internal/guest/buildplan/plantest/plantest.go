// Package plantest has a place for tests of builds: temporary directories in place of a machine, with tools that a
// template would have.
package plantest

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/railwayapp/railpack/core/mise"
	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/guest/buildplan"
)

// stubMise responds to railpack as the program does from what a template has. To start the program of the tests for
// each question takes longer than everything else.
var stubMise = `#!/bin/sh
case "$2" in
--version) echo ` + mise.Version + ` ;;
latest)
	tool=${3%@*} version=${3#*@}
	[ $version != latest ] && [ $tool != go ] || version=
	for found in "$(dirname "$0")/installs/$tool/$version"*; do
		[ -d "$found" ] && basename "$found" && exit
	done
	[ $tool = caddy ] && echo 2 ;;
ls-remote) exit 1 ;;
*) echo {} ;;
esac
`

// Place returns the place of one machine below dir. Call Lock first: railpack looks for mise at one path.
func Place(t *testing.T, dir string) buildplan.Place {
	t.Helper()
	program := filepath.Join(dir, "pandastack-build")
	p := buildplan.Place{
		Dir: filepath.Join(dir, "work"), App: filepath.Join(dir, "app"), Root: filepath.Join(dir, "root"),
		Installed: filepath.Join(dir, "installs"), Mise: filepath.Join(dir, "mise"), Tools: filepath.Join(dir, "tools"),
		Planner: buildplan.Machine.Planner, Program: program,
	}
	if err := os.WriteFile(program, []byte(stubMise), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tool := range []string{
		"node/22.23.3", "python/3.11.2", "go/1.26.8", "bun/1.4.5", "pnpm/9.15.4", "uv/0.9.1", "yarn/1.22.22",
		"rust/1.89.0", "deno/2.5.0",
	} {
		if err := os.MkdirAll(filepath.Join(p.Installed, tool, "bin"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// Lock makes this process the only one on this host that plans, until it ends.
func Lock(t *testing.T) {
	t.Helper()
	if err := lock(); err != nil {
		t.Fatal(err)
	}
}

var lock = sync.OnceValue(func() error {
	fd, err := unix.Open(filepath.Join(os.TempDir(), "pandastack-plantest.lock"),
		unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC,
		0o600)
	if err != nil {
		return err
	}
	return unix.Flock(fd, unix.LOCK_EX) // which the end of the process unlocks
})
