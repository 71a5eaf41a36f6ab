package envd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"connectrpc.com/connect"

	pb "github.com/pandastack/pandastack/internal/ingress/e2b/envd/proto/filesystem"
)

// Bounds of the watchers that clients poll.
const (
	maxWatchers        = 1024      // of all sandboxes
	maxPendingEvents   = 10_000    // of one watcher; later events are dropped
	watcherIdleTimeout = time.Hour // after the last poll
)

// polledWatcher collects events between two polls of its client.
type polledWatcher struct {
	sandbox string
	stop    context.CancelCauseFunc
	ended   chan struct{} // closed when its goroutine has ended
	idle    *time.Timer   // removes it

	mu     sync.Mutex
	events []*pb.FilesystemEvent // guarded by mu
	err    error                 // why it ended; guarded by mu
}

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
		p.mu.Lock()
		if len(p.events) < maxPendingEvents {
			p.events = append(p.events, ev)
		}
		p.mu.Unlock()
	}
}

func (p *polledWatcher) take() ([]*pb.FilesystemEvent, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	events := p.events
	p.events = nil
	if len(events) > 0 {
		return events, nil
	}
	return nil, p.err
}

func (f *filesystem) CreateWatcher(
	ctx context.Context,
	req *connect.Request[pb.CreateWatcherRequest],
) (*connect.Response[pb.CreateWatcherResponse], error) {
	w, err := openWatch(
		ctx,
		req.Msg.GetPath(),
		requestUser(req.Header()),
		req.Msg.GetRecursive(),
		req.Msg.GetIncludeEntry(),
	)
	if err != nil {
		return nil, err
	}
	var id [12]byte
	rand.Read(id[:]) // never fails, by its documentation
	name := fmt.Sprintf("w%x", id)
	life, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	p := &polledWatcher{sandbox: w.target.ID, stop: stop, ended: make(chan struct{})}
	f.s.mu.Lock()
	full := len(f.s.watchers) >= maxWatchers
	if !full {
		f.s.watchers[name] = p
	}
	f.s.mu.Unlock()
	if full {
		stop(nil)
		return nil, connect.NewError(
			connect.CodeResourceExhausted,
			errors.Join(fmt.Errorf("%d watchers exist already, the maximum: remove some", maxWatchers), w.from.Close()),
		)
	}
	p.idle = time.AfterFunc(watcherIdleTimeout, func() { f.s.dropWatcher(name) })
	go p.run(life, w)
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
	events, err := p.take()
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
