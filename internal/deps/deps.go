// Package deps keeps dependencies in go.mod while packages that use them are being written.
package deps

import (
	_ "github.com/hanwen/go-fuse/v2/fs"
)
