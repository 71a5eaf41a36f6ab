package chunk

import (
	"cmp"
	"iter"
	"slices"
)

// end is the page behind an extent.
func (e Extent) end() int64 { return e.Page + int64(e.Count) }

// first is the index of the first extent that ends behind page.
func (f File) first(page int64) int {
	i, _ := slices.BinarySearchFunc(f.Extents, page, func(e Extent, page int64) int {
		return cmp.Compare(e.end(), page+1)
	})
	return i
}

// within gives the parts of extents that lie in pages from first on and before end.
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
