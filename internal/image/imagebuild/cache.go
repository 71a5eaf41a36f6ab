package imagebuild

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// maxCache limits the size of the cached packages, in bytes, and that of the parts.
const maxCache = 2 << 30

// partsDir is the cache's directory of content from other registries.
const partsDir = "parts"

// cacheHooks make mmdebstrap find downloaded packages in the cache and leave new ones in it. The directory is mounted
// into the new root inside mmdebstrap's own mount namespace, and unmounted before it cleans up, which would empty it.
func cacheHooks(cache string) []string {
	mount := fmt.Sprintf(
		`mkdir -p "$1/var/cache/apt/archives/partial" && mount --bind %s "$1/var/cache/apt/archives"`,
		quote(cache),
	)
	return []string{
		"--skip=essential/unlink,download/empty",
		"--setup-hook=" + mount,
		`--customize-hook=umount "$1/var/cache/apt/archives"`,
	}
}

// lockCache makes the cache directory and waits until no other build uses it: the package manager locks it too, but
// fails at once. The returned function trims the cache and releases the lock.
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
			return nil, errors.Join(
				fmt.Errorf("package cache: wait for another build: %w", context.Cause(ctx)),
				f.Close(),
			)
		case <-tick.C:
		}
	}
}

// trim removes the packages that were added first until the rest fits into limit bytes, and does the same for parts.
func trim(cache string, limit int64) error {
	packages, err1 := filepath.Glob(filepath.Join(cache, "*.deb"))
	parts, err2 := filepath.Glob(filepath.Join(cache, partsDir, "*"))
	return errors.Join(err1, err2, trimPaths(packages, limit), trimPaths(parts, limit))
}

// cacheEntry is a file of the cache, or a directory with its content.
type cacheEntry struct {
	path  string
	bytes int64
	added int64 // nanoseconds since 1970
}

func trimPaths(paths []string, limit int64) error {
	var all []cacheEntry
	var total int64
	for _, p := range paths {
		k, err := measure(p)
		if err != nil {
			return fmt.Errorf("package cache: %w", err)
		}
		all = append(all, k)
		total += k.bytes
	}
	slices.SortFunc(all, func(a, b cacheEntry) int { return cmp.Compare(a.added, b.added) })
	for _, k := range all {
		if total <= limit {
			return nil
		}
		if err := os.RemoveAll(k.path); err != nil {
			return fmt.Errorf("package cache: %w", err)
		}
		total -= k.bytes
	}
	return nil
}

func measure(path string) (cacheEntry, error) {
	k := cacheEntry{path: path}
	err := filepath.WalkDir(path, func(p string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(p, &st)
		}
		if p == path {
			k.added = st.Ctim.Nano()
		}
		k.bytes += st.Size
		return err
	})
	return k, err
}
