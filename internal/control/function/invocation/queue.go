package invocation

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/functionstore"
)

// Bounds and defaults of queues.
const (
	maxQueues         = 100 // of a workspace
	defaultVisibility = 30
	defaultRetention  = 4 * 24 * 3600
	defaultReceives   = 5
	defaultBatch      = 10
	receiveSleep      = time.Second // between looks at messages that other processes may have sent
)

// settingsOf returns the settings of a queue with their defaults.
func settingsOf(row *functionstore.Queue) (set api.QueueSettings, err error) {
	err = json.Unmarshal([]byte(row.Settings), &set)
	set.VisibilitySeconds = cmp.Or(set.VisibilitySeconds, defaultVisibility)
	set.RetentionSeconds = cmp.Or(set.RetentionSeconds, defaultRetention)
	set.MaxAttempts = cmp.Or(set.MaxAttempts, defaultReceives)
	set.BatchSize = cmp.Or(set.BatchSize, defaultBatch)
	return set, err
}

func seconds(n int64) time.Duration { return time.Duration(n) * time.Second }

func noWorkspace() error { return api.Errorf(api.Unauthenticated, "the caller has no workspace") }

// CreateQueue adds a queue.
func (s *Service) CreateQueue(
	ctx context.Context,
	p auth.Principal,
	req api.CreateQueueRequest,
) (api.Queue, error) {
	if p.Workspace == "" {
		return api.Queue{}, noWorkspace()
	}
	if err := req.Validate(); err != nil {
		return api.Queue{}, err
	}
	row := functionstore.Queue{
		Workspace: string(p.Workspace), Name: req.Name, Created: s.micros(), Changed: s.micros(),
	}
	if err := s.setQueue(ctx, p, &row, req.Settings); err != nil {
		return api.Queue{}, api.AsError(err)
	}
	err := s.db.Write(ctx, "queue create", func(ctx context.Context, tx *store.Tx) error {
		in := functionstore.In(tx)
		all, err := in.Queues(ctx, row.Workspace)
		if err != nil {
			return err
		}
		if len(all) >= maxQueues {
			return api.Errorf(api.QuotaExceeded, "the workspace has %d queues, which is the limit: delete one",
				len(all))
		}
		return in.InsertQueue(ctx, &row)
	})
	if errors.Is(err, store.ErrExists) {
		return api.Queue{}, api.Errorf(api.Conflict, "name: queue %.64q exists: choose another name", req.Name).
			With("field", "name")
	}
	if err != nil {
		return api.Queue{}, api.AsError(err)
	}
	return s.viewQueue(ctx, &row)
}

// setQueue sets what a user says of a queue, after checking it.
func (s *Service) setQueue(
	ctx context.Context,
	p auth.Principal,
	row *functionstore.Queue,
	set api.QueueSettings,
) error {
	if set.DeadLetter == row.Name {
		return api.Errorf(api.Invalid, "settings.dead_letter: is the queue itself: use another one").
			With("field", "settings.dead_letter")
	}
	if set.FunctionID != "" {
		if _, err := s.invoker.Find(ctx, p, string(set.FunctionID)); err != nil {
			return gone("settings.function_id", err)
		}
	}
	if set.DeadLetter != "" {
		_, err := functionstore.In(s.db.Read()).Queue(ctx, row.Workspace, set.DeadLetter)
		if errors.Is(err, store.ErrNotFound) {
			err = api.Errorf(api.NotFound, "queue %q not found: create it first", set.DeadLetter)
		}
		if err != nil {
			return gone("settings.dead_letter", err)
		}
	}
	data, err := json.Marshal(set)
	row.Function, row.Settings = string(set.FunctionID), string(data)
	return err
}

// gone makes an error about a field of one that says that something does not exist.
func gone(field string, err error) error {
	if api.CodeOf(err) != api.NotFound {
		return err
	}
	return api.Wrap(api.Invalid, err, field+": "+err.Error()).With("field", field)
}

