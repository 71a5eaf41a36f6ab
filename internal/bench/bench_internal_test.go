package bench

import (
	"slices"
	"testing"
)

func TestTemplates(t *testing.T) {
	for _, c := range []struct {
		only, want []string
	}{
		{nil, []string{"base", "mini", "mini.1g", "code-interpreter", "browser", "postgres-16"}},
		{[]string{"runc", "pager", "oci_import"}, nil},
		{[]string{"idle"}, []string{"base"}},
		{[]string{"first_screenshot", "first_cell"}, []string{"code-interpreter", "browser"}},
		{[]string{"hibernate", "first_cell"}, []string{"base", "mini", "mini.1g", "code-interpreter"}},
	} {
		got := Options{Template: "base", Sizes: []string{"mini", "mini.1g"}, Only: c.only}.Templates()
		if !slices.Equal(got, c.want) {
			t.Errorf("Templates() = %v for the groups %v, want %v", got, c.only, c.want)
		}
	}
}

func TestOptional(t *testing.T) {
	o := Options{Template: "base", Sizes: []string{"mini", "browser"}}
	for template, want := range map[string]bool{
		"base": false, "mini": false, "code-interpreter": true,
		"browser": false, // the fork series need it, too
	} {
		if got := o.Optional(template); got != want {
			t.Errorf("Optional(%s) = %v, want %v", template, got, want)
		}
	}
}
