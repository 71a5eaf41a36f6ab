//go:build !amd64

package tsc

const has = false

func read() uint64 { return 0 }
