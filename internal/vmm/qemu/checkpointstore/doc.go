// Package checkpointstore stores monitor checkpoints in VM images and moves them between hosts.
//
// It owns the directory process in an image's directory. That directory holds a description and the
// content of memory, which is either a complete pages file or a delta to the pages file of another
// image. The package also owns the restore stub's executable, the pages files that came from other
// hosts, and the format of checkpoint bundles. It must not know what a monitor is, what the roles
// of its descriptors mean, or how bundles are transferred.
//
// A stored checkpoint is valid on this host until the next boot. It is never written again once its
// description exists. A bundle is valid on every host with the same fingerprint. It comes from
// another host, where it was made from a monitor that ran an untrusted guest, and is validated
// accordingly.
package checkpointstore
