package api

// MaxLimit is the largest number in Limits.
const MaxLimit = 1_000_000

// Limits bound the I/O of a sandbox per second, and its connections.
//
// A limit that is absent or 0 is the server's, if the server has one. No limit may be wider than the server's.
type Limits struct {
	DiskMiB        int `json:"disk_mib,omitempty" doc:"MiB read from and written to each disk per second."`
	DiskOps        int `json:"disk_ops,omitempty" doc:"Reads and writes of each disk per second."`
	NetworkInMbit  int `json:"network_in_mbit,omitempty" doc:"Mbit per second to the sandbox."`
	NetworkOutMbit int `json:"network_out_mbit,omitempty" doc:"Mbit per second from the sandbox."`
	Connections    int `json:"connections,omitempty" doc:"Connections that the sandbox opened, at once."`
	NewConnections int `json:"new_connections,omitempty" doc:"Connections that the sandbox opens per second."`
}

// IsZero reports whether no limit is set.
func (l Limits) IsZero() bool { return l == Limits{} }

// validate checks the limits on their own, not against the server's.
func (l *Limits) validate() error {
	if l == nil {
		return nil
	}
	for _, f := range []struct {
		name  string
		value int
	}{
		{"disk_mib", l.DiskMiB},
		{"disk_ops", l.DiskOps},
		{"network_in_mbit", l.NetworkInMbit},
		{"network_out_mbit", l.NetworkOutMbit},
		{"connections", l.Connections},
		{"new_connections", l.NewConnections},
	} {
		if f.value < 0 || f.value > MaxLimit {
			return invalid("limits."+f.name, "%d is out of range: use up to %d, or leave it out", f.value, MaxLimit)
		}
	}
	return nil
}
