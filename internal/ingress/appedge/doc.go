// Package appedge serves the host names of apps.
//
// A request is for the live deployment of the app that its host names. The edge serves it from the files of the
// deployment, or forwards it to the replica with the fewest requests under way. If no replica is ready, the request
// waits while one is woken: one wake serves all requests that wait. Requests of robots and probes wake nothing.
//
// The package owns the choice of a replica, how long a request waits, what is under way where, the end of long
// connections when a deployment is replaced, and the figures about requests. Package proxy forwards requests; the
// service for apps, behind the interface Apps, decides which replicas there are.
//
// Invariants. A request that no program accepted is sent to another replica once. A wake does not depend on the client
// that caused it. After a cut-over, which a larger generation of the route announces, no request begins at an earlier
// deployment. What a client says about itself in headers (its address, host and protocol) does not reach a program,
// unless a trusted proxy said it.
//
// All requests may run at once.
package appedge
