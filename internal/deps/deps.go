// Package deps keeps dependencies in go.mod while packages that use them are being written.
package deps

import (
	_ "github.com/google/go-containerregistry/pkg/registry"
	_ "github.com/google/go-containerregistry/pkg/v1/remote"
	_ "github.com/hanwen/go-fuse/v2/fs"
	_ "github.com/moby/buildkit/frontend/dockerfile/instructions"
	_ "github.com/moby/buildkit/frontend/dockerfile/parser"
	_ "github.com/moby/buildkit/frontend/dockerfile/shell"
	_ "github.com/moby/patternmatcher"
	_ "github.com/moby/patternmatcher/ignorefile"
	_ "github.com/Microsoft/hcsshim/ext4/tar2ext4"
)
