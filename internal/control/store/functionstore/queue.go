package functionstore

import (
	"context"
	"fmt"

	"github.com/uptrace/bun"

	"github.com/pandastack/pandastack/internal/control/store"
)

// Queue is a row of function_queues. Times are microseconds.
type Queue struct {
	bun.BaseModel `bun:"table:function_queues"`
	Workspace     string `bun:"workspace,pk"`
	Name          string `bun:"name,pk"`
	Function      string `bun:"function"` // that gets its messages; "": none
	Settings      string `bun:"settings"`
	Created       int64  `bun:"created"`
	Changed       int64  `bun:"changed"`
}

// InsertQueue adds a row; ErrExists if the name is taken.
func (t Tx) InsertQueue(ctx context.Context, q *Queue) error {
	_, err := t.db.NewInsert().Model(q).Exec(ctx)
	return store.Exists(err, "queue", q.Name)
}

// Queue reads one row.
func (t Tx) Queue(ctx context.Context, workspace, name string) (Queue, error) {
	q := Queue{Workspace: workspace, Name: name}
	return q, store.NotFound(t.db.NewSelect().Model(&q).WherePK().Scan(ctx), "queue", name)
}

// LockQueue is Queue for a transaction that changes what the queue has: others that lock it wait for its end.
func (t Tx) LockQueue(ctx context.Context, workspace, name string) (Queue, error) {
	row := Queue{Workspace: workspace, Name: name}
	q := t.db.NewSelect().Model(&row).WherePK()
	if t.postgres() { // SQLite has one transaction that writes at a time
		q = q.For("NO KEY UPDATE")
	}
	return row, store.NotFound(q.Scan(ctx), "queue", name)
}

// Queues reads the queues of a workspace by name.
func (t Tx) Queues(ctx context.Context, workspace string) ([]Queue, error) {
	rows := []Queue{}
	err := t.db.NewSelect().Model(&rows).Where("workspace = ?", workspace).OrderBy("name", bun.OrderAsc).Scan(ctx)
	return rows, err
}

// UpdateQueue writes the settings of a queue; ErrNotFound if it does not exist.
func (t Tx) UpdateQueue(ctx context.Context, q *Queue) error {
	res, err := t.db.NewUpdate().Model(q).WherePK().Column("function", "settings", "changed").Exec(ctx)
	return store.Changed(res, err, "queue", q.Name)
}

// DetachQueues makes the queues of a function ones without a function.
func (t Tx) DetachQueues(ctx context.Context, function string) error {
	_, err := t.db.NewUpdate().Model((*Queue)(nil)).Set("function = ''").Where("function = ?", function).
		Exec(ctx)
	return err
}

// DeleteQueue removes a queue with its messages; ErrNotFound if it does not exist.
func (t Tx) DeleteQueue(ctx context.Context, workspace, name string) error {
	_, err := t.db.NewDelete().Model((*Message)(nil)).Where("workspace = ?", workspace).
		Where("queue = ?", name).Exec(ctx)
	if err != nil {
		return err
	}
	res, err := t.db.NewDelete().Model((*Queue)(nil)).Where("workspace = ?", workspace).
		Where("name = ?", name).Exec(ctx)
	return store.Changed(res, err, "queue", name)
}

// Message is a row of function_messages. Times are microseconds.
type Message struct {
	bun.BaseModel `bun:"table:function_messages"`
	ID            string  `bun:"id,pk"`
	Workspace     string  `bun:"workspace"`
	Queue         string  `bun:"queue"`
	Body          string  `bun:"body"`
	Dedupe        *string `bun:"dedupe"`
	Receipt       string  `bun:"receipt"`
	Visible       int64   `bun:"visible"`
	Attempt       int64   `bun:"attempt"`
	Expires       int64   `bun:"expires"`
	Created       int64   `bun:"created"`
}

func (m *Message) place() string     { return "function_messages/" + m.ID }
func (m *Message) secrets() []secret { return []secret{{"body", &m.Body}} }

// InsertMessage adds a row. It returns ErrExists, and leaves the transaction usable, if the queue has a message
// with the idempotency key.
func (t Tx) InsertMessage(ctx context.Context, m *Message) error {
	row := sealed(t, m)
	res, err := t.db.NewInsert().Model(row).On("CONFLICT DO NOTHING").Exec(ctx)
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err == nil && n == 0 {
		err = fmt.Errorf("message of queue %s: %w", m.Queue, store.ErrExists)
	}
	return err
}

// MessageByKey reads the message of a queue with an idempotency key.
func (t Tx) MessageByKey(ctx context.Context, workspace, queue, key string) (Message, error) {
	var m Message
	err := t.db.NewSelect().Model(&m).Where("workspace = ?", workspace).Where("queue = ?", queue).
		Where("dedupe = ?", key).Scan(ctx)
	if err != nil {
		return m, store.NotFound(err, "message with the key", key)
	}
	return m, opened(t, &m)
}

// VisibleMessages reads up to limit messages that can be received, the longest visible first.
//
// It is for a transaction that receives them.
func (t Tx) VisibleMessages(
	ctx context.Context,
	workspace, queue string,
	now int64,
	limit int,
) ([]Message, error) {
	rows := []Message{}
	q := t.db.NewSelect().Model(&rows).Where("workspace = ?", workspace).Where("queue = ?", queue).
		Where("visible <= ?", now).Where("expires > ?", now).OrderBy("visible", bun.OrderAsc).
		OrderBy("created", bun.OrderAsc).OrderBy("id", bun.OrderAsc).Limit(int64(limit))
	if t.postgres() { // others that receive at the same time get other messages
		q = q.For("UPDATE SKIP LOCKED")
	}
	return openedList[Message](t, rows, q.Scan(ctx))
}

