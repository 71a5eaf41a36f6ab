package imagebuild

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// maxCache bounds the packages that are kept, in bytes.
const maxCache = 2 << 30

// cacheHooks make mmdebstrap find downloaded packages in the cache and leave new ones there. The
// directory is mounted into the new root inside mmdebstrap's own mount namespace, and taken off before
// it cleans up, which would empty it.
func cacheHooks(cache string) []string {
	mount := fmt.Sprintf(`mkdir -p "$1/var/cache/apt/archives/partial" && mount --bind %s "$1/var/cache/apt/archives"`, quote(cache))
	return []string{
		"--skip=essential/unlink,download/empty",
		"--setup-hook=" + mount,
		`--customize-hook=umount "$1/var/cache/apt/archives"`,
	}
}

// lockCache makes the cache directory and waits until no other build uses it: the package manager locks
// it too, but gives up at once. The function it answers trims the cache and lets the next one go.
func lockCache(ctx context.Context, cache string) (release func() error, err error) {
	if err := os.MkdirAll(filepath.Join(cache, "partial"), 0o755); err != nil {
		return nil, fmt.Errorf("package cache: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(cache, ".lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("package cache: %w", err)
	}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() error { return errors.Join(trim(cache, maxCache), f.Close()) }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("package cache: lock: %w", err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("package cache: wait for another build: %w", context.Cause(ctx)), f.Close())
		case <-tick.C:
		}
	}
}

// trim removes the packages that were added first until the rest fits into limit bytes.
func trim(cache string, limit int64) error {
	paths, err := filepath.Glob(filepath.Join(cache, "*.deb"))
	if err != nil {
		return err
	}
	type file struct {
		path  string
		bytes int64
		added int64
	}
	var files []file
	var total int64
	for _, p := range paths {
		var st unix.Stat_t
		if err := unix.Stat(p, &st); err != nil {
			return fmt.Errorf("package cache: %w", err)
		}
		files = append(files, file{p, st.Size, st.Ctim.Nano()})
		total += st.Size
	}
	slices.SortFunc(files, func(a, b file) int { return int(a.added/1e9 - b.added/1e9) })
	for _, f := range files {
		if total <= limit {
			return nil
		}
		if err := os.Remove(f.path); err != nil {
			return fmt.Errorf("package cache: %w", err)
		}
		total -= f.bytes
	}
	return nil
}
