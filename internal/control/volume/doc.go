// Package volume keeps volumes: disks that outlive sandboxes, their snapshots, and their backups in the object store.
//
// It owns the rows of volumes, of their snapshots and backups, and the volumes of hosts that have these rows' ids. It
// knows hosts only through hostapi, and no content: file systems are read by hidden machines (package helper) and by
// the sandboxes that have them, never in this process. Who may write to a volume is decided by package lease, in the
// transactions of those who write.
//
// Every operation writes its intent before it touches a host, and ends in one transaction. Reconcile, which Run calls
// all the time, compares rows with hosts and finishes or undoes what a process that was killed, or a host that could
// not be reached, left behind: it takes no input, so it may run at any moment and as often as wanted.
//
// A volume's id on its host changes when its content is replaced by that of a snapshot or a backup: the new content is
// complete before one transaction exchanges the two.
//
// All methods may be called concurrently. Operations on one volume wait for each other.
package volume