// findQueue reads a queue of the caller's workspace.
func (s *Service) findQueue(
	ctx context.Context,
	p auth.Principal,
	name string,
) (row functionstore.Queue, set api.QueueSettings, err error) {
	if p.Workspace == "" {
		return row, set, noWorkspace()
	}
	row, err = functionstore.In(s.db.Read()).Queue(ctx, string(p.Workspace), name)
	if errors.Is(err, store.ErrNotFound) {
		return row, set, api.Errorf(api.NotFound, "queue %.64q not found: list them at /v1/queues", name)
	}
	if err == nil {
		set, err = settingsOf(&row)
	}
	if err != nil {
		return row, set, api.AsError(err)
	}
	return row, set, nil
}

// viewQueue returns a queue as users see it.
func (s *Service) viewQueue(ctx context.Context, row *functionstore.Queue) (api.Queue, error) {
	set, err := settingsOf(row)
	if err != nil {
		return api.Queue{}, api.AsError(err)
	}
	set.FunctionID = api.FunctionID(row.Function)
	n, err := functionstore.In(s.db.Read()).CountMessages(ctx, row.Workspace, row.Name, s.micros())
	if err != nil {
		return api.Queue{}, api.AsError(err)
	}
	return api.Queue{
		Name: row.Name, Workspace: api.Workspace(row.Workspace), Settings: set, Visible: n.Visible,
		InFlight: n.InFlight, Delayed: n.Delayed, CreatedAt: store.Time(row.Created),
		UpdatedAt: store.Time(row.Changed),
	}, nil
}

