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

// sums are the SHA-256 of files, which are read once as long as they stay the same. All methods may be called at once.
type sums struct {
	mu    sync.Mutex
	known map[checkpoint.File]string // guarded by mu
}

// maxSums bounds how many are kept: a monitor consists of some fifty files.
const maxSums = 4096

func newSums() *sums { return &sums{known: map[checkpoint.File]string{}} }

func (s *sums) get(f checkpoint.File) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum, ok := s.known[f]
	return sum, ok
}

func (s *sums) put(f checkpoint.File, sum string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) >= maxSums {
		clear(s.known)
	}
	s.known[f] = sum
}

// learn takes the sums over that are written down with a process, which fits this host.
func (s *sums) learn(p *Process) error {
	if len(p.Sums) == len(p.Image.Files) {
		for i, f := range p.Image.Files {
			s.put(f, p.Sums[i])
		}
	}
	if p.Sum == "" {
		return nil
	}
	content, err := checkpoint.Describe(p.content)
	if err == nil {
		s.put(content, p.Sum)
	}
	return err
}

// of answers the sums of files that are as they are described.
func (s *sums) of(files []checkpoint.File) ([]string, error) {
	out := make([]string, len(files))
	for i, want := range files {
		have, sum, err := s.file(want.Path)
		if err != nil {
			return nil, err
		}
		if have != want {
			return nil, fmt.Errorf("%s was changed meanwhile", want.Path)
		}
		out[i] = sum
	}
	return out, nil
}

// file answers what a file is now, and its sum.
func (s *sums) file(path string) (checkpoint.File, string, error) {
	is, err := checkpoint.Describe(path)
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
	sum, err := sumOf(f)
	if err != nil {
		return is, "", err
	}
	if now, err := checkpoint.Describe(path); err != nil || now != is {
		return is, "", fmt.Errorf("%s is being changed: %v", path, err)
	}
	s.put(is, sum)
	return is, sum, nil
}

// sumOf answers the SHA-256 of a file's content, in hexadecimal.
func sumOf(f *os.File) (string, error) {
	st, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !st.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no regular file", f.Name())
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(f, 0, st.Size())); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
