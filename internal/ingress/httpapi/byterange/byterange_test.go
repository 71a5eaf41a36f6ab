package byterange

import "testing"

func TestRanges(t *testing.T) {
	for _, tt := range []struct {
		header         string
		size           int64
		ok             bool
		offset, length int64
	}{
		{"bytes=0-0", 10, true, 0, 1},
		{"bytes=2-5", 10, true, 2, 4},
		{"bytes=2-", 10, true, 2, 8},
		{"bytes=2-99", 10, true, 2, 8},
		{"bytes=-3", 10, true, 7, 3},
		{"bytes=-99", 10, true, 0, 10},
		{"bytes=10-", 10, true, 10, 0},
		{"bytes=0-", 0, true, 0, 0},
		{"bytes=-0", 10, false, 0, 0},
		{"bytes=5-2", 10, false, 0, 0},
		{"bytes=1-2,4-5", 10, false, 0, 0},
		{"bytes=a-b", 10, false, 0, 0},
		{"bytes=", 10, false, 0, 0},
		{"rows=1-2", 10, false, 0, 0},
		{"bytes=99999999999999999999-", 10, false, 0, 0},
	} {
		r, ok := Parse(tt.header)
		if ok != tt.ok {
			t.Errorf("Parse(%q) parsed %v, want %v", tt.header, ok, !ok)
			continue
		}
		if offset, length := r.Resolve(tt.size); ok && (offset != tt.offset || length != tt.length) {
			t.Errorf("%s of %d: got %d and %d, want %d and %d",
				tt.header, tt.size, offset, length, tt.offset, tt.length)
		}
	}
}

// FuzzParse checks that a parsed range lies within the file.
func FuzzParse(f *testing.F) {
	f.Add("bytes=1-2", int64(5))
	f.Add("bytes=-5", int64(3))
	f.Fuzz(func(t *testing.T, header string, size int64) {
		r, ok := Parse(header)
		if size = max(size, 0); !ok {
			return
		}
		if offset, length := r.Resolve(size); offset < 0 || length < 0 || offset+length > size {
			t.Errorf("%q of %d: got offset %d and length %d, want them within the file", header, size, offset, length)
		}
	})
}
