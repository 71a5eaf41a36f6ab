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

// name is the prefix of the program's name; the release follows.
const name = "firecracker-v"

// Main runs one of the fake programs and exits if this process was started as one.
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
	Jailer string // set by InstallJailer
}

// Install puts a fake of the given release (such as "1.15.1") into a new directory of the test.
// Every user may access the directory. The program is a hard link if possible.
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
		// The directory is on another file system.
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

// InstallJailer is like Install and adds a jailer of the same release. The jail contains no other files, so the
// test is skipped if the test binary needs shared libraries.
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

// How a request fails.
const (
	Refuse = "refuse" // error response without any effect
	Die    = "die"    // the program exits before the request, as after a forbidden system call
	Cut    = "cut"    // the request is done, and the program exits without responding
	Hang   = "hang"   // the program never responds
)

// Fault makes one request of one machine fail.
type Fault struct {
	ID string `json:"id"` // of the machine; "": any
	Op string `json:"op"` // such as "PUT /snapshot/load"
	Do string `json:"do"`
}

// Fail makes requests fail from now on. Without faults, none fails.
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

// Request is one entry of the request log.
type Request struct {
	ID   string `json:"id"`
	Op   string `json:"op"` // "start" for the start of the program, with the command line as Body
	Body string `json:"body,omitempty"`
}

// Requests returns all starts and requests so far, of all machines.
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
