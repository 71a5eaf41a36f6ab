// Package build makes templates from what users have: a Dockerfile with its context, an OCI image, a root
// file system, a sandbox or snapshot, another template, or the steps of E2B's builder.
//
// A build is a machine of what it starts from, in which steps run; nothing of a user's runs on the host. Every
// finished step is a snapshot of the host, a layer, named by a hash of the step, its inputs and the layer
// before it, and found again by every later build of the same workspace. What is published at the end is not
// that machine: its disk becomes that of a freshly booted one, so that nothing of the build's memory goes into a
// template, unless a sandbox's memory is what was asked for.
//
// The package owns builds, their logs and inputs, layers, and whatever on the host carries the label of
// builds. It knows hosts through hostapi, templates through package template, and neither HTTP nor how
// machines are made.
//
// Invariants. A build is in one state of the table queued -> running -> done or failed. Its row and inputs
// are there before anything is made for it; what it makes on the host carries its id, so that whatever a
// killed process left is found and removed by the next, which goes on with the build from its last finished
// step. A template's version is written in the transaction that ends its build. A layer's row is written
// after its snapshot is whole.
//
// All methods may be called at once. Builds run within Run and end with it: those under way are queued
// again for the next process. All errors of verbs are *api.Error.
package build
