package checkpointstore

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/pandastack/pandastack/internal/vmm/checkpoint"
)

// fileHashes caches the SHA-256 of files as long as they are unchanged. All methods may be called
// concurrently.
type fileHashes struct {
	mu    sync.Mutex
	known map[checkpoint.File]string // guarded by mu
}

// maxHashes bounds the cache. A monitor maps about fifty files.
const maxHashes = 4096

func newFileHashes() *fileHashes { return &fileHashes{known: map[checkpoint.File]string{}} }

func (h *fileHashes) get(f checkpoint.File) (string, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	hash, ok := h.known[f]
	return hash, ok
}

func (h *fileHashes) put(f checkpoint.File, hash string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.known) >= maxHashes {
		clear(h.known)
	}
	h.known[f] = hash
}

// add adds the hashes stored with a checkpoint, which must be valid on this host.
func (h *fileHashes) add(p *MonitorCheckpoint) error {
	if len(p.FileHashes) == len(p.Process.Files) {
		for i, f := range p.Process.Files {
			h.put(f, p.FileHashes[i])
		}
	}
	if p.ContentHash == "" {
		return nil
	}
	content, err := checkpoint.StatFile(p.contentPath)
	if err == nil {
		h.put(content, p.ContentHash)
	}
	return err
}

// ofFiles returns the hashes of files. It fails if a file is not as described.
func (h *fileHashes) ofFiles(files []checkpoint.File) ([]string, error) {
	out := make([]string, len(files))
	for i, want := range files {
		have, hash, err := h.ofFile(want.Path)
		if err != nil {
			return nil, err
		}
		if have != want {
			return nil, fmt.Errorf("%s has changed meanwhile", want.Path)
		}
		out[i] = hash
	}
	return out, nil
}

// ofFile returns the identity and the hash of a file.
func (h *fileHashes) ofFile(path string) (checkpoint.File, string, error) {
	file, err := checkpoint.StatFile(path)
	if err != nil {
		return file, "", err
	}
	if hash, ok := h.get(file); ok {
		return file, hash, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return file, "", err
	}
	defer f.Close()
	hash, err := hashFile(f)
	if err != nil {
		return file, "", err
	}
	if now, err := checkpoint.StatFile(path); err != nil || now != file {
		return file, "", fmt.Errorf("%s is being changed: %v", path, err)
	}
	h.put(file, hash)
	return file, hash, nil
}

// hashFile returns the SHA-256 of a file in hexadecimal.
func hashFile(f *os.File) (string, error) {
	st, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !st.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file", f.Name())
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(f, 0, st.Size())); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
