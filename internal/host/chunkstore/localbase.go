package chunkstore

import (
	"errors"
	"fmt"
	"os"
)

// localChunk is the chunk of an extent, in a Reader alone, whose pages lie in a file of this host at the place that
// they have in the file that is read.
const localChunk = -1

// WithLocalBase has the reader take what its files share with those of base from base's files, which stay as they are until
// Close. Of those it asks neither the cache nor the store. It is called before the reader is used, once.
func (r *Reader) WithLocalBase(base *Base) error {
	for name, f := range r.files {
		was, ok := base.Manifest.File(name)
		if !ok || base.Files[name] == "" {
			continue
		}
		if err := r.useLocalBase(f, was, base); err != nil {
			return errors.Join(
				fmt.Errorf("read %s with what is here of %s: %w", r.m.ID, base.Manifest.ID, err),
				r.Close(),
			)
		}
	}
	return nil
}

func (r *Reader) useLocalBase(f, was File, base *Base) error {
	file, err := os.Open(base.Files[f.Name])
	if err != nil {
		return err
	}
	r.local[f.Name] = file
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if info.Size() != was.Bytes {
		return fmt.Errorf("%s has %d bytes, and %d in its manifest", file.Name(), info.Size(), was.Bytes)
	}
	var all []Extent
	for _, e := range f.Extents {
		next := e.Page
		for same := range shared(r.m, e, was, base.Manifest) {
			same.Count = int(
				min(same.end(), was.Bytes/PageSize) - same.Page,
			) // what is beyond whole pages is not in the file
			if same.Count <= 0 {
				break
			}
			all = append(all, e.cut(next, same.Page)...)
			all = append(all, Extent{Page: same.Page, Count: same.Count, Chunk: localChunk})
			next = same.end()
		}
		all = append(all, e.cut(next, e.end())...)
	}
	f.Extents = all
	r.files[f.Name] = f
	return nil
}

// LocalCopy implements Source.
func (r *Reader) LocalCopy(file string, off int64) (*os.File, int64) {
	f, ok := r.files[file]
	if !ok || r.local[file] == nil || off < 0 || off >= f.Bytes {
		return nil, 0
	}
	page := off / PageSize
	i := f.first(page)
	end := page
	for ; i < len(f.Extents) && f.Extents[i].Chunk == localChunk && f.Extents[i].Page <= end; i++ {
		end = f.Extents[i].end()
	}
	if end == page {
		return nil, 0
	}
	return r.local[file], min(end*PageSize, f.Bytes) - off
}

// Close lets go of what Near opened. A reader without that needs no end.
func (r *Reader) Close() error {
	var all error
	for _, f := range r.local {
		all = errors.Join(all, f.Close())
	}
	return all
}
