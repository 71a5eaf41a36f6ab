package chunkstore

import (
	"cmp"
	"iter"
	"slices"
)

// end returns the page after an extent.
func (e Extent) end() int64 { return e.Page + int64(e.Count) }

// first returns the index of the first extent that ends after page.
func (f File) first(page int64) int {
	i, _ := slices.BinarySearchFunc(f.Extents, page, func(e Extent, page int64) int {
		return cmp.Compare(e.end(), page+1)
	})
	return i
}

// within yields the parts of extents in the pages from first up to end.
func (f File) within(first, end int64) iter.Seq[Extent] {
	return func(yield func(Extent) bool) {
		if first >= end {
			return
		}
		for _, e := range f.Extents[f.first(first):] {
			if e.Page >= end {
				return
			}
			if cut := first - e.Page; cut > 0 {
				e.Page, e.Count, e.At = first, e.Count-int(cut), e.At+int(cut)
			}
			if over := e.end() - end; over > 0 {
				e.Count -= int(over)
			}
			if !yield(e) {
				return
			}
		}
	}
}

// cut returns the part of an extent in the pages from first up to end, which are inside it, or nothing if
// there are no such pages.
func (e Extent) cut(first, end int64) []Extent {
	if first >= end {
		return nil
	}
	return []Extent{{Page: first, Count: int(end - first), Chunk: e.Chunk, At: e.At + int(first-e.Page)}}
}

// shared yields the parts of an extent of m that the file was of another manifest has at the same position of
// the same chunk: their content is equal.
func shared(m *Manifest, e Extent, was File, of *Manifest) iter.Seq[Extent] {
	return func(yield func(Extent) bool) {
		name := m.Chunks[e.Chunk].Name
		for o := range was.within(e.Page, e.end()) {
			if of.Chunks[o.Chunk].Name != name || o.At != e.At+int(o.Page-e.Page) {
				continue
			}
			if !yield(o) {
				return
			}
		}
	}
}
