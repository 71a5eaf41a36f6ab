package fctest

import (
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/vmm/firecracker/fcapi"
)

// name begins the name of the program; the release follows.
const name = "firecracker-v"

// Main is one of the programs, if this process was started as one, and ends the process then.
func Main(ctx context.Context) {
	jailer := false
	release, ok := strings.CutPrefix(filepath.Base(os.Args[0]), name)
	if !ok {
		if release, jailer = strings.CutPrefix(filepath.Base(os.Args[0]), jailerName); !jailer {
			return
		}
	}
	version, err := fcapi.ParseVersion(release)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exitArguments)
	}
	if jailer {
		os.Exit(runJailer(version, os.Args))
	}
	os.Exit(run(ctx, version, os.Args))
}

// Program is an installed fake.
type Program struct {
	Path   string
	Jailer string // of InstallJailer
}

// Install puts a fake of the given release ("1.15.1") into a new directory of the test, which is open to
// every user. Beside a name for the running program nothing is copied.
func Install(t testing.TB, release string) Program {
	t.Helper()
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o777), os.Chmod(filepath.Dir(dir), 0o711)); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := Program{Path: filepath.Join(dir, name+release)}
	if err := os.Link(self, p.Path); err != nil {
		// Another file system.
		data, err := os.ReadFile(self)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p.Path, data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// InstallJailer is Install with a jailer of the same release beside it. The program is a copy then: the jailer
// starts none that has two names, and brings nothing into the jail but the program. So the test is skipped if
// the program, which is the test's, needs shared libraries.
func InstallJailer(t testing.TB, release string) Program {
	t.Helper()
	p := Install(t, release)
	file, err := elf.Open(p.Path)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range file.Progs {
		if part.Type == elf.PT_INTERP {
			t.Skip("probe static: the test's program needs shared libraries; build it with CGO_ENABLED=0")
		}
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(p.Path)
	if err != nil {
		t.Fatal(err)
	}
	p.Jailer = p.beside(jailerName + release)
	if err := os.Rename(p.Path, p.Jailer); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.Path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	return p
}

// What a request that goes wrong does.
const (
	Refuse = "refuse" // it is answered with an error, and nothing is done
	Die    = "die"    // the program ends before it is done, as by a bad system call
	Cut    = "cut"    // it is done, and the program ends without an answer
	Hang   = "hang"   // it is never answered
)

// Fault makes one request of one machine go wrong.
type Fault struct {
	ID string `json:"id"` // of the machine; "": of any
	Op string `json:"op"` // "PUT /snapshot/load"
	Do string `json:"do"`
}

// Fail makes requests go wrong from now on; without faults none does.
func (p Program) Fail(t testing.TB, faults ...Fault) {
	t.Helper()
	data, err := json.Marshal(faults)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.beside(faultsName), data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// Request is one line of what the program was asked.
type Request struct {
	ID   string `json:"id"`
	Op   string `json:"op"` // "start" for the start of the program, whose Body is its command line
	Body string `json:"body,omitempty"`
}

// Requests answers all starts and requests so far, of all machines.
func (p Program) Requests(t testing.TB) []Request {
	t.Helper()
	data, err := os.ReadFile(p.beside(requestsName))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var all []Request
	for line := range strings.Lines(string(data)) {
		var r Request
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		all = append(all, r)
	}
	return all
}

func (p Program) beside(file string) string { return filepath.Join(filepath.Dir(p.Path), file) }
