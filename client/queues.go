package client

import (
	"context"
	"net/http"

	"github.com/pandastack/pandastack/api"
)

// Queues are the calls on queues of messages.
type Queues struct{ c *Client }

func queuePath(name string, below ...string) string {
	return apiPath(append([]string{"queues", name}, below...)...)
}

func (q *Queues) queue(ctx context.Context, rq call) (api.Queue, error) {
	var out api.Queue
	err := q.c.do(ctx, rq, &out)
	return out, err
}

// Create creates a queue.
func (q *Queues) Create(ctx context.Context, req api.CreateQueueRequest) (api.Queue, error) {
	return q.queue(ctx, post(apiPath("queues"), req))
}

// List returns all queues by name.
func (q *Queues) List(ctx context.Context) ([]api.Queue, error) {
	var out []api.Queue
	err := q.c.do(ctx, get(apiPath("queues")), &out)
	return out, err
}

// Get returns a queue with how many messages it has.
func (q *Queues) Get(ctx context.Context, name string) (api.Queue, error) {
	return q.queue(ctx, get(queuePath(name)))
}

// Update replaces the settings of a queue.
func (q *Queues) Update(ctx context.Context, name string, req api.UpdateQueueRequest) (api.Queue, error) {
	return q.queue(ctx, call{method: http.MethodPatch, path: queuePath(name), in: req})
}

// Delete deletes a queue with its messages.
func (q *Queues) Delete(ctx context.Context, name string) error {
	rq := del(queuePath(name))
	rq.idempotent = false // a second response would be not_found
	return q.c.do(ctx, rq, nil)
}

// Send sends messages, all or none, and returns their ids.
func (q *Queues) Send(ctx context.Context, name string, messages ...api.NewQueueMessage) ([]string, error) {
	var out api.SendResponse
	err := q.c.do(ctx, post(queuePath(name, "messages"), api.SendRequest{Messages: messages}), &out)
	return out.IDs, err
}

// Receive receives messages, which are hidden from others for a time.
func (q *Queues) Receive(ctx context.Context, name string, req api.ReceiveRequest) ([]api.QueueMessage, error) {
	var out api.ReceiveResponse
	err := q.c.do(ctx, post(queuePath(name, "receive"), req), &out)
	return out.Messages, err
}

// Ack removes messages that were received.
func (q *Queues) Ack(ctx context.Context, name string, receipts ...string) error {
	return q.c.do(ctx, post(queuePath(name, "ack"), api.AckRequest{Receipts: receipts}), nil)
}

// Extend gives more time to acknowledge a message.
func (q *Queues) Extend(ctx context.Context, name string, req api.ExtendRequest) error {
	return q.c.do(ctx, post(queuePath(name, "extend"), req), nil)
}
