package hostapi

import "fmt"

// Limits are limits of a machine's disk and network traffic per second, and of its connections.
//
// 0 is the host's limit, if any.
type Limits struct {
	DiskMiB        int `json:"disk_mib,omitempty"` // read from and written to each disk
	DiskOps        int `json:"disk_ops,omitempty"` // reads and writes of each disk
	NetworkInMbit  int `json:"network_in_mbit,omitempty"`
	NetworkOutMbit int `json:"network_out_mbit,omitempty"`
	Connections    int `json:"connections,omitempty"` // that the guest opened, at once
	NewConnections int `json:"new_connections,omitempty"`
}

// boundPair is one limit of two Limits, with its name in requests.
type boundPair struct {
	name    string
	own, of *int
}

func (l *Limits) pairs(o *Limits) []boundPair {
	return []boundPair{
		{"disk_mib", &l.DiskMiB, &o.DiskMiB}, {"disk_ops", &l.DiskOps, &o.DiskOps},
		{"network_in_mbit", &l.NetworkInMbit, &o.NetworkInMbit},
		{"network_out_mbit", &l.NetworkOutMbit, &o.NetworkOutMbit},
		{"connections", &l.Connections, &o.Connections}, {"new_connections", &l.NewConnections, &o.NewConnections},
	}
}

// ClampTo returns l, with the host's limits where l has none or wider ones.
func (l Limits) ClampTo(host Limits) Limits {
	for _, p := range l.pairs(&host) {
		if *p.of > 0 && (*p.own <= 0 || *p.own > *p.of) {
			*p.own = *p.of
		}
	}
	return l
}

// WithDefaults returns l, with the limits of o where l has none.
func (l Limits) WithDefaults(o Limits) Limits {
	for _, p := range l.pairs(&o) {
		if *p.own == 0 {
			*p.own = *p.of
		}
	}
	return l
}

// DropAbove returns l without the limits that are wider than the host's.
func (l Limits) DropAbove(host Limits) Limits {
	for _, p := range l.pairs(&host) {
		if *p.of > 0 && *p.own > *p.of {
			*p.own = 0
		}
	}
	return l
}

// Check returns a *LimitError for the first limit that is negative or wider than the host's.
func (l Limits) Check(host Limits) error {
	for _, p := range l.pairs(&host) {
		if *p.own < 0 || *p.of > 0 && *p.own > *p.of {
			return &LimitError{Field: p.name, Asked: *p.own, Host: *p.of}
		}
	}
	return nil
}

// LimitError says which limit of a machine the host does not allow.
type LimitError struct {
	Field       string // as in requests
	Asked, Host int    // Host 0: any positive number
}

// Error implements error.
func (e *LimitError) Error() string {
	if e.Host == 0 {
		return fmt.Sprintf("limits.%s: %d is negative: use 0 for as much as the host allows", e.Field, e.Asked)
	}
	return fmt.Sprintf(
		"limits.%s: %d is more than the %d of this host: use up to %d, or leave it out",
		e.Field,
		e.Asked,
		e.Host,
		e.Host,
	)
}

// Unwrap returns ErrInvalid.
func (e *LimitError) Unwrap() error { return ErrInvalid }
