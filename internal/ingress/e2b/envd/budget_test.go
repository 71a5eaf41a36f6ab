package envd_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/ingress/e2b/envd"
	fspb "github.com/pandastack/pandastack/internal/ingress/e2b/envd/proto/filesystem"
	"github.com/pandastack/pandastack/internal/ingress/e2b/envd/proto/filesystem/filesystemconnect"
	"github.com/pandastack/pandastack/internal/lib/budget"
)

// busyGuest has directories in which events with long names and much metadata never end.
type busyGuest struct {
	stubGuest
	reported atomic.Int64
	most     int64         // events of all watchers
	enough   chan struct{} // closed when that many were reported
}

func longFile(path string) guestapi.FileInfo {
	return guestapi.FileInfo{
		Path: path, Name: "x", Kind: guestapi.KindFile, Target: strings.Repeat("t", guestapi.MaxPath),
		Metadata: map[string]string{"k": strings.Repeat("m", guestapi.MaxMetadata)},
	}
}

func (*busyGuest) Stat(_ context.Context, path, _ string) (guestapi.FileInfo, error) {
	return longFile(path), nil
}

func (g *busyGuest) Watch(context.Context, string, string, bool) (guestapi.Watcher, error) {
	return busyWatcher{g}, nil
}

func (*busyGuest) List(context.Context, string, string, int) ([]guestapi.FileInfo, error) {
	all := make([]guestapi.FileInfo, 1<<14)
	for i := range all {
		all[i] = longFile("/x")
	}
	return all, nil
}

type busyWatcher struct{ g *busyGuest }

func (w busyWatcher) Next(ctx context.Context) (guestapi.FileEvent, error) {
	if n := w.g.reported.Add(1); n >= w.g.most {
		if n == w.g.most {
			close(w.g.enough)
		}
		<-ctx.Done()
		return guestapi.FileEvent{}, context.Cause(ctx)
	}
	return guestapi.FileEvent{Op: guestapi.OpCreate, Path: strings.Repeat("p", 2*guestapi.MaxPath)}, nil
}

func (busyWatcher) Close() error { return nil }

// budgetFixture serves two sandboxes of two workspaces with the same budgets.
func budgetFixture(
	t *testing.T,
	g guestapi.Guest,
	b envd.Budgets,
) (hostile, neighbour filesystemconnect.FilesystemClient) {
	t.Helper()
	s := envd.New(b)
	t.Cleanup(s.Close)
	client := func(workspace string) filesystemconnect.FilesystemClient {
		target := envd.Target{ID: "sbx" + workspace, Workspace: workspace, Guest: g}
		serve := func(w http.ResponseWriter, r *http.Request) { s.Serve(w, r, target) }
		srv := httptest.NewServer(http.HandlerFunc(serve))
		t.Cleanup(srv.Close)
		return filesystemconnect.NewFilesystemClient(http.DefaultClient, srv.URL)
	}
	return client("hostile"), client("neighbour")
}

func newPool(total int64) *budget.Pool {
	return budget.New(budget.Config{
		Name: "budget", Total: total, Levels: []budget.Level{{Name: "workspace"}, {Name: "sandbox"}},
	})
}

// Watchers whose events no client polls hold no more than their share, and tell the client that events were lost.
func TestUnpolledWatchersKeepToTheBudget(t *testing.T) {
	const total, watchers = 16 << 20, 64
	memory, places := newPool(total), newPool(watchers)
	g := &busyGuest{most: 4000, enough: make(chan struct{})}
	hostile, neighbour := budgetFixture(t, g, envd.Budgets{Memory: memory, Watchers: places})
	ctx := testContext(t)
	var ids []string
	for {
		req := connect.NewRequest(&fspb.CreateWatcherRequest{Path: "/", IncludeEntry: true})
		w, err := hostile.CreateWatcher(ctx, req)
		if connect.CodeOf(err) == connect.CodeResourceExhausted {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, w.Msg.GetWatcherId())
	}
	if len(ids) != watchers/4 {
		t.Errorf("one sandbox has %d watchers, want a quarter of %d", len(ids), watchers)
	}
	<-g.enough
	used := memory.Used()
	if used > total/4 || used < total/8 {
		t.Errorf("events of one sandbox hold %d bytes, want up to a quarter of %d", used, total)
	}
	w, err := neighbour.CreateWatcher(ctx, connect.NewRequest(&fspb.CreateWatcherRequest{Path: "/"}))
	if err != nil {
		t.Fatalf("the neighbour's CreateWatcher() = %v", err)
	}
	lost := 0
	for _, id := range ids {
		got, err := hostile.GetWatcherEvents(ctx, connect.NewRequest(&fspb.GetWatcherEventsRequest{WatcherId: id}))
		if err != nil {
			continue // refused: the request has no memory left to send them
		}
		all := got.Msg.GetEvents()
		if len(all) == 0 {
			continue
		}
		if last := all[len(all)-1]; last.GetName() == "" && last.GetType() == fspb.EventType_EVENT_TYPE_WRITE {
			lost++
		}
	}
	if lost == 0 {
		t.Error("no watcher says that events were lost")
	}
	for _, id := range ids {
		req := connect.NewRequest(&fspb.RemoveWatcherRequest{WatcherId: id})
		if _, err := hostile.RemoveWatcher(ctx, req); err != nil {
			t.Error(err)
		}
	}
	req := connect.NewRequest(&fspb.RemoveWatcherRequest{WatcherId: w.Msg.GetWatcherId()})
	if _, err := neighbour.RemoveWatcher(ctx, req); err != nil {
		t.Error(err)
	}
	if m, p := memory.Used(), places.Used(); m != 0 || p != 0 {
		t.Errorf("%d bytes and %d places are held after all watchers were removed, want none", m, p)
	}
}

// A listing that takes more than the share of its sandbox is refused, and holds nothing.
func TestListingsKeepToTheBudget(t *testing.T) {
	memory := newPool(8 << 20)
	hostile, _ := budgetFixture(t, &busyGuest{}, envd.Budgets{Memory: memory})
	_, err := hostile.ListDir(testContext(t), connect.NewRequest(&fspb.ListDirRequest{Path: "/"}))
	if connect.CodeOf(err) != connect.CodeResourceExhausted || !strings.Contains(fmt.Sprint(err), "budget") {
		t.Errorf("ListDir() = %v, want %v", err, connect.CodeResourceExhausted)
	}
	if used := memory.Used(); used != 0 {
		t.Errorf("%d bytes are held, want none", used)
	}
}

// A message of a client is paid while it is read.
func TestMessagesArePaid(t *testing.T) {
	memory := newPool(4 << 20)
	hostile, neighbour := budgetFixture(t, &busyGuest{}, envd.Budgets{Memory: memory})
	big := &fspb.StatRequest{Path: strings.Repeat("x", 3<<20)}
	if _, err := hostile.Stat(testContext(t), connect.NewRequest(big)); err == nil {
		t.Error("a message of 3 MiB was read with a share of 1")
	}
	if _, err := neighbour.Stat(testContext(t), connect.NewRequest(&fspb.StatRequest{Path: "/"})); err != nil {
		t.Errorf("the neighbour's Stat() = %v", err)
	}
	if used := memory.Used(); used != 0 {
		t.Errorf("%d bytes are held, want none", used)
	}
}
