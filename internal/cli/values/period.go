// Package values parses and prints values of the command line: durations, limits.
package values

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Period parses a duration that may also be in days, such as 90d.
func Period(flag, text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n >= 0 && n <= 36500 {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("--%s: %q is not a duration such as 90d or 12h", flag, text)
	}
	return d, nil
}