// Messages reads the messages that have a receipt.
func (t Tx) Messages(ctx context.Context, receipt string) ([]Message, error) {
	rows := []Message{}
	err := t.db.NewSelect().Model(&rows).Where("receipt = ?", receipt).OrderBy("id", bun.OrderAsc).Scan(ctx)
	return openedList[Message](t, rows, err)
}

// UpdateMessage writes the named columns of a message that has a receipt; ErrNotFound if it has not.
func (t Tx) UpdateMessage(ctx context.Context, m *Message, receipt string, columns ...string) error {
	row := sealed(t, m)
	res, err := t.db.NewUpdate().Model(row).WherePK().Where("receipt = ?", receipt).Column(columns...).Exec(ctx)
	return store.Changed(res, err, "message", m.ID)
}

// ExtendMessage sets when a message can be received again; ErrNotFound if it can be by now.
func (t Tx) ExtendMessage(
	ctx context.Context,
	workspace, queue, receipt string,
	now, visible int64,
) error {
	res, err := t.db.NewUpdate().Model((*Message)(nil)).Set("visible = ?", visible).
		Where("workspace = ?", workspace).Where("queue = ?", queue).Where("receipt = ?", receipt).
		Where("visible > ?", now).Exec(ctx)
	return store.Changed(res, err, "message with receipt", receipt)
}

// AckMessages removes messages of a queue by receipts. Those that can be received again by now stay.
func (t Tx) AckMessages(ctx context.Context, workspace, queue string, receipts []string, now int64) error {
	_, err := t.db.NewDelete().Model((*Message)(nil)).Where("workspace = ?", workspace).
		Where("queue = ?", queue).Where("receipt IN (?)", bun.List(receipts)).Where("visible > ?", now).Exec(ctx)
	return err
}

// DeleteMessage removes a row. A missing row is no error.
func (t Tx) DeleteMessage(ctx context.Context, id string) error {
	_, err := t.db.NewDelete().Model((*Message)(nil)).Where("id = ?", id).Exec(ctx)
	return err
}

// ExpireMessages removes up to limit messages that are too old, and returns how many it has removed. Those that
// somebody has received stay until they can be received again.
func (t Tx) ExpireMessages(ctx context.Context, now int64, limit int) (int64, error) {
	old := t.db.NewSelect().Model((*Message)(nil)).Column("id").Where("expires <= ?", now).
		Where("visible <= ? OR receipt = ''", now).Limit(int64(limit))
	res, err := t.db.NewDelete().Model((*Message)(nil)).Where("id IN (?)", old).Exec(ctx)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// QueueCounts are the messages of a queue by what can be done with them.
type QueueCounts struct {
	Visible  int64 `bun:"visible_now"`
	InFlight int64 `bun:"in_flight"`
	Delayed  int64 `bun:"later"`
}

// CountMessages counts the messages of a queue.
func (t Tx) CountMessages(ctx context.Context, workspace, queue string, now int64) (QueueCounts, error) {
	var n QueueCounts
	err := t.db.NewSelect().Model((*Message)(nil)).
		ColumnExpr("COALESCE(SUM(CASE WHEN visible <= ? THEN 1 ELSE 0 END), 0) AS visible_now", now).
		ColumnExpr("COALESCE(SUM(CASE WHEN visible > ? AND receipt <> '' THEN 1 ELSE 0 END), 0) AS in_flight", now).
		ColumnExpr("COALESCE(SUM(CASE WHEN visible > ? AND receipt = '' THEN 1 ELSE 0 END), 0) AS later", now).
		Where("workspace = ?", workspace).Where("queue = ?", queue).Where("expires > ?", now).Scan(ctx, &n)
	return n, err
}

// AttachedQueues reads the queues that have a function and messages that can be received.
func (t Tx) AttachedQueues(ctx context.Context, now int64) ([]Queue, error) {
	rows := []Queue{}
	messages := t.db.NewSelect().TableExpr("function_messages AS m").ColumnExpr("1").
		Where("m.workspace = queue.workspace").Where("m.queue = queue.name").Where("m.visible <= ?", now).
		Where("m.expires > ?", now)
	err := t.db.NewSelect().Model(&rows).ModelTableExpr("function_queues AS queue").Where("queue.function <> ''").
		Where("EXISTS (?)", messages).OrderBy("workspace", bun.OrderAsc).OrderBy("name", bun.OrderAsc).Scan(ctx)
	return rows, err
}

// NextMessage reads when the first message of a queue with a function can be received after now; 0: none.
func (t Tx) NextMessage(ctx context.Context, now int64) (int64, error) {
	var next int64
	err := t.db.NewSelect().TableExpr("function_messages AS m").ColumnExpr("COALESCE(MIN(m.visible), 0)").
		Join("JOIN function_queues AS q ON q.workspace = m.workspace AND q.name = m.queue").
		Where("q.function <> ''").Where("m.visible > ?", now).Where("m.expires > m.visible").Scan(ctx, &next)
	return next, err
}
