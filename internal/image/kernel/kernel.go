// Package kernel provides the kernel of a guest and an initramfs that carries the guest agent.
//
// It owns the directory <data>/kernel. There are two kernels. The distribution's cloud kernel comes from the package
// mirror unchanged, with the modules a machine needs; nothing is compiled and nothing is installed on the host. The
// tuned kernel is compiled from the distribution's source with the fragment tuned.config; it has no modules, boots
// faster, and is preferred if it exists.
//
//	<dir>/distribution/{kernel.json, vmlinuz, modules/*.ko}
//	<dir>/tuned/{kernel.json, vmlinux}
//	<dir>/initramfs-<digest>.cpio    made by Find for one kernel and one guest agent
//
// The package does not know sandboxes or templates, and starts no guest. Find, Install and Build may run in several
// processes at once: every result appears complete, by a rename.
package kernel

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/pandastack/pandastack/internal/lib/durable"
)

// Boot holds all that a driver needs to cold boot a guest.
type Boot struct {
	Kernel    string // path: an ELF vmlinux (tuned) or a bzImage (distribution)
	Initramfs string // path of a cpio archive with the guest agent as /init
	Cmdline   string // appended to the driver's own command line
	ACPI      bool   // the kernel finds its devices through ACPI and not on the command line
	Version   string // of the kernel, for display: "6.12.95+deb12-cloud-amd64"
	Digest    string // changes if kernel, modules, guest agent or command line do; hexadecimal
}

// NotFoundError reports that Dir contains no kernel.
type NotFoundError struct{ Dir string }

// Error implements error.
func (e *NotFoundError) Error() string {
	return fmt.Sprintf(
		"no guest kernel in %s; run `pandastack setup` to install the distribution's, "+
			"or `make kernel` to build the tuned one",
		e.Dir,
	)
}

// DamagedError reports that a file differs from the installed one.
type DamagedError struct{ Path, Why string }

// Error implements error.
func (e *DamagedError) Error() string {
	return fmt.Sprintf(
		"guest kernel file %s is damaged (%s); run `pandastack setup` to install it again",
		e.Path,
		e.Why,
	)
}

// AgentError reports that the guest agent's program cannot be used.
type AgentError struct {
	Path string
	Err  error
}

// Error implements error.
func (e *AgentError) Error() string {
	return fmt.Sprintf(
		"guest agent %s cannot be used: %v; it is built beside pandastack (`make build`), or set guest_agent to "+
			"its path",
		e.Path,
		e.Err,
	)
}

// Unwrap returns the cause.
func (e *AgentError) Unwrap() error { return e.Err }

// Kinds of kernel, which are also the names of their directories.
const (
	Distribution = "distribution" // the distribution's cloud kernel, unchanged
	Tuned        = "tuned"        // compiled with tuned.config
)

const metaFile = "kernel.json"

// cmdline is the command line of both kernels, in addition to the driver's. The isolation of a machine is the
// monitor, not the guest kernel: mitigations inside it protect the guest only from itself, and slow down translated
// code most. Words that the kernel does not know become the environment of the guest agent: none of its goroutines
// needs preemption by signals, whose code a restored machine would run for the first time.
const cmdline = "quiet mitigations=off nokaslr random.trust_cpu=on " + idle + " GODEBUG=asyncpreemptoff=1"

// idle stops what wakes a guest periodically that has nothing to do: pressure stall averages (once a second), the
// lockup detector (every four seconds), compaction of memory in advance (twice a second), and probes of managed
// neighbours (every five seconds). The statistics of memory are summed up every ten seconds: on kernels with a deadline
// server for ordinary tasks, summing them up every second keeps that server's timer running.
const idle = "psi=0 nowatchdog sysctl.vm.compaction_proactiveness=0 sysctl.vm.stat_interval=10 " +
	"sysctl.net.ipv4.neigh.default.interval_probe_time_ms=" + hourMS + " " +
	"sysctl.net.ipv6.neigh.default.interval_probe_time_ms=" + hourMS

const hourMS = "3600000"

// meta is kernel.json.
type meta struct {
	Version string            `json:"version"`
	Image   string            `json:"image"`   // file name of the kernel
	Modules []string          `json:"modules"` // file names below modules, in load order
	SHA256  map[string]string `json:"sha256"`  // of every file, by its path below the directory
}

// Find returns the kernel in dir, preferably the tuned one, and an initramfs of the guest agent.
//
// It makes the initramfs unless one of the same content exists. It checks every file against the checksums recorded
// at installation. The error is a *NotFoundError, *DamagedError or *AgentError.
func Find(ctx context.Context, dir, guestAgent string) (Boot, error) {
	b, err := FindKind(ctx, dir, Tuned, guestAgent)
	if _, missing := errors.AsType[*NotFoundError](err); missing {
		b, err = FindKind(ctx, dir, Distribution, guestAgent)
	}
	return b, err
}

