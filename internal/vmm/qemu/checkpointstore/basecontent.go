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

// Contents that came from other hosts lie in a directory for this boot of the host, each under its sum, and serve
// every image that lies over one. The oldest go when there are too many: images over one that is gone begin by their
// device state.
const (
	contentDirPrefix = "contents-" // and the id of the boot
	maxContents      = 8
)

// openContentDir makes the directory of contents, and removes those of other boots.
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

// baseContent finds the content with a sum on this host, or brings it: that of near, or one that came before.
func (s *Store) baseContent(
	ctx context.Context,
	sum string,
	bytes int64,
	near *MonitorCheckpoint,
	from vmm.CheckpointSource,
) (*Content, error) {
	if near != nil {
		if _, have, err := s.hashes.ofFile(near.contentPath); err == nil && have == sum {
			return s.contentOfSize(near.contentPath, bytes)
		}
	}
	s.fetchMu.Lock()
	defer s.fetchMu.Unlock()
	path := filepath.Join(s.contentDir, sum)
	if _, err := os.Stat(path); err == nil {
		return s.contentOfSize(path, bytes)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := s.fetchBase(ctx, path, sum, bytes, from); err != nil {
		return nil, fmt.Errorf("bring the content that it lies over: %w", err)
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
		return nil, fmt.Errorf("the content that it lies over has %d bytes, want %d", st.Size(), bytes)
	}
	return ContentOf(path)
}

// fetchBase fetches a content, and keeps it only if it is the one that is wanted: whoever names the same sum later gets
// this file.
func (s *Store) fetchBase(ctx context.Context, path, sum string, bytes int64, from vmm.CheckpointSource) (err error) {
	part := path + ".part"
	if err := os.RemoveAll(part); err != nil { // of a process of ours that was killed
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
	if have != sum {
		return fmt.Errorf("it has the sum %s, want %s", have, sum)
	}
	return os.Rename(part, path)
}

// evict removes the oldest contents but keep. Machines that were made with one have it open.
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
