// Package fnruntime has the messages between the control plane and the program pandastack-runtime, which builds a
// function inside a machine and runs its handler there.
//
// The program has two modes. "pandastack-runtime build" reads a BuildRequest from its standard input and writes
// Events, one JSON object a line, to its standard output. "pandastack-runtime serve" loads the handler in a
// process of its own and listens on Port of the loopback interface; the control plane reaches it through the
// guest's ports with HTTP/1.1:
//
//	GET  /_/ready   204 when the handler is loaded; 424 with a Failure if it cannot be; held until one is known
//	POST /_/restored   204: after a restore, the body, a Restored, has the variables; 424 as above
//	POST /_/event   the body is an event; the response is the result, with status 200, or a Failure, with status 500,
//	                or 504 if the time ran out
//	POST /_/rehearse   as /_/event, but the process of the handler calls a function of its own in the handler's place,
//	                which returns the event; scripts are an empty one, and programs of style lambda are not called
//	GET  /_/summary/{id}   a Summary that did not fit into its trailer, once
//	ANY  /...       a request for the handler as its caller sent it; the response is the handler's, or a Failure as
//	                above with HeaderFailure. With HeaderRequest it is one whatever its path
//
// Requests for the handler carry the headers below; their responses end with a trailer, which those without a body do
// not have. The program and its machine are
// not trusted: Decoder, ParseSummary, DecodeSummary and DecodeFailure check and bound what comes out of it.
package fnruntime

// Port is the TCP port of the program in its machine.
const Port = 8399

// Paths in the machine.
const (
	Program = "/usr/local/lib/pandastack/pandastack-runtime"
	Code    = "/srv/function"                    // the bundle, unpacked
	Socket  = "/run/pandastack/function.sock"    // of the process of the handler
	Bundle  = "/var/lib/pandastack/function.tar" // as uploaded
)

// Paths of requests to the program.
const (
	PathReady    = "/_/ready"
	PathRestored = "/_/restored"
	PathEvent    = "/_/event"
	PathRehearse = "/_/rehearse"
	PathSummary  = "/_/summary/" // with the id of an invocation
)

// Headers of requests to the program. A request from outside never carries them: the edge removes them.
const (
	HeaderInvocation = "Pandastack-Invocation"  // id
	HeaderAttempt    = "Pandastack-Attempt"     // 1, 2, ...
	HeaderDeadline   = "Pandastack-Deadline-Ms" // milliseconds that are left
	HeaderFunction   = "Pandastack-Function"    // name
	HeaderVersion    = "Pandastack-Version"
	HeaderScheduled  = "Pandastack-Scheduled" // RFC 3339 moment of a schedule: the handler "scheduled" is called
	HeaderQueue      = "Pandastack-Queue"     // name: the body is a batch, and the handler "queue" is called
	HeaderRequest    = "Pandastack-Request"   // set: the request is for the handler, whatever its path
)

// Headers and trailers of responses of the program.
const (
	HeaderStyle    = "Pandastack-Style"          // of the handler, with PathReady
	HeaderFailure  = "Pandastack-Failure"        // type of the Failure that is the body
	HeaderLength   = "Pandastack-Content-Length" // that the handler has set; trailers allow no Content-Length
	TrailerSummary = "Pandastack-Summary"        // JSON of a Summary, base64
)

// Clients of HTTP bound trailers by the size of their buffers: a Summary in a trailer has at most MaxTrailer bytes.
const MaxTrailer = 2 << 10

// Bounds of what a machine may send.
const (
	MaxSummary = 1 << 20   // bytes of a summary
	MaxOutput  = 256 << 10 // bytes that are kept of each output of an invocation
	MaxStack   = 64 << 10  // bytes of a stack trace
	MaxLine    = 1 << 20   // bytes of one event of a build
)

// BuildRequest says what to build.
type BuildRequest struct {
	Runtime    string            `json:"runtime"`
	Entrypoint string            `json:"entrypoint"`
	Env        map[string]string `json:"env,omitempty"`     // of package managers: where they find mirrors
	Install    bool              `json:"install,omitempty"` // dependencies; the bundle has only what they depend on
}

// Kind says what an event of a build is about.
type Kind string

// The kinds of events.
const (
	KindLog    Kind = "log"
	KindResult Kind = "result" // the build has ended
	KindError  Kind = "error"  // the build failed; nothing follows
)

// Event is one line from a build.
type Event struct {
	Kind   Kind    `json:"kind"`
	Line   string  `json:"line,omitempty"`
	Result *Result `json:"result,omitempty"`
	Error  string  `json:"error,omitempty"`
}

// Result is what a build found out.
type Result struct {
	Manager string `json:"manager,omitempty"` // that installed the dependencies: pip, uv, npm, ...
	Key     string `json:"key,omitempty"`     // hash of all that the installed dependencies depend on
}

// Serve is what "pandastack-runtime serve" reads from its standard input.
type Serve struct {
	Runtime    string            `json:"runtime"`
	Entrypoint string            `json:"entrypoint"`
	Name       string            `json:"name"`
	Version    int64             `json:"version"`
	Env        map[string]string `json:"env,omitempty"`
	MemoryMB   int               `json:"memory_mb,omitempty"`
	// Reload loads the handler again before a request if files below Code have changed.
	Reload bool `json:"reload,omitempty"`
}

// Restored is the body of PathRestored.
type Restored struct {
	Env map[string]string `json:"env,omitempty"` // all variables
}

// Summary is what the program says at the end of an invocation.
type Summary struct {
	Style     string   `json:"style,omitempty"`
	Stdout    string   `json:"stdout,omitempty"`
	Stderr    string   `json:"stderr,omitempty"`
	Truncated bool     `json:"truncated,omitempty"`
	Micros    int64    `json:"micros,omitempty"` // of the handler
	Memory    int64    `json:"memory,omitempty"` // peak bytes of the handler's process
	ExitCode  *int     `json:"exit_code,omitempty"`
	TimedOut  bool     `json:"timed_out,omitempty"`
	Failure   *Failure `json:"failure,omitempty"`
	// More says that the outputs and the stack are left out; PathSummary has all.
	More bool `json:"more,omitempty"`
}

// Failure is an error of a handler, or of loading it.
type Failure struct {
	Type    string `json:"type"`
	Message string `json:"message"`
	Stack   string `json:"stack,omitempty"`
}
