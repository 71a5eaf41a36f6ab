package durable

import (
	"errors"
	"syscall"
)

// IsNoSpace reports whether err says that a file system, or a quota on it, is full.
func IsNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