// Queues returns the queues of the caller's workspace by name.
func (s *Service) Queues(ctx context.Context, p auth.Principal) ([]api.Queue, error) {
	if p.Workspace == "" {
		return nil, noWorkspace()
	}
	rows, err := functionstore.In(s.db.Read()).Queues(ctx, string(p.Workspace))
	if err != nil {
		return nil, api.AsError(err)
	}
	out := make([]api.Queue, 0, len(rows))
	for i := range rows {
		v, err := s.viewQueue(ctx, &rows[i])
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

// Queue returns a queue.
func (s *Service) Queue(ctx context.Context, p auth.Principal, name string) (api.Queue, error) {
	row, _, err := s.findQueue(ctx, p, name)
	if err != nil {
		return api.Queue{}, err
	}
	return s.viewQueue(ctx, &row)
}

// UpdateQueue replaces the settings of a queue. Messages that were sent keep their age.
func (s *Service) UpdateQueue(
	ctx context.Context,
	p auth.Principal,
	name string,
	req api.UpdateQueueRequest,
) (api.Queue, error) {
	if err := req.Validate(); err != nil {
		return api.Queue{}, err
	}
	row, _, err := s.findQueue(ctx, p, name)
	if err == nil {
		err = s.setQueue(ctx, p, &row, req.Settings)
	}
	if err != nil {
		return api.Queue{}, api.AsError(err)
	}
	row.Changed = s.micros()
	err = s.db.Write(ctx, "queue update", func(ctx context.Context, tx *store.Tx) error {
		return functionstore.In(tx).UpdateQueue(ctx, &row)
	})
	if err != nil {
		return api.Queue{}, api.AsError(err)
	}
	s.wake()
	return s.viewQueue(ctx, &row)
}

// DeleteQueue removes a queue and its messages. Messages that its function has go on to the end of the invocation.
func (s *Service) DeleteQueue(ctx context.Context, p auth.Principal, name string) error {
	row, _, err := s.findQueue(ctx, p, name)
	if err != nil {
		return err
	}
	err = s.db.Write(ctx, "queue delete", func(ctx context.Context, tx *store.Tx) error {
		return functionstore.In(tx).DeleteQueue(ctx, row.Workspace, row.Name)
	})
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return api.AsError(err)
	}
	return nil
}

// queueKey is the key of watchers of a queue.
func queueKey(workspace, name string) string { return "queue/" + workspace + "/" + name }

// Send adds messages to a queue: all of them, or none. One with an idempotency key that a message of the queue has is
// that message.
func (s *Service) Send(
	ctx context.Context,
	p auth.Principal,
	name string,
	req api.SendRequest,
) (api.SendResponse, error) {
	if err := req.Validate(); err != nil {
		return api.SendResponse{}, err
	}
	row, set, err := s.findQueue(ctx, p, name)
	if err != nil {
		return api.SendResponse{}, err
	}
	now := s.now()
	var out api.SendResponse
	err = s.db.Write(ctx, "queue send", func(ctx context.Context, tx *store.Tx) error {
		out.IDs = make([]string, 0, len(req.Messages))
		in := functionstore.In(tx)
		for _, m := range req.Messages {
			visible := now.Add(seconds(m.DelaySeconds))
			msg := functionstore.Message{
				ID: "msg" + strings.ToLower(rand.Text()), Workspace: row.Workspace, Queue: row.Name,
				Body: string(m.Body), Created: store.Micros(now), Visible: store.Micros(visible),
				Expires: store.Micros(visible.Add(seconds(set.RetentionSeconds))),
			}
			if m.IdempotencyKey != "" {
				msg.Dedupe = &m.IdempotencyKey
			}
			err := in.InsertMessage(ctx, &msg)
			if errors.Is(err, store.ErrExists) && msg.Dedupe != nil {
				msg, err = in.MessageByKey(ctx, row.Workspace, row.Name, *msg.Dedupe)
			}
			if err != nil {
				return err
			}
			out.IDs = append(out.IDs, msg.ID)
		}
		return nil
	})
	if err != nil {
		return api.SendResponse{}, api.AsError(err)
	}
	s.watchers.notify(queueKey(row.Workspace, row.Name))
	if row.Function != "" {
		s.wake()
	}
	return out, nil
}

// Receive returns messages of a queue, which no other caller receives for some time. If there is none it waits for one.
func (s *Service) Receive(
	ctx context.Context,
	p auth.Principal,
	name string,
	req api.ReceiveRequest,
) (api.ReceiveResponse, error) {
	if err := req.Validate(); err != nil {
		return api.ReceiveResponse{}, err
	}
	row, set, err := s.findQueue(ctx, p, name)
	if err != nil {
		return api.ReceiveResponse{}, err
	}
	if row.Function != "" {
		return api.ReceiveResponse{}, api.Errorf(api.Conflict, "queue %s has a function, which gets its messages: "+
			"take it from settings.function_id to receive them", row.Name)
	}
	set.VisibilitySeconds = cmp.Or(req.VisibilitySeconds, set.VisibilitySeconds)
	happened, stop := s.watchers.watch(queueKey(row.Workspace, row.Name))
	defer stop()
	over := time.Now().Add(seconds(req.WaitSeconds))
	for {
		out, err := s.receive(ctx, &row, set, cmp.Or(req.Max, defaultBatch))
		if err != nil {
			return out, api.AsError(err)
		}
		left := time.Until(over)
		if len(out.Messages) > 0 || left <= 0 {
			return out, nil
		}
		timer := time.NewTimer(min(left, receiveSleep))
		select {
		case <-happened:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return api.ReceiveResponse{}, api.AsError(context.Cause(ctx))
		}
		timer.Stop()
	}
}

func (s *Service) receive(
	ctx context.Context,
	row *functionstore.Queue,
	set api.QueueSettings,
	most int,
) (out api.ReceiveResponse, err error) {
	now := s.now()
	some, err := functionstore.In(s.db.Read()).CountMessages(ctx, row.Workspace, row.Name, store.Micros(now))
	if err != nil || some.Visible == 0 {
		return api.ReceiveResponse{Messages: []api.QueueMessage{}}, err
	}
	err = s.db.Write(ctx, "queue receive", func(ctx context.Context, tx *store.Tx) error {
		out.Messages = []api.QueueMessage{}
		in := functionstore.In(tx)
		taken, err := s.take(ctx, in, row, set, now, most)
		if err != nil {
			return err
		}
		for i := range taken {
			m := &taken[i]
			was := m.Receipt
			m.Receipt = "rcp" + strings.ToLower(rand.Text())
			m.Visible = store.Micros(now.Add(seconds(set.VisibilitySeconds)))
			if err := in.UpdateMessage(ctx, m, was, "receipt", "visible", "attempt"); err != nil {
				return err
			}
			out.Messages = append(out.Messages, api.QueueMessage{
				ID: m.ID, Receipt: m.Receipt, Body: json.RawMessage(m.Body), Attempt: int(m.Attempt),
				CreatedAt: store.Time(m.Created),
			})
		}
		return nil
	})
	return out, err
}

// take reads messages that can be received, with the number of the attempt that follows. Those that have used up
// their attempts become dead letters.
func (s *Service) take(
	ctx context.Context,
	in functionstore.Tx,
	row *functionstore.Queue,
	set api.QueueSettings,
	now time.Time,
	most int,
) ([]functionstore.Message, error) {
	var out []functionstore.Message
	for len(out) < most {
		found, err := in.VisibleMessages(ctx, row.Workspace, row.Name, store.Micros(now), most-len(out))
		if err != nil {
			return nil, err
		}
		buried := 0
		for _, m := range found {
			if m.Attempt >= int64(set.MaxAttempts) {
				buried++
				if err := s.bury(ctx, in, &m, set, now); err != nil {
					return nil, err
				}
				continue
			}
			m.Attempt++
			out = append(out, m)
		}
		if buried == 0 || len(out) > 0 {
			return out, nil
		}
	}
	return out, nil
}

// bury makes a message a dead letter: it goes to the queue for them, or is removed if there is none.
func (s *Service) bury(
	ctx context.Context,
	in functionstore.Tx,
	m *functionstore.Message,
	set api.QueueSettings,
	now time.Time,
) error {
	if set.DeadLetter == "" {
		return in.DeleteMessage(ctx, m.ID)
	}
	to, err := in.Queue(ctx, m.Workspace, set.DeadLetter)
	if errors.Is(err, store.ErrNotFound) {
		return in.DeleteMessage(ctx, m.ID)
	}
	if err != nil {
		return err
	}
	other, err := settingsOf(&to)
	if err != nil {
		return err
	}
	was := m.Receipt
	m.Queue, m.Dedupe, m.Receipt, m.Attempt, m.Visible = to.Name, nil, "", 0, store.Micros(now)
	m.Expires = store.Micros(now.Add(seconds(other.RetentionSeconds)))
	return in.UpdateMessage(ctx, m, was, "queue", "dedupe", "receipt", "attempt", "visible", "expires")
}

// Ack removes messages that were received. Those whose receipt has expired stay.
func (s *Service) Ack(ctx context.Context, p auth.Principal, name string, req api.AckRequest) error {
	if err := req.Validate(); err != nil {
		return err
	}
	row, _, err := s.findQueue(ctx, p, name)
	if err != nil {
		return err
	}
	err = s.db.Write(ctx, "queue ack", func(ctx context.Context, tx *store.Tx) error {
		return functionstore.In(tx).AckMessages(ctx, row.Workspace, row.Name, req.Receipts, s.micros())
	})
	if err != nil {
		return api.AsError(err)
	}
	return nil
}

// Extend sets how long a message that was received cannot be received again, from now on.
func (s *Service) Extend(ctx context.Context, p auth.Principal, name string, req api.ExtendRequest) error {
	if err := req.Validate(); err != nil {
		return err
	}
	row, _, err := s.findQueue(ctx, p, name)
	if err != nil {
		return err
	}
	err = s.db.Write(ctx, "queue extend", func(ctx context.Context, tx *store.Tx) error {
		now := s.now()
		return functionstore.In(tx).ExtendMessage(ctx, row.Workspace, row.Name, req.Receipt, store.Micros(now),
			store.Micros(now.Add(seconds(req.VisibilitySeconds))))
	})
	if errors.Is(err, store.ErrNotFound) {
		return api.Errorf(api.NotFound, "receipt %.40q has expired, or the message was acknowledged", req.Receipt)
	}
	if err != nil {
		return api.AsError(err)
	}
	s.watchers.notify(queueKey(row.Workspace, row.Name))
	return nil
}
