package hostapi

import (
	"context"
	"time"
)

// SnapshotTransfer is the part of a Host that moves snapshots through a shared object store.
//
// A snapshot belongs to a workspace: what is stored is encrypted for it, and nothing of it can be read with, or
// learned from, another workspace's. Without an object store every call is ErrUnsupported.
type SnapshotTransfer interface {
	// PushSnapshot uploads a snapshot of this host under its id. If the snapshot it derives from is in the object
	// store, only the difference is uploaded; a template is pushed on the way. Pushing again is no error. After an
	// error nothing of it is visible in the store.
	PushSnapshot(ctx context.Context, workspace string, id SnapshotID) (PushResult, error)
	// PullSnapshot downloads a snapshot from the object store to this host, under its id. If the host has it, that
	// is no error. labels are added to its own and win over them. ErrNotFound: it was not pushed. ErrUnsupported:
	// this host cannot restore it, and the text says why. ErrInvalid: what is stored is not what was pushed, or is
	// another workspace's. After an error nothing is left.
	PullSnapshot(ctx context.Context, workspace string, id SnapshotID, labels map[string]string) (PullResult, error)
	// StreamSnapshot is PullSnapshot, but returns as soon as machines can be created from the snapshot. Content is
	// fetched when a machine uses it, ahead of that if earlier machines used it, and otherwise in the background. A
	// machine whose content can no longer be fetched fails with the reason. Until all content is local, forks,
	// snapshots and hibernations of such a machine wait, and the end of the host agent ends the machine.
	StreamSnapshot(ctx context.Context, workspace string, id SnapshotID, labels map[string]string) (PullResult, error)
	// DeletePushed removes a snapshot from the object store. An unknown id is no error. Hosts that have the snapshot
	// keep it, and machines that are being started from the store have time to finish.
	DeletePushed(ctx context.Context, workspace string, id SnapshotID) error
}

// PushResult is the result of a push.
type PushResult struct {
	Bytes    int64 // of content that was not in the store, before compression
	Uploaded int64 // bytes sent to the store, including those of a template that it did not have
	Stored   int64 // bytes that the snapshot uses in the store, including shared ones
	Took     time.Duration
}

// PullResult is the result of a pull.
type PullResult struct {
	Snapshot Snapshot
	Env      map[string]string // of the machine it was taken of
	User     string
	Workdir  string
	Fetched  int64 // bytes read from the store
	Took     time.Duration
}
