package api

import "time"

// Lifecycle is when a sandbox ends by itself: GET and PATCH /v1/sandboxes/{id}/lifecycle.
type Lifecycle struct {
	TTLSeconds  int64      `json:"ttl_seconds" doc:"Deleted after this time without use; 0: never."`
	Persistent  bool       `json:"persistent"`
	IdleSeconds int64      `json:"idle_seconds" doc:"Time since it was last used."`
	ExpiresAt   *time.Time `json:"expires_at,omitempty" doc:"Ends then, used or not, as on_timeout says."`
	OnTimeout   OnTimeout  `json:"on_timeout" enum:"delete,hibernate,stop"`
}

// OnTimeout is what happens to a sandbox when its timeout has passed.
type OnTimeout string

// The actions on timeout. The empty text means TimeoutDelete.
const (
	TimeoutDelete    OnTimeout = "delete"
	TimeoutHibernate OnTimeout = "hibernate" // it can be woken again, and then has no timeout
	TimeoutStop      OnTimeout = "stop"      // the same without its memory: it boots from its disk
)

// Valid reports whether o is an action or empty.
func (o OnTimeout) Valid() bool {
	return o == "" || o == TimeoutDelete || o.KeepsSandbox()
}

// KeepsSandbox reports whether the sandbox is kept and can be woken.
func (o OnTimeout) KeepsSandbox() bool { return o == TimeoutHibernate || o == TimeoutStop }

// LifecyclePatch changes the fields that are set.
type LifecyclePatch struct {
	TTLSeconds     *int64     `json:"ttl_seconds,omitempty" doc:"0: never."`
	Persistent     *bool      `json:"persistent,omitempty"`
	TimeoutSeconds *int64     `json:"timeout_seconds,omitempty" doc:"End this time from now, used or not; 0: never."`
	OnTimeout      *OnTimeout `json:"on_timeout,omitempty" enum:"delete,hibernate,stop" doc:"What happens then."`
}

// Validate checks the request on its own.
func (r *LifecyclePatch) Validate() error {
	if r.TTLSeconds == nil && r.Persistent == nil && r.TimeoutSeconds == nil && r.OnTimeout == nil {
		return invalid("ttl_seconds", "nothing to change: send ttl_seconds, persistent, timeout_seconds or on_timeout")
	}
	if r.OnTimeout != nil && !r.OnTimeout.Valid() {
		return invalid("on_timeout", "%s is not delete or hibernate", quote(string(*r.OnTimeout)))
	}
	if r.TTLSeconds != nil && (*r.TTLSeconds < 0 || *r.TTLSeconds > MaxTTLSeconds) {
		return invalid("ttl_seconds", "%d is out of range: use 0 for never, or up to %d", *r.TTLSeconds, MaxTTLSeconds)
	}
	if r.TimeoutSeconds != nil && (*r.TimeoutSeconds < 0 || *r.TimeoutSeconds > MaxTTLSeconds) {
		return invalid(
			"timeout_seconds",
			"%d is out of range: use 0 for never, or up to %d",
			*r.TimeoutSeconds,
			MaxTTLSeconds,
		)
	}
	return nil
}
