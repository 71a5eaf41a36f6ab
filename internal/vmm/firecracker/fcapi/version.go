package fcapi

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
)

// Version is a release of Firecracker.
type Version struct{ Major, Minor, Patch int }

var versionWords = regexp.MustCompile(`v?([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,4})`)

// ParseVersion returns the first version in a text such as the output of `firecracker --version`.
// It ignores a suffix such as "-dev".
func ParseVersion(text string) (Version, error) {
	m := versionWords.FindStringSubmatch(text)
	if m == nil {
		return Version{}, fmt.Errorf("no version in %q", text[:min(len(text), 80)])
	}
	var v Version
	for i, to := range []*int{&v.Major, &v.Minor, &v.Patch} {
		*to, _ = strconv.Atoi(m[i+1]) // the expression matches only digits
	}
	return v, nil
}

// Compare returns -1, 0 or 1 if v is older than, equal to or newer than w.
func (v Version) Compare(w Version) int {
	return cmp.Or(cmp.Compare(v.Major, w.Major), cmp.Compare(v.Minor, w.Minor), cmp.Compare(v.Patch, w.Patch))
}

// AtLeast reports whether v is at least major.minor.
func (v Version) AtLeast(major, minor int) bool { return v.Compare(Version{major, minor, 0}) >= 0 }

// String returns the version as "1.15.1".
func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch) }
