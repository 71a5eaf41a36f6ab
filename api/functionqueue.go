package api

import (
	"encoding/json"
	"time"
)

// Bounds of queues.
const (
	MaxQueueMessage  = 256 << 10      // bytes of a body
	MaxQueueBatch    = 100            // messages of one request
	MaxQueueVisible  = 12 * 3600      // seconds
	MaxQueueWait     = 20             // seconds that a receive waits
	MaxQueueAttempts = 100            // of a message, until it is a dead letter
	MaxQueueAge      = 14 * 24 * 3600 // seconds that a message is kept
)

// Queue has messages that are received, and acknowledged within a time, or else received again.
type Queue struct {
	Name      string        `json:"name"`
	Workspace Workspace     `json:"workspace"`
	Settings  QueueSettings `json:"settings"`
	Visible   int64         `json:"visible" doc:"Messages that can be received."`
	InFlight  int64         `json:"in_flight" doc:"Messages that were received and are not acknowledged."`
	Delayed   int64         `json:"delayed" doc:"Messages that can be received later."`
	CreatedAt time.Time     `json:"created_at"`
	UpdatedAt time.Time     `json:"updated_at"`
}

// QueueSettings are the settings of a queue that have defaults.
type QueueSettings struct {
	VisibilitySeconds int64      `json:"visibility_seconds,omitempty" doc:"To acknowledge a message; 30 if absent."`
	RetentionSeconds  int64      `json:"retention_seconds,omitempty" doc:"4 days if absent; up to 14."`
	MaxAttempts       int        `json:"max_attempts,omitempty" doc:"5 if absent; then it is a dead letter."`
	DeadLetter        string     `json:"dead_letter,omitempty" doc:"Queue of dead letters; dropped if absent."`
	FunctionID        FunctionID `json:"function_id,omitempty" doc:"It gets the messages, in batches."`
	BatchSize         int        `json:"batch_size,omitempty" doc:"Messages of a batch; 10 if absent."`
}

// Validate checks settings.
func (s *QueueSettings) Validate() error {
	switch {
	case s.VisibilitySeconds < 0 || s.VisibilitySeconds > MaxQueueVisible:
		return invalid("settings.visibility_seconds", "%d is out of range: use 1 to %d", s.VisibilitySeconds,
			MaxQueueVisible)
	case s.RetentionSeconds < 0 || s.RetentionSeconds > MaxQueueAge:
		return invalid("settings.retention_seconds", "%d is out of range: use 1 to %d", s.RetentionSeconds, MaxQueueAge)
	case s.MaxAttempts < 0 || s.MaxAttempts > MaxQueueAttempts:
		return invalid("settings.max_attempts", "%d is out of range: use 1 to %d", s.MaxAttempts, MaxQueueAttempts)
	case s.DeadLetter != "" && !ValidFunctionName(s.DeadLetter):
		return invalid("settings.dead_letter", "%s is not a name of a queue", quote(s.DeadLetter))
	case s.FunctionID != "" && !s.FunctionID.Valid():
		return invalid("settings.function_id", "%s is not an id of a function", quote(string(s.FunctionID)))
	case s.BatchSize < 0 || s.BatchSize > MaxQueueBatch:
		return invalid("settings.batch_size", "%d is out of range: use 1 to %d", s.BatchSize, MaxQueueBatch)
	}
	return nil
}

// CreateQueueRequest asks for a queue: POST /v1/queues.
type CreateQueueRequest struct {
	Name     string        `json:"name"`
	Settings QueueSettings `json:"settings,omitzero"`
}

// Validate checks everything that can be checked without knowing the server.
func (r *CreateQueueRequest) Validate() error {
	if !ValidFunctionName(r.Name) {
		return invalid("name", "%s is not a name of a queue: use 1 to %d letters, digits, dots, dashes and _",
			quote(r.Name), MaxFunctionName)
	}
	if r.Settings.DeadLetter == r.Name {
		return invalid("settings.dead_letter", "is the queue itself: use another one")
	}
	return r.Settings.Validate()
}

// UpdateQueueRequest changes a queue: PATCH /v1/queues/{name}.
type UpdateQueueRequest struct {
	Settings QueueSettings `json:"settings" doc:"Replaces all settings."`
}

// Validate checks everything that can be checked without knowing the server.
func (r *UpdateQueueRequest) Validate() error { return r.Settings.Validate() }

