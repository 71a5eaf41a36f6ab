package checkpointstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pandastack/pandastack/internal/vmm"
)

// Pages files from other hosts are kept in one directory per boot of the host, named by their hash.
// Each serves all images whose checkpoint is a delta to it. If there are too many, the oldest are
// removed. Images whose base was removed are restored from their device state.
const (
	contentDirPrefix = "contents-" // followed by the boot ID
	maxContents      = 8
)

// openContentDir creates the directory of pages files and removes those of earlier boots.
func openContentDir(dir, boot string) (string, error) {
	name := contentDirPrefix + boot
	list, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	for _, e := range list {
		if strings.HasPrefix(e.Name(), contentDirPrefix) && e.Name() != name {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return "", err
			}
		}
	}
	store := filepath.Join(dir, name)
	return store, os.MkdirAll(store, 0o700)
}

// baseContent returns the pages file with the given hash. It uses the file of local or one that was
// fetched earlier, and otherwise fetches it.
func (s *Store) baseContent(
	ctx context.Context,
	hash string,
	bytes int64,
	local *MonitorCheckpoint,
	from vmm.CheckpointSource,
) (*Content, error) {
	if local != nil {
		if _, have, err := s.hashes.ofFile(local.contentPath); err == nil && have == hash {
			return s.contentOfSize(local.contentPath, bytes)
		}
	}
	s.fetchMu.Lock()
	defer s.fetchMu.Unlock()
	path := filepath.Join(s.contentDir, hash)
	if _, err := os.Stat(path); err == nil {
		return s.contentOfSize(path, bytes)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := s.fetchBase(ctx, path, hash, bytes, from); err != nil {
		return nil, fmt.Errorf("fetch the base pages file: %w", err)
	}
	if err := s.evict(path); err != nil {
		return nil, err
	}
	return s.contentOfSize(path, bytes)
}

func (s *Store) contentOfSize(path string, bytes int64) (*Content, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if st.Size() != bytes {
		return nil, fmt.Errorf("the base pages file has %d bytes, want %d", st.Size(), bytes)
	}
	return ContentOf(path)
}

// fetchBase fetches a pages file and verifies its hash, because all later checkpoints with this
// hash will use the file.
func (s *Store) fetchBase(ctx context.Context, path, hash string, bytes int64, from vmm.CheckpointSource) (err error) {
	part := path + ".part"
	if err := os.RemoveAll(part); err != nil { // left by a killed process
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(part))
		}
	}()
	if err := receive(part, bytes, func(f *os.File) (int64, error) { return from.Fetch(ctx, true, f) }); err != nil {
		return err
	}
	f, err := os.Open(part)
	if err != nil {
		return err
	}
	have, err := hashFile(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if have != hash {
		return fmt.Errorf("it has the hash %s, want %s", have, hash)
	}
	return os.Rename(part, path)
}

// evict removes the oldest pages files except keep. Machines that use one have it open.
func (s *Store) evict(keep string) error {
	list, err := os.ReadDir(s.contentDir)
	if err != nil {
		return err
	}
	var all []fs.FileInfo
	for _, e := range list {
		info, err := e.Info()
		if err != nil {
			return err
		}
		if info.Name() != filepath.Base(keep) {
			all = append(all, info)
		}
	}
	slices.SortFunc(
		all,
		func(a, b fs.FileInfo) int { return cmp.Compare(a.ModTime().UnixNano(), b.ModTime().UnixNano()) },
	)
	for _, old := range all[:max(0, len(all)+1-maxContents)] {
		if err := os.Remove(filepath.Join(s.contentDir, old.Name())); err != nil {
			return err
		}
	}
	return nil
}
