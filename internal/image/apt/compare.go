package apt

import "strings"

// Compare compares two Debian versions as described in deb-version(7). It returns a negative number if a is older
// than b.
func Compare(a, b string) int {
	ea, va, ra := split(a)
	eb, vb, rb := split(b)
	if c := part(ea, eb); c != 0 {
		return c
	}
	if c := part(va, vb); c != 0 {
		return c
	}
	return part(ra, rb)
}

// split returns epoch, upstream version and revision.
func split(v string) (epoch, upstream, revision string) {
	epoch, upstream, ok := strings.Cut(v, ":")
	if !ok {
		epoch, upstream = "0", v
	}
	if i := strings.LastIndexByte(upstream, '-'); i >= 0 {
		return epoch, upstream[:i], upstream[i+1:]
	}
	return epoch, upstream, "0"
}

// part compares alternating runs of other characters and of digits.
func part(a, b string) int {
	for a != "" || b != "" {
		for a != "" && !digit(a[0]) || b != "" && !digit(b[0]) {
			if c := weight(a) - weight(b); c != 0 {
				return c
			}
			a, b = a[1:], b[1:]
		}
		var na, nb string
		na, a = number(a)
		nb, b = number(b)
		if c := len(na) - len(nb); c != 0 {
			return c
		}
		if c := strings.Compare(na, nb); c != 0 {
			return c
		}
	}
	return 0
}

// weight orders the first character: a tilde before the end, the end and digits before letters, letters before the
// rest.
func weight(s string) int {
	switch {
	case s == "" || digit(s[0]):
		return 0
	case s[0] == '~':
		return -1
	case s[0] >= 'a' && s[0] <= 'z' || s[0] >= 'A' && s[0] <= 'Z':
		return int(s[0])
	}
	return int(s[0]) + 256
}

// number splits off the leading digits, without leading zeros.
func number(s string) (n, rest string) {
	i := 0
	for i < len(s) && digit(s[i]) {
		i++
	}
	return strings.TrimLeft(s[:i], "0"), s[i:]
}

func digit(c byte) bool { return c >= '0' && c <= '9' }
