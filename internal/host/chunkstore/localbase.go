package chunkstore

import (
	"errors"
	"fmt"
	"os"
)

// localChunk is the chunk of an extent, in a Reader only, whose pages are in a file of this host, at the same
// offset as in the file that is read.
const localChunk = -1

// WithLocalBase makes the reader take content shared with base from the files of base. It uses neither the
// cache nor the store for that content. The files must stay unchanged until Close. WithLocalBase is called
// once, before the reader is used.
func (r *Reader) WithLocalBase(base *Base) error {
	for name, f := range r.files {
		was, ok := base.Manifest.File(name)
		if !ok || base.Files[name] == "" {
			continue
		}
		if err := r.useLocalBase(f, was, base); err != nil {
			return errors.Join(
				fmt.Errorf("read %s with local base %s: %w", r.m.ID, base.Manifest.ID, err),
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
		return fmt.Errorf("%s has %d bytes, want %d as in its manifest", file.Name(), info.Size(), was.Bytes)
	}
	var all []Extent
	for _, e := range f.Extents {
		next := e.Page
		for same := range shared(r.m, e, was, base.Manifest) {
			same.Count = int(
				min(same.end(), was.Bytes/PageSize) - same.Page,
			) // a partial last page is not taken from the file
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

// Close closes the files that WithLocalBase opened. Other readers need no Close.
func (r *Reader) Close() error {
	var all error
	for _, f := range r.local {
		all = errors.Join(all, f.Close())
	}
	return all
}
