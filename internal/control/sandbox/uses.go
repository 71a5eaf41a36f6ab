package sandbox

import "github.com/pandastack/pandastack/internal/control/quota"

// usesOf returns what a sandbox uses of the quotas of its workspace while it runs.
func usesOf(r *record) []quota.Amount {
	disk := int64(r.DiskMiB) * quota.MiB
	for _, d := range r.DataDisks {
		disk += int64(d.SizeMB) * quota.MiB
	}
	return append(runningUses(r), quota.Amount{Kind: quota.Sandboxes, N: 1}, quota.Amount{Kind: quota.Disk, N: disk})
}

// runningUses returns what a hibernated sandbox does not use.
func runningUses(r *record) []quota.Amount {
	return []quota.Amount{
		{Kind: quota.VCPUs, N: int64(r.VCPUs)}, {Kind: quota.Memory, N: int64(r.MemoryMiB) * quota.MiB},
		{Kind: quota.DiskUsed, N: 1}, // what it will write is not known
	}
}

// largestSnapshot returns the most bytes that a snapshot of a sandbox can have.
func largestSnapshot(r *record) int64 {
	size := int64(r.MemoryMiB+r.DiskMiB) * quota.MiB
	for _, d := range r.DataDisks {
		size += int64(d.SizeMB) * quota.MiB
	}
	for _, v := range r.Volumes {
		size += int64(v.SizeMB) * quota.MiB
	}
	return size
}
