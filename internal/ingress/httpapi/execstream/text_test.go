package execstream_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/execstream"
)

func TestTextNeverSplitsACharacter(t *testing.T) {
	const all = "aé€😀z\xff\xe2\x82b\xf0\x9f"
	want := "aé€😀z\uFFFD\uFFFD\uFFFDb\uFFFD\uFFFD"
	for size := 1; size <= len(all); size++ {
		var x execstream.TextDecoder
		var got strings.Builder
		for i := 0; i < len(all); i += size {
			s := x.Decode([]byte(all[i:min(i+size, len(all))]))
			if !utf8.ValidString(s) {
				t.Fatalf("Decode() in pieces of %d = %q, want valid UTF-8", size, s)
			}
			got.WriteString(s)
		}
		got.WriteString(x.Flush())
		if got.String() != want {
			t.Errorf("text decoded in pieces of %d is %q, want %q", size, got.String(), want)
		}
	}
}

// Bytes that are split in two places decode to valid UTF-8, and valid text is unchanged.
func FuzzText(f *testing.F) {
	f.Add([]byte("aé€😀"), 2, 5)
	f.Add([]byte("\xf0\x9f\x98\xff\xe2"), 1, 3)
	f.Fuzz(func(t *testing.T, p []byte, a, b int) {
		a, b = clamp(a, 0, len(p)), clamp(b, 0, len(p))
		a, b = min(a, b), max(a, b)
		var x execstream.TextDecoder
		got := x.Decode(p[:a]) + x.Decode(p[a:b]) + x.Decode(p[b:]) + x.Flush()
		if !utf8.ValidString(got) {
			t.Errorf("decoded text %q is not valid UTF-8", got)
		}
		if utf8.Valid(p) && got != string(p) {
			t.Errorf("decoded text is %q, want %q", got, p)
		}
	})
}

func clamp(n, low, high int) int { return min(max(n, low), high) }

func TestOffsets(t *testing.T) {
	if o, err := execstream.ParseOffsets("1-22-3"); err != nil ||
		o != (guestapi.Offsets{Stdout: 1, Stderr: 22, PTY: 3}) {
		t.Errorf("ParseOffsets() = %+v, %v", o, err)
	}
	if o, err := execstream.ParseOffsets(""); err != nil || o != (guestapi.Offsets{}) {
		t.Errorf("ParseOffsets(empty) = %+v, %v, want the beginning", o, err)
	}
	for _, s := range []string{"1", "1-2", "1-2-3-4", "-1-2-3", "a-b-c", "1-2-3x", " 1-2-3", "01-2-3",
		"99999999999999999999-0-0"} {
		if _, err := execstream.ParseOffsets(s); err == nil {
			t.Errorf("ParseOffsets(%q) = no error, want one", s)
		}
	}
}

// Offsets that parse are formatted to the same text.
func FuzzOffsets(f *testing.F) {
	f.Add("1-2-3")
	f.Fuzz(func(t *testing.T, s string) {
		o, err := execstream.ParseOffsets(s)
		if err == nil && (o.Stdout < 0 || o.Stderr < 0 || o.PTY < 0) {
			t.Errorf("ParseOffsets(%q) = %+v, want offsets that format to the same text", s, o)
		}
	})
}
