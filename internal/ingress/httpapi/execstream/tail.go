package execstream

import "strings"

// Tail follows a growing text of which only the end is kept. It belongs to one goroutine.
type Tail struct{ seen, part string }

// Partial returns the line that is not complete yet, or "".
func (t *Tail) Partial() string { return t.part }

// Lines returns the complete lines that are new in now.
func (t *Tail) Lines(now string) []string {
	t.part += appended(t.seen, now)
	t.seen = now
	parts := strings.Split(t.part, "\n")
	t.part = parts[len(parts)-1]
	return parts[:len(parts)-1]
}

// appended returns what was added between two looks at the end of a growing text: the part of now behind its longest
// beginning that is an end of seen.
func appended(seen, now string) string {
	if seen == now {
		return ""
	}
	if strings.HasPrefix(now, seen) {
		return now[len(seen):]
	}
	// The failure function of Knuth, Morris and Pratt for now, run over seen, ends at the overlap.
	next := make([]int, len(now)+1)
	for i, k := 1, 0; i < len(now); i++ {
		for k > 0 && now[i] != now[k] {
			k = next[k]
		}
		if now[i] == now[k] {
			k++
		}
		next[i+1] = k
	}
	k := 0
	for i := range len(seen) {
		for k > 0 && (k == len(now) || seen[i] != now[k]) {
			k = next[k]
		}
		if k < len(now) && seen[i] == now[k] {
			k++
		}
	}
	return now[k:]
}
