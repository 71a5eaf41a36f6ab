// Package templates holds the recipes that come with the program, one directory each.
//
// It owns nothing but the files; internal/recipe gives them their meaning.
package templates

import "embed"

// Files holds <name>/recipe.yaml of every template.
//
//go:embed */recipe.yaml
var Files embed.FS
