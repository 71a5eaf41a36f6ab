package bake

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/host/snapshot"
)

// loadPageCache reads an image's files into the page cache, without their holes, so that the first machine made from
// it finds its memory there. Files that share blocks do not share their page cache.
func loadPageCache(ctx context.Context, snap snapshot.Snapshot) error {
	return filepath.WalkDir(snap.Image().Dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		return loadFileIntoPageCache(ctx, path)
	})
}

func loadFileIntoPageCache(ctx context.Context, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, 1<<20)
	for end := int64(0); ; {
		start, err := f.Seek(end, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // there is no data after end
		}
		if err != nil {
			return err
		}
		if end, err = f.Seek(start, unix.SEEK_HOLE); err != nil {
			return err
		}
		for data := io.NewSectionReader(f, start, end-start); ; {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			if _, err := data.Read(buf); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return err
			}
		}
	}
}
