package pgedge

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"
)

// Target is which server of an endpoint a connection is for.
type Target int

// The targets, by the suffix of the endpoint's name.
const (
	Direct         Target = iota // <id>: the database
	Pooler                       // <id>-pooler: its connection pooler
	ReadOnly                     // <id>-ro: one of its read replicas
	ReadOnlyPooler               // <id>-ro-pooler: the connection pooler of one of its read replicas
)

// String returns the target's name for logs.
func (t Target) String() string {
	switch t {
	case Pooler:
		return "pooler"
	case ReadOnly:
		return "read-only"
	case ReadOnlyPooler:
		return "read-only pooler"
	default:
		return "direct"
	}
}

// Errors that Resolver and Endpoint return.
var (
	ErrNoEndpoint = errors.New("there is no such endpoint")
	ErrNoRole     = errors.New("there is no such role")
	// ErrNoTarget is the error of dialing a target that the endpoint does not have.
	ErrNoTarget = errors.New("the endpoint has no such server")
)

// Resolver finds endpoints.
type Resolver interface {
	// Endpoint returns the endpoint with an id, a lower-case DNS label, or ErrNoEndpoint.
	Endpoint(ctx context.Context, id string) (Endpoint, error)
}

// Endpoint is a database that clients can connect to.
type Endpoint interface {
	// Settings returns how clients may connect.
	Settings() Settings

	// Role returns a role that may log in, or ErrNoRole. While the database runs, verifiers are the current ones: a
	// password that was changed by SQL is wrong until Role returns the new verifier.
	Role(ctx context.Context, name string) (Role, error)

	// Acquire returns when the database accepts connections, and wakes it for that if it sleeps. Until release is
	// called, the database is in use and is not suspended, unless the service ends its sessions.
	Acquire(ctx context.Context) (release func(), err error)

	// Dial connects to a server of a running database, without TLS. It never wakes the database.
	Dial(ctx context.Context, target Target) (net.Conn, error)

	// Touch records that the database is being used. It is called about once a second while a session is active, and
	// does not wait for anything.
	Touch()
}

// Settings are how clients may connect to an endpoint.
type Settings struct {
	// Networks are the networks that clients may connect from; none: every network.
	Networks []netip.Prefix
	// MaxSessions bounds the sessions of the endpoint; 0: the limit of the edge.
	MaxSessions int
	// Running is set while the database accepts connections. It is a hint: only Acquire is certain.
	Running bool
}

// Allows reports whether a client with an address may connect.
func (s Settings) Allows(a netip.Addr) bool {
	for _, n := range s.Networks {
		if n.Contains(a) {
			return true
		}
	}
	return len(s.Networks) == 0
}

// Role is a role that may log in.
type Role struct {
	// Verifier is the role's SCRAM verifier in the form of pg_authid.rolpassword; "" if it is not known.
	Verifier string
	// PassThrough makes a role without verifier prove its password to the database, if that runs.
	PassThrough bool
}

// EventKind is what happened.
type EventKind string

// The kinds of events.
const (
	EventOpened   EventKind = "opened"    // a session began
	EventClosed   EventKind = "closed"    // a session ended
	EventRejected EventKind = "rejected"  // a client did not authenticate
	EventRefused  EventKind = "refused"   // a client was refused before or after authentication
	EventFailed   EventKind = "failed"    // an authenticated client did not reach its database
	EventCanceled EventKind = "cancelled" // a cancel request reached a session
)

// Event is an entry of the audit log of databases.
type Event struct {
	Kind     EventKind
	Client   netip.Addr
	Endpoint string // as the client named it, "" if it named none
	Target   Target
	Role     string
	Database string
	Reason   string // why a client was refused or a session ended
	// Duration, BytesIn and BytesOut are of a session that was closed; in is from the client.
	Duration          time.Duration
	BytesIn, BytesOut int64
}

// Activity is what clients of an endpoint do at a moment.
type Activity struct {
	Sessions int       // open
	Busy     int       // of these, with a query that runs or a transaction that is open
	Last     time.Time // when bytes were last moved; zero: never since this edge started
	BytesIn  int64     // from clients, of open sessions
	BytesOut int64     // to clients, of open sessions
}
