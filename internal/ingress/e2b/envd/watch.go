package envd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	pb "github.com/pandastack/pandastack/internal/ingress/e2b/envd/proto/filesystem"
	"github.com/pandastack/pandastack/internal/lib/budget"
)

// Bounds of the watchers that clients poll. Events beyond them, and those that the memory budget does not pay for, are
// lost: the watched directory is then reported as written, so that the client lists it again.
const (
	maxPendingEvents   = 10_000    // of one watcher
	maxPendingBytes    = 4 << 20   // of one watcher
	watcherIdleTimeout = time.Hour // after the last poll
)

// polledWatcher collects events between two polls of its client.
type polledWatcher struct {
	sandbox string
	stop    context.CancelCauseFunc
	ended   chan struct{}   // closed when its goroutine has ended
	idle    *time.Timer     // removes it
	place   *budget.Account // among the watchers
	memory  *budget.Account // pays for events

	mu     sync.Mutex
	events []*pb.FilesystemEvent // guarded by mu
	bytes  int64                 // of events; guarded by mu
	lost   bool                  // there were more events; guarded by mu
	err    error                 // why it ended; guarded by mu
}

// eventBytes is more than an event takes besides its text.
const eventBytes = 512

// eventMemory returns about how much memory an event takes, with the response that it becomes part of.
func eventMemory(e *pb.FilesystemEvent) int64 { return eventBytes + 3*int64(proto.Size(e)) }

func (p *polledWatcher) run(ctx context.Context, w *watch) {
	defer close(p.ended)
	defer w.from.Close()
	for {
		e, err := w.from.Next(ctx)
		p.mu.Lock()
		if err != nil {
			p.err = err
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		ev := w.event(ctx, e)
		p.add(ev)
	}
}

// add keeps an event for the next poll.
func (p *polledWatcher) add(ev *pb.FilesystemEvent) {
	n := eventMemory(ev)
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.events) >= maxPendingEvents || p.bytes+n > maxPendingBytes || p.memory.Take(n) != nil {
		p.lost = true
		return
	}
	p.bytes += n
	p.events = append(p.events, ev)
}

// take returns the events since the last call. The account of the request pays for them from then on.
func (p *polledWatcher) take(request *budget.Account) ([]*pb.FilesystemEvent, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	events := p.events
	if p.lost {
		events = append(events, &pb.FilesystemEvent{Type: pb.EventType_EVENT_TYPE_WRITE})
	}
	if len(events) == 0 {
		return nil, p.err
	}
	p.memory.Give(p.bytes)
	if err := request.Take(p.bytes); err != nil {
		p.bytes, p.events, p.lost = 0, nil, true
		return nil, fmt.Errorf("%w: %w", guestapi.ErrBusy, err)
	}
	p.bytes, p.events, p.lost = 0, nil, false
	return events, nil
}

// close returns what the watcher holds.
func (p *polledWatcher) close() {
	p.memory.Close()
	p.place.Close()
}

func (f *filesystem) CreateWatcher(
	ctx context.Context,
	req *connect.Request[pb.CreateWatcherRequest],
) (*connect.Response[pb.CreateWatcherResponse], error) {
	t := targetOf(ctx)
	life, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	p := &polledWatcher{
		sandbox: t.ID, stop: stop, ended: make(chan struct{}),
		place:  f.s.budgets.Watchers.Open(t.Workspace, t.ID),
		memory: f.s.budgets.Memory.Open(t.Workspace, t.ID),
	}
	if err := p.place.Take(1); err != nil {
		stop(nil)
		p.close()
		return nil, connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("%w; remove watchers", err))
	}
	w, err := openWatch(
		ctx,
		req.Msg.GetPath(),
		requestUser(req.Header()),
		req.Msg.GetRecursive(),
		req.Msg.GetIncludeEntry(),
	)
	if err != nil {
		stop(nil)
		p.close()
		return nil, err
	}
	var id [12]byte
	rand.Read(id[:]) // never fails, by its documentation
	name := fmt.Sprintf("w%x", id)
	f.s.mu.Lock()
	f.s.watchers[name] = p
	f.s.mu.Unlock()
	p.idle = time.AfterFunc(watcherIdleTimeout, func() { f.s.dropWatcher(name) })
	go p.run(budget.NewContext(life, p.memory), w)
	return connect.NewResponse(&pb.CreateWatcherResponse{WatcherId: name}), nil
}

func (f *filesystem) GetWatcherEvents(
	ctx context.Context,
	req *connect.Request[pb.GetWatcherEventsRequest],
) (*connect.Response[pb.GetWatcherEventsResponse], error) {
	p := f.s.watcher(req.Msg.GetWatcherId(), targetOf(ctx).ID)
	if p == nil {
		return nil, connect.NewError(
			connect.CodeNotFound,
			fmt.Errorf("watcher %q does not exist", req.Msg.GetWatcherId()),
		)
	}
	p.idle.Reset(watcherIdleTimeout)
	events, err := p.take(budget.FromContext(ctx))
	if err != nil {
		return nil, rpcError(err)
	}
	return connect.NewResponse(&pb.GetWatcherEventsResponse{Events: events}), nil
}

func (f *filesystem) RemoveWatcher(
	ctx context.Context,
	req *connect.Request[pb.RemoveWatcherRequest],
) (*connect.Response[pb.RemoveWatcherResponse], error) {
	if f.s.watcher(req.Msg.GetWatcherId(), targetOf(ctx).ID) == nil {
		return nil, connect.NewError(
			connect.CodeNotFound,
			fmt.Errorf("watcher %q does not exist", req.Msg.GetWatcherId()),
		)
	}
	f.s.dropWatcher(req.Msg.GetWatcherId())
	return connect.NewResponse(&pb.RemoveWatcherResponse{}), nil
}

func (s *Server) watcher(id, sandbox string) *polledWatcher {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.watchers[id]; p != nil && p.sandbox == sandbox {
		return p
	}
	return nil
}

// dropWatcher stops a watcher and waits for its goroutine.
func (s *Server) dropWatcher(id string) {
	s.mu.Lock()
	p := s.watchers[id]
	delete(s.watchers, id)
	s.mu.Unlock()
	if p == nil {
		return
	}
	p.idle.Stop()
	p.stop(errors.New("the watcher was removed"))
	<-p.ended
	p.close()
}

// Close stops all watchers that clients poll.
func (s *Server) Close() {
	s.mu.Lock()
	ids := make([]string, 0, len(s.watchers))
	for id := range s.watchers {
		ids = append(ids, id)
	}
	s.mu.Unlock()
	for _, id := range ids {
		s.dropWatcher(id)
	}
}