// NewQueueMessage is a message to send.
type NewQueueMessage struct {
	Body           json.RawMessage `json:"body"`
	DelaySeconds   int64           `json:"delay_seconds,omitempty" doc:"Until it can be received."`
	IdempotencyKey string          `json:"idempotency_key,omitempty" doc:"Others with it are this message."`
}

// SendRequest sends messages: POST /v1/queues/{name}/messages.
type SendRequest struct {
	Messages []NewQueueMessage `json:"messages" doc:"Up to 100; all are sent, or none."`
}

// Validate checks everything that can be checked without knowing the server.
func (r *SendRequest) Validate() error {
	if len(r.Messages) < 1 || len(r.Messages) > MaxQueueBatch {
		return invalid("messages", "has %d entries: use 1 to %d", len(r.Messages), MaxQueueBatch)
	}
	for _, m := range r.Messages {
		switch {
		case len(m.Body) == 0:
			return invalid("messages.body", "is missing")
		case len(m.Body) > MaxQueueMessage:
			return invalid("messages.body", "has %d bytes: use at most %d", len(m.Body), MaxQueueMessage)
		case m.DelaySeconds < 0 || m.DelaySeconds > maxDelay:
			return invalid("messages.delay_seconds", "%d is out of range: use 0 to %d", m.DelaySeconds, maxDelay)
		}
		if err := validKey("messages.idempotency_key", m.IdempotencyKey); err != nil {
			return err
		}
	}
	return nil
}

// SendResponse has the ids of messages in the order in which they were sent.
type SendResponse struct {
	IDs []string `json:"ids"`
}

// ReceiveRequest receives messages: POST /v1/queues/{name}/receive.
type ReceiveRequest struct {
	Max               int   `json:"max,omitempty" doc:"Messages at most; 10 if absent."`
	VisibilitySeconds int64 `json:"visibility_seconds,omitempty" doc:"To acknowledge; that of the queue if absent."`
	WaitSeconds       int64 `json:"wait_seconds,omitempty" doc:"For a first message, up to 20; 0 if absent."`
}

// Validate checks everything that can be checked without knowing the server.
func (r *ReceiveRequest) Validate() error {
	switch {
	case r.Max < 0 || r.Max > MaxQueueBatch:
		return invalid("max", "%d is out of range: use 1 to %d", r.Max, MaxQueueBatch)
	case r.VisibilitySeconds < 0 || r.VisibilitySeconds > MaxQueueVisible:
		return invalid("visibility_seconds", "%d is out of range: use 1 to %d", r.VisibilitySeconds, MaxQueueVisible)
	case r.WaitSeconds < 0 || r.WaitSeconds > MaxQueueWait:
		return invalid("wait_seconds", "%d is out of range: use 0 to %d", r.WaitSeconds, MaxQueueWait)
	}
	return nil
}

// QueueMessage is a message that was received.
type QueueMessage struct {
	ID        string          `json:"id"`
	Receipt   string          `json:"receipt" doc:"Acknowledges it, until it can be received again."`
	Body      json.RawMessage `json:"body"`
	Attempt   int             `json:"attempt" doc:"1 when it is received for the first time."`
	CreatedAt time.Time       `json:"created_at"`
}

// ReceiveResponse has the messages that were received.
type ReceiveResponse struct {
	Messages []QueueMessage `json:"messages"`
}

// AckRequest removes messages that were received: POST /v1/queues/{name}/ack.
//
// Receipts that have expired remove nothing.
type AckRequest struct {
	Receipts []string `json:"receipts"`
}

// Validate checks everything that can be checked without knowing the server.
func (r *AckRequest) Validate() error {
	if len(r.Receipts) < 1 || len(r.Receipts) > MaxQueueBatch {
		return invalid("receipts", "has %d entries: use 1 to %d", len(r.Receipts), MaxQueueBatch)
	}
	return nil
}

// ExtendRequest gives more time to acknowledge a message: POST /v1/queues/{name}/extend.
type ExtendRequest struct {
	Receipt           string `json:"receipt"`
	VisibilitySeconds int64  `json:"visibility_seconds" doc:"From now on; 0: it can be received again at once."`
}

// Validate checks everything that can be checked without knowing the server.
func (r *ExtendRequest) Validate() error {
	if r.Receipt == "" {
		return invalid("receipt", "is missing")
	}
	if r.VisibilitySeconds < 0 || r.VisibilitySeconds > MaxQueueVisible {
		return invalid("visibility_seconds", "%d is out of range: use 0 to %d", r.VisibilitySeconds, MaxQueueVisible)
	}
	return nil
}
