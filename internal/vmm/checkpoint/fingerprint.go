package checkpoint

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Fingerprint identifies what a checkpoint depends on in this host, apart from files. These are the
// kernel's build, the code that the kernel maps into every process (the vDSO), and the processor
// features by which programs choose their code. A checkpoint can be used on another host, or after
// another boot, only if the fingerprint is the same.
func Fingerprint() (string, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", fmt.Errorf("fingerprint of this host: %w", err)
	}
	code, err := readVDSO()
	if err != nil {
		return "", fmt.Errorf("fingerprint of this host: %w", err)
	}
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "", fmt.Errorf("fingerprint of this host: %w", err)
	}
	return fingerprint(name, code, string(text)), nil
}

func fingerprint(name unix.Utsname, code []byte, cpus string) string {
	h := sha256.New()
	for _, part := range [][]byte{name.Release[:], name.Version[:], name.Machine[:], code} {
		sum := sha256.Sum256(part)
		h.Write(sum[:])
	}
	fmt.Fprint(h, cpuModels(cpus))
	return hex.EncodeToString(h.Sum(nil))
}

// cpuModels returns the lines of /proc/cpuinfo that identify the processor models, each model once.
func cpuModels(text string) string {
	seen := map[string]bool{}
	var out strings.Builder
	for cpu := range strings.SplitSeq(text, "\n\n") {
		var kind strings.Builder
		for line := range strings.Lines(cpu) {
			key, value, _ := strings.Cut(line, ":")
			switch key = strings.TrimSpace(key); key {
			case "vendor_id", "cpu family", "model", "stepping", "flags", "cache_alignment", "address sizes":
				fmt.Fprintf(&kind, "%s=%s\n", key, strings.TrimSpace(value))
			}
		}
		if k := kind.String(); k != "" && !seen[k] {
			seen[k] = true
			out.WriteString(k)
		}
	}
	return out.String()
}

// maxVDSO bounds the size of the vDSO, which has a few pages.
const maxVDSO = 1 << 20

// readVDSO returns the vDSO (vdso(7)) of this process.
func readVDSO() ([]byte, error) {
	maps, err := readMaps(os.Getpid())
	if err != nil {
		return nil, err
	}
	for _, m := range maps {
		if m.name != "[vdso]" {
			continue
		}
		if m.end-m.start > maxVDSO {
			return nil, fmt.Errorf("the vDSO has %d bytes", m.end-m.start)
		}
		mem, err := os.Open("/proc/self/mem")
		if err != nil {
			return nil, err
		}
		code := make([]byte, m.end-m.start)
		_, err = mem.ReadAt(code, int64(m.start))
		return code, errors.Join(err, mem.Close())
	}
	return nil, errors.New("the kernel provides no vDSO")
}

// StatFile returns the identity of a file as Checkpoint.OpenFiles compares it.
func StatFile(path string) (File, error) {
	// The path may come from another host. Opening something other than a regular file could block
	// forever or have side effects.
	if st, err := os.Stat(path); err != nil {
		return File{}, err
	} else if !st.Mode().IsRegular() {
		return File{}, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return File{}, err
	}
	d, err := statFile(f)
	return d, errors.Join(err, f.Close())
}
