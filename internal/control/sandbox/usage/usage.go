// Package usage shows what hosts and guests measure in the words of the API.
package usage

import (
	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// Host returns what a machine uses of its host.
func Host(u hostapi.Usage) api.Usage {
	return api.Usage{
		PID:            u.PID,
		UptimeSeconds:  u.Uptime.Seconds(),
		HostCPUPercent: u.CPUPercent,
		HostCPUSeconds: u.CPU.Seconds(),
		HostRSSBytes:   u.RSSBytes,
		HostPSSBytes:   u.PSSBytes,
		HostVSZBytes:   u.VSZBytes,
		Threads:        u.Threads,
		HostDiskBytes:  u.DiskBytes,

		HostReadBytes:    u.ReadBytes,
		HostWrittenBytes: u.WrittenBytes,
	}
}

// Guest returns what a guest says of itself.
func Guest(st guestapi.Stats) *api.GuestStats {
	return &api.GuestStats{
		MemTotalBytes:     st.MemTotal,
		MemAvailableBytes: st.MemAvailable,
		MemCachedBytes:    st.MemCached,
		DiskTotalBytes:    st.DiskTotal,
		DiskUsedBytes:     st.DiskUsed,
		CPUs:              st.CPUs,
		CPUBusySeconds:    st.CPUBusy.Seconds(),
		Load1:             st.Load1,
		UptimeSeconds:     st.Uptime.Seconds(),
		Processes:         st.Processes,
		NetRxBytes:        st.NetRx,
		NetTxBytes:        st.NetTx,
	}
}
