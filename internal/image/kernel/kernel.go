// Package kernel provides what a guest boots: a kernel and an initramfs that carries the guest agent.
//
// It owns the directory <data>/kernel. There are two kernels. The distribution's cloud kernel is taken
// from the package mirror as it is, with the modules a machine needs; nothing is compiled and nothing is
// installed on the host. The tuned kernel is compiled from the distribution's source with the fragment
// tuned.config; it has no modules, boots faster, and is used when it is there.
//
//	<dir>/distribution/{kernel.json, vmlinuz, modules/*.ko}
//	<dir>/tuned/{kernel.json, vmlinux}
//	<dir>/initramfs-<digest>.cpio    made by Find for one kernel and one guest agent
//
// The package does not know what a sandbox or a template is, and starts no guest. Find, Install and
// BuildTuned may run in several processes at once: every result appears whole, by a rename.
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

// Boot is everything a driver needs to boot a guest cold.
type Boot struct {
	Kernel    string // path: an ELF vmlinux (tuned) or a bzImage (distribution)
	Initramfs string // path of a cpio archive with the guest agent as /init
	Cmdline   string // to be appended to what the driver itself puts on the command line
	ACPI      bool   // the kernel finds its devices through ACPI and not on the command line
	Version   string // of the kernel, for people: "6.12.95+deb12-cloud-amd64"
	Digest    string // changes whenever kernel, modules, guest agent or command line do; hexadecimal
}

// NotFoundError says that Dir holds no kernel.
type NotFoundError struct{ Dir string }

func (e *NotFoundError) Error() string {
	return fmt.Sprintf(
		"there is no guest kernel in %s; run `pandastack setup` to install the distribution's, or `make kernel` to build the tuned one",
		e.Dir,
	)
}

// DamagedError says that a file is not what was installed.
type DamagedError struct{ Path, Why string }

func (e *DamagedError) Error() string {
	return fmt.Sprintf(
		"guest kernel file %s is damaged (%s); run `pandastack setup` to install it again",
		e.Path,
		e.Why,
	)
}

// AgentError says that the guest agent's program cannot be used.
type AgentError struct {
	Path string
	Err  error
}

func (e *AgentError) Error() string {
	return fmt.Sprintf(
		"guest agent %s cannot be used: %v; it is built beside pandastack (`make build`), or set guest_agent to its path",
		e.Path,
		e.Err,
	)
}

// Unwrap gives the cause.
func (e *AgentError) Unwrap() error { return e.Err }

// The kinds of kernel, which are also the names of their directories.
const (
	Distribution = "distribution" // the distribution's cloud kernel, unchanged
	Tuned        = "tuned"        // compiled with tuned.config
)

const metaFile = "kernel.json"

// cmdline is what both kernels are given beyond the driver's own words. The border of a machine is the
// monitor, not the guest kernel: mitigations inside it protect the guest from itself alone, and cost
// translated code most. What has no meaning to the kernel is the environment of the guest agent: none of
// its goroutines needs to be stopped in the middle, and the signals for it are code that a restored
// machine would run for the first time.
const cmdline = "quiet mitigations=off nokaslr random.trust_cpu=on GODEBUG=asyncpreemptoff=1"

// meta is kernel.json.
type meta struct {
	Version string            `json:"version"`
	Image   string            `json:"image"`   // file name of the kernel
	Modules []string          `json:"modules"` // file names below modules, in the order of loading
	SHA256  map[string]string `json:"sha256"`  // of every file, by its path below the directory
}

// Find gives the kernel in dir, the tuned one when it is there, together with an initramfs that holds
// the guest agent of the given path. The initramfs is made when there is none of the same content yet.
// Every file is checked against the sums taken when it was installed. Errors: *NotFoundError,
// *DamagedError, *AgentError.
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

// load reads and checks an installed kernel; fs.ErrNotExist when there is none.
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
	if now := time.Now(); os.Chtimes(b.Initramfs, now, now) == nil { // it is there, and still asked for
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

// Image gives the path of the kernel that Find would choose, checked as Find does, without a guest agent.
func Image(dir string) (string, error) {
	path, _, err := image(dir)
	return path, err
}

// Check reads the kernel in dir and checks it as Find does. It gives its kind and version for people:
// "tuned 6.12.43".
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

// IsELF tells whether the kernel at path is an ELF file, which finds its devices on the command line,
// and not the image of a distribution, which needs ACPI.
func IsELF(path string) bool { return checkELF(path, false) == nil }

// Remove takes away every kernel and initramfs below dir.
func Remove(dir string) error { return durable.RemoveAll(dir) }

// sum is the SHA-256 of a file in hexadecimal.
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

// seal writes kernel.json for the files of a directory that is complete otherwise, and puts the
// directory into place.
func seal(work, dir string, m meta) error {
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
