// Package templates holds the recipes that come with the program, one directory each.
//
// It contains only the files; package internal/image/recipe defines their format.
package templates

import "embed"

// Files holds <name>/recipe.yaml of every template, and the files beside it that the recipe uses.
//
//go:embed */*
var Files embed.FS
