// Package builder builds deployments of apps.
//
// A build uses two machines of the app. The first brings in the source and plans: it may see tokens and keys of
// repositories, nothing is kept of it, and it ends before anything is executed. The second gets the source from the
// first, executes the plan step by step, and becomes the snapshot of the deployment. Both run pandastack-build; see
// package buildplan. The host parses nothing of a source: it passes bytes on and reads bounded events.
//
// # Layers
//
// A snapshot of a machine is kept of the template with the program, and after each step that does not depend on the
// whole source. It is named after a hash of all that made it, so that a later build of the app begins after the last
// step whose result it would only repeat. A build that succeeds removes layers that it does not use. Layers belong to
// the app, as everything else of a build: another app or workspace never sees them.
//
// A repository with a Dockerfile is handed to build.Service, as are images; their results are templates.
//
// All methods may be called concurrently. Builds of one app run one at a time.
package builder
