package execstream

import (
	"strings"
	"testing"
)

func TestAppended(t *testing.T) {
	for _, tt := range []struct{ name, seen, now, want string }{
		{"first", "", "abc", "abc"},
		{"same", "abc", "abc", ""},
		{"grown", "abc", "abcd", "d"},
		{"shifted", "abcdef", "defgh", "gh"},
		{"all-new", "abc", "xyz", "xyz"},
		{"repeating", "aaaa", "aaab", "b"},
		{"ends-inside", "xabab", "ababc", "c"},
		{"shrunk", "abcd", "cd", ""},
		{"empty", "abc", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := appended(tt.seen, tt.now); got != tt.want {
				t.Errorf("appended(%q, %q) = %q, want %q", tt.seen, tt.now, got, tt.want)
			}
		})
	}
}

// The fast search finds what a plain search finds.
func FuzzAppended(f *testing.F) {
	f.Add("abcab", "cabx")
	f.Fuzz(func(t *testing.T, seen, now string) {
		want := now
		for k := min(len(seen), len(now)); k >= 0; k-- {
			if strings.HasSuffix(seen, now[:k]) {
				want = now[k:]
				break
			}
		}
		if strings.HasPrefix(now, seen) {
			want = now[len(seen):]
		}
		if got := appended(seen, now); got != want {
			t.Errorf("appended(%q, %q) = %q, want %q", seen, now, got, want)
		}
	})
}
