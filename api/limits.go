package api

// MaxLimit is the largest number in Limits.
const MaxLimit = 1_000_000

// Limits bound what a sandbox may move each second; a limit that is absent or 0 is the server's, if that has one. None
// may be wider than the server's.
type Limits struct {
	DiskMiB        int `json:"disk_mib,omitempty" doc:"MiB that may be read from and written to each disk a second."`
	DiskOps        int `json:"disk_ops,omitempty" doc:"Reads and writes of each disk a second."`
	NetworkInMbit  int `json:"network_in_mbit,omitempty" doc:"Mbit a second that may go to the sandbox."`
	NetworkOutMbit int `json:"network_out_mbit,omitempty" doc:"Mbit a second that may come from the sandbox."`
}

// IsZero tells whether there is no limit.
func (l Limits) IsZero() bool { return l == Limits{} }

// validate checks limits by themselves: what the server allows is for others to say.
func (l *Limits) validate() error {
	if l == nil {
		return nil
	}
	for _, f := range []struct {
		name  string
		value int
	}{{"disk_mib", l.DiskMiB}, {"disk_ops", l.DiskOps}, {"network_in_mbit", l.NetworkInMbit}, {"network_out_mbit", l.NetworkOutMbit}} {
		if f.value < 0 || f.value > MaxLimit {
			return invalid("limits."+f.name, "%d is out of range: use up to %d, or leave it out", f.value, MaxLimit)
		}
	}
	return nil
}
