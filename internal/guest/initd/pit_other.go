//go:build !amd64

package initd

// StopIntervalTimer does nothing: only amd64 has this timer.
func StopIntervalTimer() error { return nil }
