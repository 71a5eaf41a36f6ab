// Package function is the program pandastack-runtime: inside a machine it unpacks the bundle of a function, installs
// its dependencies, loads its handler and calls it. Package fnruntime has what the control plane and it say to each
// other.
//
// The handler runs in a process of its own, as an unprivileged user who cannot gain privileges, below a small
// program in its language, the shim, which is part of this one. The shim listens on a Unix socket; each call of
// the handler is a connection with frames. What the handler prints comes through a pipe with the number of the
// call, so that calls that run at the same time keep their outputs apart. What programs that it starts print comes
// through the pipes of its standard outputs, and belongs to the oldest call that runs.
//
// # Styles
//
// The shim finds out how a handler is to be called:
//
//   - event: handler(event, context) in Python, with the names handler, lambda_handler or main; exports.handler, a
//     default export that is a function, or exports.main in Node.js
//   - fetch: export default { fetch, scheduled, queue }, or functions with the names of HTTP methods, in Node.js
//   - asgi, wsgi: app, application or api in Python
//   - script: a file without any of these is run for each event, which is its standard input; the last line of its
//     output is the result if it is JSON, or else all of it as text
//   - lambda: a program that uses the Runtime API of AWS Lambda, for the runtime "provided"
//
// Requests to handlers of events are events in the form of function URLs of AWS Lambda. Events for handlers of requests
// are POST requests.
//
// # Rehearsals
//
// The first call after a restore runs code that nothing has run before, which takes long where machines are emulated.
// A rehearsal makes a call on the way of all calls, through the HTTP server, the shim's socket and the pipe of its
// output, with a function of the shim in place of the handler: a machine that is captured afterwards has all that
// behind it. It runs no code of the user. A script is rehearsed with an empty one. A program that uses the Runtime API
// gets nothing, since all that it can get is an event.
//
// # Failures
//
// An error that the handler raises has the name of its class as the type of the Failure. The types of this package are:
//
//   - Runtime.EntrypointNotFound: the bundle has no such file
//   - Runtime.NoHandler: the object that the entrypoint names is not there, or cannot be called
//   - Runtime.Unsupported: the machine lacks what the handler needs, such as Node.js
//   - Runtime.Timeout: the time ran out before the handler ended
//   - Runtime.Exited: the handler's process, or the handler by sys.exit, ended in place of a result
//   - Runtime.OutOfMemory: the kernel killed the handler's process, or its heap was full
//   - Runtime.ConnectionClosed: the handler closed the connections of the shim
//   - Runtime.Protocol: what came through them is not what a shim writes
//   - Runtime.InvalidEvent: the event is not JSON
//   - Runtime.InvalidResult: the result cannot be written as JSON, or a program of style lambda returned no JSON
//   - Runtime.InvalidResponse: the status or a header of the response is not valid
//   - HTTPError: an event for a handler of requests had a response with a status from 400 on
//
// # Time
//
// A call with a deadline gets SIGTERM a second, or a tenth of its time, before; by default that does nothing. At the
// deadline its process is killed, with what it started. Calls that run in the same process at that time are left to end
// there; others begin in a new one. The process starts again with the next call after any end.
//
// # After a restore
//
// The machine may be a copy of another. Python's random and OpenSSL's generator get new seeds, and Math.random and the
// functions of crypto in Node.js take their bytes from the kernel from then on, and keep none over a restore. What
// Node.js does inside OpenSSL, such as the ephemeral keys of TLS, and generators that the handler has of its own,
// cannot be seeded from here.
package function
