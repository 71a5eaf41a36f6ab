package page_test

import (
	"testing"

	"github.com/pandastack/pandastack/internal/control/page"
)

// FuzzCursor: what is taken for a cursor says where a page begins, and one that was given is taken for what it is.
func FuzzCursor(f *testing.F) {
	f.Add("", int64(1), "sbx")
	f.Add("MS5zYng", int64(-1), "a.b")
	f.Fuzz(func(t *testing.T, text string, at int64, name string) {
		var created int64
		var id string
		if _, err := page.Parse(1, text, &created, &id); err == nil && text != "" && id == "" {
			t.Errorf("%q is taken for a cursor and begins nowhere", text)
		}
		if _, err := page.Parse(1, page.Cursor(at, name), &created, &id); err == nil && (created != at || id != name) {
			t.Errorf("the cursor of %d, %q is read as %d, %q", at, name, created, id)
		}
	})
}
