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

func (s *fileHashes) get(f checkpoint.File) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum, ok := s.known[f]
	return sum, ok
}

func (s *fileHashes) put(f checkpoint.File, sum string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) >= maxHashes {
		clear(s.known)
	}
	s.known[f] = sum
}

// add adds the hashes stored with a checkpoint, which must be valid on this host.
func (s *fileHashes) add(p *MonitorCheckpoint) error {
	if len(p.FileHashes) == len(p.Process.Files) {
		for i, f := range p.Process.Files {
			s.put(f, p.FileHashes[i])
		}
	}
	if p.ContentHash == "" {
		return nil
	}
	content, err := checkpoint.StatFile(p.contentPath)
	if err == nil {
		s.put(content, p.ContentHash)
	}
	return err
}

// ofFiles returns the hashes of files. It fails if a file is not as described.
func (s *fileHashes) ofFiles(files []checkpoint.File) ([]string, error) {
	out := make([]string, len(files))
	for i, want := range files {
		have, sum, err := s.ofFile(want.Path)
		if err != nil {
			return nil, err
		}
		if have != want {
			return nil, fmt.Errorf("%s has changed meanwhile", want.Path)
		}
		out[i] = sum
	}
	return out, nil
}

// ofFile returns the identity and the hash of a file.
func (s *fileHashes) ofFile(path string) (checkpoint.File, string, error) {
	is, err := checkpoint.StatFile(path)
	if err != nil {
		return is, "", err
	}
	if sum, ok := s.get(is); ok {
		return is, sum, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return is, "", err
	}
	defer f.Close()
	sum, err := hashFile(f)
	if err != nil {
		return is, "", err
	}
	if now, err := checkpoint.StatFile(path); err != nil || now != is {
		return is, "", fmt.Errorf("%s is being changed: %v", path, err)
	}
	s.put(is, sum)
	return is, sum, nil
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
