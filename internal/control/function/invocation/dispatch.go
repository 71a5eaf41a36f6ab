package invocation

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"time"

	"github.com/pandastack/pandastack/internal/control/function"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/functionstore"
)

// queueBatch begins the batch of a run that has messages of a queue; the workspace, a slash and the queue follow.
const queueBatch = "queue/"

// queueRuns is how many batches of a queue its function has at a time.
const queueRuns = 5

// never is when messages that a run has can be received by others: the end of the run says when.
const never = math.MaxInt64

// Batch is the event of a function that gets the messages of a queue. If it succeeds they are removed, but for those
// that its result names in a BatchResult. The others are in a later batch.
type Batch struct {
	Queue    string         `json:"queue"`
	Messages []BatchMessage `json:"messages"`
}

// BatchMessage is a message of a Batch.
type BatchMessage struct {
	ID        string          `json:"id"`
	Body      json.RawMessage `json:"body"`
	Attempt   int             `json:"attempt"` // 1 when it is in a batch for the first time
	CreatedAt time.Time       `json:"created_at"`
}

// BatchResult is what the result of a function says about a batch. Another result says nothing.
type BatchResult struct {
	Failed []string `json:"failed"` // ids of messages
}

// dispatch makes runs of the messages of queues that have a function.
func (s *Service) dispatch(ctx context.Context) error {
	queues, err := functionstore.In(s.db.Read()).AttachedQueues(ctx, s.micros())
	if err != nil {
		return err
	}
	for i := range queues {
		for more := true; more; {
			err := s.db.Write(ctx, "queue dispatch", func(ctx context.Context, tx *store.Tx) (err error) {
				more, err = s.dispatchBatch(ctx, functionstore.In(tx), queues[i].Workspace, queues[i].Name)
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// dispatchBatch makes one run, and reports whether there may be another one.
func (s *Service) dispatchBatch(ctx context.Context, in functionstore.Tx, workspace, name string) (bool, error) {
	row, err := in.LockQueue(ctx, workspace, name) // the batches that it has are counted
	if err != nil || row.Function == "" {
		return false, ignore(err, store.ErrNotFound)
	}
	set, err := settingsOf(&row)
	if err != nil {
		return false, err
	}
	batch := queueBatch + workspace + "/" + name
	active, err := in.CountActive(ctx, batch)
	if err != nil || active >= queueRuns {
		return false, err
	}
	fn, err := in.Function(ctx, row.Function)
	if err == nil && fn.State != functionstore.Active {
		err = store.ErrNotFound
	}
	if errors.Is(err, store.ErrNotFound) {
		return false, in.DetachQueues(ctx, row.Function)
	}
	if err != nil {
		return false, err
	}
	pol, err := policyOf(&fn)
	if err != nil {
		return false, err
	}
	now := s.now()
	taken, err := s.take(ctx, in, &row, set, now, set.BatchSize)
	if err != nil || len(taken) == 0 {
		return false, err
	}
	pol.attempts = 1 // another attempt at a message is another batch
	run := newRun(&fn, pol, function.OriginQueue, nil, now)
	run.Batch, run.Expires = batch, store.Micros(now.Add(seconds(set.RetentionSeconds)))
	event := Batch{Queue: name}
	for i := range taken {
		m := &taken[i]
		was := m.Receipt
		m.Receipt, m.Visible = run.ID, never
		if err := in.UpdateMessage(ctx, m, was, "receipt", "visible", "attempt"); err != nil {
			return false, err
		}
		event.Messages = append(event.Messages, BatchMessage{
			ID: m.ID, Body: json.RawMessage(m.Body), Attempt: int(m.Attempt), CreatedAt: store.Time(m.Created),
		})
	}
	data, err := json.Marshal(event)
	if err != nil {
		return false, err
	}
	run.Input = string(data)
	return true, in.InsertRun(ctx, &run)
}

// settleMessages removes the messages of a run that has ended, or lets them be received again.
func (s *Service) settleMessages(ctx context.Context, in functionstore.Tx, run *functionstore.Run) error {
	messages, err := in.Messages(ctx, run.ID)
	if err != nil || len(messages) == 0 {
		return err
	}
	failed := map[string]bool{}
	if run.State == store.RunSuccess {
		var result BatchResult
		if json.Unmarshal([]byte(run.Result), &result) == nil {
			for _, id := range result.Failed {
				failed[id] = true
			}
		}
	}
	row, err := in.Queue(ctx, messages[0].Workspace, messages[0].Queue)
	if err != nil {
		return ignore(err, store.ErrNotFound)
	}
	set, err := settingsOf(&row)
	if err != nil {
		return err
	}
	now := store.Time(run.Ended)
	for i := range messages {
		m := &messages[i]
		switch {
		case run.State == store.RunSuccess && !failed[m.ID]:
			err = in.DeleteMessage(ctx, m.ID)
		case m.Attempt >= int64(set.MaxAttempts) && run.State != store.RunCanceled:
			err = s.bury(ctx, in, m, set, now)
		default:
			delay := s.backoff(m.Attempt)
			if run.State == store.RunCanceled { // no attempt has failed
				delay, m.Attempt = time.Second, max(m.Attempt-1, 0)
			}
			was := m.Receipt
			m.Receipt, m.Visible = "", store.Micros(now.Add(delay))
			err = in.UpdateMessage(ctx, m, was, "receipt", "visible", "attempt")
		}
		if err != nil {
			return err
		}
	}
	return nil
}
