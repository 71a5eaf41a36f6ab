package checkpoint

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
)

// memory is a file in memory.
type memory []byte

func (m memory) WriteAt(p []byte, off int64) (int, error) { return copy(m[off:], p), nil }

// TestXORDelta checks that decoding returns what was encoded, in any order of pieces. Pages equal
// to the base are not encoded, and in the others only the changed bytes are not zero.
func TestXORDelta(t *testing.T) {
	const start = 1 << 40
	at := func(page int) uint64 { return start + uint64(page)*pageSize }
	cp := &Checkpoint{Bytes: 60 * pageSize, VMAs: []VMA{
		{Start: at(0), End: at(40), Backing: Stored, Offset: 20 * pageSize},
		{Start: at(40), End: at(44), Backing: Zero},
		{Start: at(50), End: at(70), Backing: Stored},
		{Start: at(70), End: at(80), Backing: Mapped},
	}}
	random := rand.New(rand.NewPCG(1, 2))
	below := make([]byte, cp.Bytes)
	for i := range below {
		below[i] = byte(random.Uint32())
	}
	stored := func(page int) []byte { // content of the base for a page; nil: none
		switch {
		case page < 40:
			return below[(20+page)*pageSize:][:pageSize]
		case page >= 50 && page < 70:
			return below[(page-50)*pageSize:][:pageSize]
		}
		return nil
	}
	spans := []Span{{at(1), at(43)}, {at(50), at(51)}, {at(60), at(75)}}
	equal := map[int]bool{1: true, 20: true, 21: true, 50: true, 69: true}
	var over []byte
	var want []Span // without the pages equal to the base
	for _, s := range spans {
		for page := int((s.Start - start) / pageSize); at(page) < s.End; page++ {
			content := make([]byte, pageSize)
			copy(content, stored(page))
			if !equal[page] {
				content[page] ^= 0xff
				if n := len(want); n > 0 && want[n-1].End == at(page) {
					want[n-1].End = at(page + 1)
				} else {
					want = append(want, Span{at(page), at(page + 1)})
				}
			}
			over = append(over, content...)
		}
	}
	var packed bytes.Buffer
	got, err := NewXORDelta(cp, spans, bytes.NewReader(below)).Encode(&packed, bytes.NewReader(over), spans)
	if err != nil || len(got) != len(want) {
		t.Fatalf("Encode() = %x, %v; want %x", got, err, want)
	}
	for i, s := range got {
		if s != want[i] {
			t.Errorf("got span %x, want %x", s, want[i])
		}
	}
	pages := len(over)/pageSize - len(equal)
	if packed.Len() != pages*pageSize || packed.Len()-bytes.Count(packed.Bytes(), []byte{0}) != pages {
		t.Errorf("got %d bytes with %d that are not zero, want %d pages with one each",
			packed.Len(), packed.Len()-bytes.Count(packed.Bytes(), []byte{0}), pages)
	}

	back := make(memory, packed.Len())
	to := NewXORDelta(cp, got, bytes.NewReader(below)).Decoder(back)
	cuts := []int{0, 1, pageSize, 5*pageSize + 7, 30 * pageSize, packed.Len()}
	for _, i := range random.Perm(len(cuts) - 1) {
		if n, err := to.WriteAt(packed.Bytes()[cuts[i]:cuts[i+1]], int64(cuts[i])); err != nil ||
			n != cuts[i+1]-cuts[i] {
			t.Fatalf("WriteAt() = %d, %v; want %d, nil", n, err, cuts[i+1]-cuts[i])
		}
	}
	rest := over
	for _, s := range spans {
		for page := int((s.Start - start) / pageSize); at(page) < s.End; page++ {
			if !equal[page] {
				if !bytes.Equal(back[:pageSize], rest[:pageSize]) {
					t.Errorf("decoded page %d differs from the encoded one", page)
				}
				back = back[pageSize:]
			}
			rest = rest[pageSize:]
		}
	}
}

// cutShort is a base that ends too early.
type cutShort struct{}

var errCut = errors.New("cut short")

func (cutShort) ReadAt([]byte, int64) (int, error) { return 0, errCut }

// TestXORDeltaReadError checks that an unreadable base is an error for encoding and decoding.
func TestXORDeltaReadError(t *testing.T) {
	const start = 1 << 40
	cp := &Checkpoint{Bytes: pageSize, VMAs: []VMA{{Start: start, End: start + pageSize, Backing: Stored}}}
	spans := []Span{{start, start + pageSize}}
	page := bytes.NewReader(make([]byte, pageSize))
	if _, err := NewXORDelta(cp, spans, cutShort{}).Encode(&bytes.Buffer{}, page, spans); !errors.Is(err, errCut) {
		t.Errorf("Encode() = %v, want the read error", err)
	}
	if _, err := NewXORDelta(cp, spans, page).Encode(&bytes.Buffer{}, cutShort{}, spans); !errors.Is(err, errCut) {
		t.Errorf("Encode() = %v, want the read error", err)
	}
	if n, err := NewXORDelta(cp, spans, cutShort{}).Decoder(make(memory, pageSize)).WriteAt(make([]byte, 10),
		5); n != 0 ||
		!errors.Is(err, errCut) {
		t.Errorf("WriteAt() = %d, %v; want the read error", n, err)
	}
}