// FindKind is Find for one kind of kernel, Distribution or Tuned.
func FindKind(ctx context.Context, dir, kind, guestAgent string) (Boot, error) {
	m, err := load(filepath.Join(dir, kind))
	if errors.Is(err, fs.ErrNotExist) {
		return Boot{}, &NotFoundError{Dir: dir}
	}
	if err != nil {
		return Boot{}, err
	}
	return m.boot(ctx, dir, kind, guestAgent)
}

// load reads and checks an installed kernel. The error is fs.ErrNotExist if it does not exist.
func load(dir string) (*meta, error) {
	var m meta
	path := filepath.Join(dir, metaFile)
	if err := durable.ReadJSON(path, &m); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		return nil, &DamagedError{Path: path, Why: err.Error()}
	}
	for name, want := range m.SHA256 {
		got, err := sum(filepath.Join(dir, name))
		if err != nil {
			return nil, &DamagedError{Path: filepath.Join(dir, name), Why: err.Error()}
		}
		if got != want {
			return nil, &DamagedError{
				Path: filepath.Join(dir, name),
				Why:  "its SHA-256 differs from the one taken at installation",
			}
		}
	}
	return &m, nil
}

func (m *meta) boot(ctx context.Context, dir, kind, guestAgent string) (Boot, error) {
	agent, err := sum(guestAgent)
	if err != nil {
		return Boot{}, &AgentError{Path: guestAgent, Err: err}
	}
	h := sha256.New()
	fmt.Fprintf(h, "initramfs %d\n%s\n%s\n%s\n%s\n", initramfsFormat, m.Version, m.SHA256[m.Image], agent, cmdline)
	for _, name := range m.Modules {
		fmt.Fprintln(h, name, m.SHA256[filepath.Join("modules", name)])
	}
	digest := hex.EncodeToString(h.Sum(nil))
	b := Boot{
		Kernel:    filepath.Join(dir, kind, m.Image),
		Initramfs: filepath.Join(dir, "initramfs-"+digest[:16]+".cpio"),
		Cmdline:   cmdline,
		ACPI:      kind == Distribution,
		Version:   m.Version,
		Digest:    digest,
	}
	if now := time.Now(); os.Chtimes(b.Initramfs, now, now) == nil { // it exists; record the use
		return b, nil
	}
	var modules []string
	for _, name := range m.Modules {
		modules = append(modules, filepath.Join(dir, kind, "modules", name))
	}
	if err := writeInitramfs(ctx, b.Initramfs, guestAgent, modules); err != nil {
		return Boot{}, err
	}
	return b, nil
}

// Image returns the path of the kernel that Find would choose. It checks it as Find does.
func Image(dir string) (string, error) {
	path, _, err := image(dir)
	return path, err
}

// Check checks the kernel in dir as Find does. It returns kind and version for display: "tuned 6.12.43".
func Check(dir string) (string, error) {
	_, text, err := image(dir)
	return text, err
}

func image(dir string) (path, text string, err error) {
	for _, kind := range []string{Tuned, Distribution} {
		m, err := load(filepath.Join(dir, kind))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", "", err
		}
		return filepath.Join(dir, kind, m.Image), kind + " " + m.Version, nil
	}
	return "", "", &NotFoundError{Dir: dir}
}

// IsELF reports whether the kernel at path is an ELF file.
//
// An ELF kernel finds its devices on the command line; the image of a distribution needs ACPI.
func IsELF(path string) bool { return checkELF(path, false) == nil }

// Remove removes every kernel and initramfs below dir.
func Remove(dir string) error { return durable.RemoveAll(dir) }

// sum returns the SHA-256 of a file in hexadecimal.
func sum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// commitKernel writes kernel.json for the files of a directory that is otherwise complete, and renames the directory
// into place.
func commitKernel(work, dir string, m meta) error {
	m.SHA256 = map[string]string{}
	files := []string{m.Image}
	for _, name := range m.Modules {
		files = append(files, filepath.Join("modules", name))
	}
	for _, name := range files {
		s, err := sum(filepath.Join(work, name))
		if err != nil {
			return err
		}
		m.SHA256[name] = s
	}
	if err := durable.WriteJSON(filepath.Join(work, metaFile), m); err != nil {
		return err
	}
	if err := durable.RemoveAll(dir); err != nil {
		return err
	}
	return durable.Rename(work, dir)
}
