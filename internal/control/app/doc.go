// Package app is the service for apps: programs that are built from source, go live without a gap, sleep while they are
// not used, and wake with the next request.
//
// An app is a row, with deployments and replicas. A deployment is built by a Builder in a machine of its own, which
// leaves the snapshot "built". From that the app is started, checked, requested a few times and captured again, as the
// snapshot "ready". Replicas, wakes and rollbacks are restores of "ready"; a deployment whose source is not built again
// starts from "built". All machines, snapshots and volumes belong to the app (auth.Principal.Owner), so users do not
// see them.
package app
