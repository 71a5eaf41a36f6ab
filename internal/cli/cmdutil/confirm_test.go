package cmdutil_test

import (
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/cli/cmdutil"
)

func TestConfirm(t *testing.T) {
	for text, want := range map[string]bool{
		"y\n": true, "YES\n": true, " yes": true, "n\n": false, "\n": false, "": false, "yess\n": false,
		"x\ny\n": false,
	} {
		var out strings.Builder
		if got := cmdutil.Confirm(strings.NewReader(text), &out, "Delete?"); got != want {
			t.Errorf("Confirm(%q) = %v, want %v", text, got, want)
		}
		if out.String() != "Delete? [y/N] " {
			t.Errorf("the question is %q", out.String())
		}
	}
}
