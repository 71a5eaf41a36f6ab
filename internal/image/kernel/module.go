package kernel

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// wantedModules are the modules a machine needs; their dependencies are added. Modules built into a kernel need no
// file. overlay, fuse and tun are for users' programs.
var wantedModules = []string{
	"crc32c_generic", "virtio_mmio", "virtio_console", "virtio_blk", "ext4", "virtio_rng", "virtio_net",
	"virtio_balloon", "virtio_mem", "vmw_vsock_virtio_transport", "overlay", "fuse", "tun",
}

// essentialModules are the modules of wantedModules without which no machine boots, unless they are built in.
var essentialModules = []string{"virtio_mmio", "virtio_console", "virtio_blk", "ext4", "virtio_net"}

// modules copies the wanted modules and their dependencies from a module tree (lib/modules/<version>) into dir,
// decompressed, and returns their file names in load order.
func modules(ctx context.Context, tree, dir string) ([]string, error) {
	paths, err := moduleFiles(tree)
	if err != nil {
		return nil, err
	}
	builtin, err := builtinModules(tree)
	if err != nil {
		return nil, err
	}
	for _, name := range essentialModules {
		if paths[name] == "" && !builtin[name] {
			return nil, fmt.Errorf("kernel in %s has no module %s", tree, name)
		}
	}
	l := loader{ctx: ctx, paths: paths, builtin: builtin, dir: dir, done: map[string]bool{}}
	for _, name := range wantedModules {
		if paths[name] == "" {
			continue
		}
		if err := l.add(name, 0); err != nil {
			return nil, err
		}
	}
	return l.order, nil
}

// loader walks the dependencies of modules depth-first.
type loader struct {
	ctx     context.Context
	paths   map[string]string
	builtin map[string]bool
	dir     string
	done    map[string]bool
	order   []string
}

// maxDepth limits chains of dependencies; a longer one is a cycle.
const maxDepth = 32

func (l *loader) add(name string, depth int) error {
	if l.done[name] || l.builtin[name] {
		return nil
	}
	path := l.paths[name]
	if path == "" {
		return fmt.Errorf("kernel module %s is missing", name)
	}
	if depth > maxDepth {
		return fmt.Errorf("kernel module %s depends on itself", name)
	}
	data, err := readModule(l.ctx, path)
	if err != nil {
		return fmt.Errorf("kernel module %s: %w", path, err)
	}
	needs, err := dependencies(data)
	if err != nil {
		return fmt.Errorf("kernel module %s: %w", path, err)
	}
	for _, n := range needs {
		if err := l.add(n, depth+1); err != nil {
			return err
		}
	}
	l.done[name] = true
	l.order = append(l.order, name+".ko")
	return os.WriteFile(filepath.Join(l.dir, name+".ko"), data, 0o644)
}

// moduleName returns the name of a module: file names may have a dash in place of an underscore.
func moduleName(file string) string {
	name, _, _ := strings.Cut(filepath.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

func moduleFiles(tree string) (map[string]string, error) {
	paths := map[string]string{}
	err := filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && strings.Contains(d.Name(), ".ko") {
			paths[moduleName(path)] = path
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("kernel modules: %w", err)
	}
	return paths, nil
}

func builtinModules(tree string) (map[string]bool, error) {
	data, err := os.ReadFile(filepath.Join(tree, "modules.builtin"))
	if err != nil {
		return nil, fmt.Errorf("kernel modules: %w", err)
	}
	names := map[string]bool{}
	for _, line := range strings.Fields(string(data)) {
		names[moduleName(line)] = true
	}
	return names, nil
}

// maxModule limits the size of a decompressed module; the largest a machine needs has one megabyte.
const maxModule = 64 << 20

// readModule returns the content of a module file, decompressed according to its name.
func readModule(ctx context.Context, path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var r io.Reader = f
	switch filepath.Ext(path) {
	case ".ko":
	case ".gz":
		if r, err = gzip.NewReader(f); err != nil {
			return nil, err
		}
	case ".zst":
		d, err := zstd.NewReader(f)
		if err != nil {
			return nil, err
		}
		defer d.Close()
		r = d
	case ".xz":
		return unxz(ctx, f)
	default:
		return nil, errors.New("unknown compression")
	}
	data, err := io.ReadAll(io.LimitReader(r, maxModule+1))
	if err == nil && len(data) > maxModule {
		err = fmt.Errorf("larger than %d bytes", maxModule)
	}
	return data, err
}

// unxz decompresses with the xz program, which every Debian has: dpkg itself needs it.
func unxz(ctx context.Context, r io.Reader) ([]byte, error) {
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "xz", "-dc")
	cmd.Stdin, cmd.Stderr = r, &stderr
	data, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("xz (package xz-utils): %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return data, nil
}

// dependencies returns the names of the modules that a module depends on, from its .modinfo section.
func dependencies(module []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return nil, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, errors.New("no section .modinfo")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	var needs []string
	for _, field := range strings.Split(string(info), "\x00") {
		if list, ok := strings.CutPrefix(field, "depends="); ok && list != "" {
			for _, n := range strings.Split(list, ",") {
				needs = append(needs, strings.ReplaceAll(n, "-", "_"))
			}
		}
	}
	return needs, nil
}

// checkELF returns an error for a file that is not an ELF program of this machine's processor; with static set, also
// for a dynamically linked one.
func checkELF(path string, static bool) error {
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	if f.Machine != want {
		return fmt.Errorf("built for %v, want %v", f.Machine, want)
	}
	for _, p := range f.Progs {
		if static && p.Type == elf.PT_INTERP {
			return errors.New("not statically linked (build it with CGO_ENABLED=0)")
		}
	}
	return nil
}
