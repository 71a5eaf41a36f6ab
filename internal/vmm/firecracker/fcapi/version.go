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

// ParseVersion finds the first version in a text such as what `firecracker --version` prints. A suffix
// ("-dev") is not looked at.
func ParseVersion(text string) (Version, error) {
	m := versionWords.FindStringSubmatch(text)
	if m == nil {
		return Version{}, fmt.Errorf("no version in %q", text[:min(len(text), 80)])
	}
	var v Version
	for i, to := range []*int{&v.Major, &v.Minor, &v.Patch} {
		*to, _ = strconv.Atoi(m[i+1]) // digits by the expression
	}
	return v, nil
}

// Compare is negative for an older v, 0 for the same, positive for a newer one.
func (v Version) Compare(w Version) int {
	return cmp.Or(cmp.Compare(v.Major, w.Major), cmp.Compare(v.Minor, w.Minor), cmp.Compare(v.Patch, w.Patch))
}

// AtLeast tells whether v is major.minor or newer.
func (v Version) AtLeast(major, minor int) bool { return v.Compare(Version{major, minor, 0}) >= 0 }

func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch) }
