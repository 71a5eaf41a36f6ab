package oci

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// sharedBudget is the rest of the limits of an image, shared by layers that are unpacked concurrently.
type sharedBudget struct {
	mu  sync.Mutex
	all budget
}

func newBudgets(l Limits) *sharedBudget {
	memory := &memoryBudget{}
	memory.left.Store(l.MaxIndex)
	return &sharedBudget{all: budget{entries: int64(l.MaxEntries), bytes: l.MaxBytes, memory: memory}}
}

// remaining returns the whole rest: one layer may use all of it, and charge subtracts what it has used.
func (b *sharedBudget) remaining() budget {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all
}

// charge subtracts what a layer has used: given minus rest.
func (b *sharedBudget) charge(rest, given budget) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all.entries -= given.entries - rest.entries
	b.all.bytes -= given.bytes - rest.bytes
	if b.all.entries < 0 || b.all.bytes < 0 {
		return fmt.Errorf("%w: the layers together have too many entries or bytes", ErrTooLarge)
	}
	return nil
}

// cachedPrefix begins the names of cached layers, and oldPrefix those of earlier versions, which were not kept apart by
// repository.
const (
	cachedPrefix = "layer-"
	oldPrefix    = "sha256-"
)

// cachePath returns the path of a cached layer. Only images of the same repository use it: who resolved one has proven
// access to the repository, but anybody can name the DiffID of a layer in an image of another.
func (p *Puller) cachePath(img *Image, l Layer) string {
	repository := sha256.Sum256([]byte(img.repository.Name()))
	diff := strings.TrimPrefix(l.DiffID, "sha256:")
	return filepath.Join(p.opt.Dir, cachedPrefix+hex.EncodeToString(repository[:16])+"-"+diff)
}

// touch marks a cached layer as used.
func touch(path string) error {
	now := time.Now()
	if err := os.Chtimes(path, now, now); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("mark cached layer: %w", err)
	}
	return nil
}

// prune removes cached layers, least recently used first, until the rest is within CacheBytes.
func (p *Puller) prune() error {
	if p.opt.CacheBytes == 0 {
		return nil
	}
	names, err := os.ReadDir(p.opt.Dir)
	if err != nil {
		return fmt.Errorf("prune cached layers: %w", err)
	}
	var files []os.FileInfo
	var total int64
	for _, d := range names {
		info, err := d.Info()
		if err != nil || !strings.HasPrefix(d.Name(), cachedPrefix) {
			continue // a download in progress, or removed meanwhile
		}
		files = append(files, info)
		total += info.Size()
	}
	slices.SortFunc(
		files,
		func(a, b os.FileInfo) int { return cmp.Compare(a.ModTime().UnixNano(), b.ModTime().UnixNano()) },
	)
	for _, f := range files {
		if total <= p.opt.CacheBytes {
			return nil
		}
		if err := os.Remove(filepath.Join(p.opt.Dir, f.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("prune cached layers: %w", err)
		}
		total -= f.Size()
	}
	return nil
}

// Clean removes partial downloads of a killed process, and cached layers of earlier versions.
//
// No Puller may use the directory meanwhile.
func Clean(dir string) error {
	var all error
	for _, prefix := range []string{"part-", oldPrefix} {
		files, err := filepath.Glob(filepath.Join(dir, prefix+"*"))
		all = errors.Join(all, err)
		for _, f := range files {
			all = errors.Join(all, os.Remove(f))
		}
	}
	if all != nil {
		return fmt.Errorf("clean layers: %w", all)
	}
	return nil
}
