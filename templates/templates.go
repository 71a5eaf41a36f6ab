// Package templates holds the recipes that come with the program, one directory each.
//
// It owns nothing but the files; internal/image/recipe gives them their meaning.
package templates

import "embed"

// Files holds <name>/recipe.yaml of every template, and the files beside it that the recipe uses.
//
//go:embed */*
var Files embed.FS
