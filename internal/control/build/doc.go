// Package build makes templates from a Dockerfile with its context, an OCI image, a root file system, a sandbox or
// snapshot, another template, or the steps of E2B's builder.
//
// A build starts a machine from its source and runs the steps in that machine; no code of a user runs on the host.
// Every finished step is kept as a layer: a snapshot of the host whose name is a hash of the step, its inputs and the
// layer before it. Later builds of the same workspace use the layer instead of running the step. The published template
// does not contain the machine of the build: its disk becomes the disk of a freshly booted machine, so that no memory
// of the build gets into a template, unless the request asks for the memory of a sandbox.
//
// The package owns builds, their logs and inputs, layers, and everything on the host that has the label of builds. It
// uses hosts through hostapi and templates through package template, and knows neither HTTP nor how machines are made.
// Package job runs the builds.
//
// Invariants. The states of a build are queued -> running -> done or failed; a deferred build waits for its steps
// before it is queued. The row and the inputs of a build exist before anything is made for it. Everything that a build
// makes on the host has the build's id, so that a later process finds and removes the remains of a killed one and
// continues the build after its last finished step. The version of a template is written in the transaction that ends
// its build and its job. The row of a layer is written after its snapshot is complete.
//
// All methods may be called concurrently. All errors of methods that users call are *api.Error.
package build
