// Package ballast keeps disk space for what must work on a full file system.
//
// A Ballast is a file without content that is removed when a database finds no space, so that it can write and users
// can delete. It is made again when there is plenty of space. It is removed at that moment and not before: others would
// take the space that it leaves.
//
// A Ballast may be used concurrently. One process at a time uses a file.
package ballast

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	name     = "ballast"
	maxBytes = 64 << 20
	// share of the file system that a small one's ballast may take
	share = 64
	// plenty is how many times its size must be free for a ballast to be made.
	plenty = 4
	// scarce is the part of its size below which a ballast is removed.
	scarce   = 4
	interval = time.Second
)

// Ballast is the ballast of one file system.
type Ballast struct {
	path  string
	bytes int64
	mu    sync.Mutex
}

// In returns the ballast of the file system of dir, which has at most 64 MiB and is a file in dir. It changes nothing.
func In(dir string) (*Ballast, error) {
	b := &Ballast{path: filepath.Join(dir, name)}
	_, total, err := b.free()
	if err != nil {
		return nil, err
	}
	b.bytes = min(maxBytes, total/share)
	return b, nil
}

// free returns the free bytes of the file system and its size.
func (b *Ballast) free() (free, total int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(b.path), &st); err != nil {
		return 0, 0, fmt.Errorf("free space of %s: %w", filepath.Dir(b.path), err)
	}
	return int64(st.Bavail) * st.Bsize, int64(st.Blocks) * st.Bsize, nil
}

// Release removes the ballast if its file system is nearly full. It reports whether that made space.
func (b *Ballast) Release() (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if free, _, err := b.free(); err != nil || free >= b.bytes/scarce {
		return false, err
	}
	if err := os.Remove(b.path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("remove ballast: %w", err)
	}
	return true, nil
}

// Take makes the ballast, unless it exists or there is not plenty of space. It reports whether it exists now.
func (b *Ballast) Take() (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if info, err := os.Stat(b.path); err == nil && info.Size() == b.bytes {
		return true, nil
	}
	if free, _, err := b.free(); err != nil || free < plenty*b.bytes {
		return false, err
	}
	f, err := os.OpenFile(b.path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return false, fmt.Errorf("make ballast: %w", err)
	}
	// The file is made longer by the allocation alone: if that is not possible, it is empty and tried again.
	if err := errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, b.bytes), f.Close()); err != nil {
		return false, errors.Join(fmt.Errorf("make ballast: %w", err), os.Remove(b.path))
	}
	return true, nil
}

// Run makes the ballast whenever it does not exist and there is plenty of space, until ctx ends.
func (b *Ballast) Run(ctx context.Context, log *slog.Logger) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var last string
	for {
		_, err := b.Take()
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != "" && text != last {
			log.Warn("ballast", "err", err)
		}
		last = text
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
