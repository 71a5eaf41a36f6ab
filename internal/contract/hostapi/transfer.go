package hostapi

import (
	"context"
	"time"
)

// SnapshotTransfer is what a host does to move snapshots to other hosts, through the object store that they share. A
// workspace is who a snapshot belongs to: what is stored is encrypted for it, and nothing of it can be read
// with, or learned from, another's. Without an object store every call answers ErrUnsupported.
type SnapshotTransfer interface {
	// PushSnapshot puts a snapshot of this host into the object store, under its id. Of what it grew from,
	// as far as that is in the store, only the difference is uploaded; a template is pushed on the way. One
	// that is there already is fine. After an error nothing of it is to be seen in the store.
	PushSnapshot(ctx context.Context, workspace string, id SnapshotID) (PushResult, error)
	// PullSnapshot makes a snapshot of the object store one of this host, under its id; one that is here
	// already is fine. labels are put over those it has. ErrNotFound: it was not pushed. ErrUnsupported: this host cannot restore it, and the
	// text says why. ErrInvalid: what is stored is not what was pushed, or is another workspace's. After an
	// error nothing is left.
	PullSnapshot(ctx context.Context, workspace string, id SnapshotID, labels map[string]string) (PullResult, error)
	// StreamSnapshot is PullSnapshot that answers as soon as machines can be created from the snapshot: what
	// they use comes when they use it, or ahead when earlier ones used it, and the rest in the background.
	// A machine whose content does not come any more fails with the reason. Until all of it is here, a fork,
	// snapshot or hibernation of such a machine waits, and an end of the host agent ends the machine.
	StreamSnapshot(ctx context.Context, workspace string, id SnapshotID, labels map[string]string) (PullResult, error)
	// DeletePushed removes a snapshot from the object store; one that is not there is fine. Hosts that have
	// it keep it, and machines that are being started from the store have time to end that.
	DeletePushed(ctx context.Context, workspace string, id SnapshotID) error
}

// PushResult tells what a push did.
type PushResult struct {
	Bytes    int64 // of content that was not in the store, before compression
	Uploaded int64 // bytes sent to the store, those of a template that was not there included
	Stored   int64 // bytes that the snapshot takes in the store, shared ones included
	Took     time.Duration
}

// PullResult tells what a pull did.
type PullResult struct {
	Snapshot Snapshot
	Env      map[string]string // of the machine it was taken of
	User     string
	Workdir  string
	Fetched  int64 // bytes read from the store
	Took     time.Duration
}
