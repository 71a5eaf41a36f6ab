package vmmproc

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pandastack/pandastack/internal/lib/durable"
	"github.com/pandastack/pandastack/internal/vmm"
)

// Names of the files that the images of all these drivers have.
const (
	MemoryName   = "memory"
	StateName    = "state"
	manifestName = "manifest.json"
)

// Part is a small file of an image. Its checksum is checked on every restore.
type Part struct {
	Name string
	Data []byte
}

// WriteImage writes the parts and the manifest into dir, which already holds the memory file.
// memoryBytes is the size of that file. When WriteImage returns, everything except the memory file
// is durable.
func WriteImage(dir string, m vmm.Manifest, memoryBytes int64, parts ...Part) (vmm.Image, error) {
	m.Created = time.Now().UTC()
	m.Files = []vmm.File{{Name: MemoryName, Bytes: memoryBytes}}
	var writes errgroup.Group // every write waits for a commit of the file system's journal; one commit serves them all
	for _, p := range parts {
		sum := sha256.Sum256(p.Data)
		m.Files = append(m.Files, vmm.File{Name: p.Name, Bytes: int64(len(p.Data)), SHA256: hex.EncodeToString(sum[:])})
		writes.Go(func() error { return durable.WriteFile(filepath.Join(dir, p.Name), p.Data, 0o444) })
	}
	writes.Go(func() error { return durable.WriteJSON(filepath.Join(dir, manifestName), m) })
	if err := writes.Wait(); err != nil {
		return vmm.Image{}, err
	}
	return vmm.Image{Dir: dir, Manifest: m}, nil
}

// FileOf returns the entry for a file in a manifest.
func FileOf(m vmm.Manifest, name string) (vmm.File, bool) {
	for _, f := range m.Files {
		if f.Name == name {
			return f, true
		}
	}
	return vmm.File{}, false
}

// ReadChecked reads a small file of an image and verifies its checksum. limit is the maximum size
// in bytes.
func ReadChecked(image vmm.Image, name string, limit int64) ([]byte, error) {
	path := filepath.Join(image.Dir, name)
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := ReadBounded(f, limit)
	if err != nil {
		return nil, err
	}
	want, _ := FileOf(image.Manifest, name)
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != want.SHA256 {
		return nil, fmt.Errorf("%s is damaged: its checksum differs from the manifest's", path)
	}
	return data, nil
}

// ReadBounded reads all of f. A file of more than limit bytes is an error.
func ReadBounded(f *os.File, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%s is damaged: larger than %d bytes", f.Name(), limit)
	}
	return data, err
}
