package guestlink_test

import (
	"bytes"
	"errors"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestlink"
	"github.com/pandastack/pandastack/internal/lib/budget"
)

func newMemory(total int64) *budget.Pool {
	return budget.New(budget.Config{
		Name: "memory", Total: total, Levels: []budget.Level{{Name: "workspace"}, {Name: "sandbox"}},
		Account: budget.Level{Name: "request", Max: total / 8},
	})
}

// smallFiles is a listing of files that take much more memory than bytes on the wire.
func smallFiles() []byte {
	one := guestapi.AppendFileInfo(nil, &guestapi.FileInfo{Path: "/", Name: "a", Kind: guestapi.KindFile})
	return bytes.Repeat(one, 4*(60_000/4/len(one)))
}

// A guest that responds to everything with as much as it can holds no more of the host's memory than its share, however
// many requests wait for it, and the guest of a neighbour is served.
func TestHostileResponsesKeepToTheBudget(t *testing.T) {
	const total = 16 << 20
	for name, messages := range map[string][][]byte{
		"bytes":       {{0}, make([]byte, 64000)},
		"small files": {{0}, smallFiles()},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newMemory(total)
			hostile := serveHostile(t, &hostileGuest{messages: messages, endless: true})
			var mu sync.Mutex
			refused := map[error]int{}
			var accounts []*budget.Account
			var wg sync.WaitGroup
			for range 100 {
				account := memory.Open("hostile", "sandbox")
				accounts = append(accounts, account)
				wg.Go(func() {
					ctx := budget.NewContext(within(t), account)
					_, err := hostile.List(ctx, "/", "", 1)
					mu.Lock()
					defer mu.Unlock()
					for _, kind := range []error{guestapi.ErrBusy, guestapi.ErrTooLarge} {
						if errors.Is(err, kind) {
							refused[kind]++
							return
						}
					}
					t.Errorf("List() = %v, want a refusal", err)
				})
				if used := memory.Used(); used > total/4 {
					t.Errorf("the sandbox holds %d bytes, want at most a quarter of %d", used, total)
				}
			}
			wg.Wait()
			if used := memory.Used(); used > total/4 {
				t.Errorf("the sandbox holds %d bytes, want at most a quarter of %d", used, total)
			}
			if len(refused) == 0 {
				t.Error("nothing was refused")
			}
			neighbour := memory.Open("neighbour", "sandbox")

			files := smallFiles()[:len(smallFiles())/4]
			kind := serveHostile(t, &hostileGuest{messages: [][]byte{{0}, files}})
			if _, err := kind.List(budget.NewContext(within(t), neighbour), "/", "", 1); err != nil {
				t.Errorf("the neighbour's List() = %v", err)
			}
			for _, a := range append(accounts, neighbour) {
				a.Close()
			}
			if used := memory.Used(); used != 0 {
				t.Errorf("%d bytes are held after all requests have ended", used)
			}
		})
	}
}

// Unread streams hold no more than the share of their sandbox.
func TestUnreadStreamsKeepToTheBudget(t *testing.T) {
	const total = 4 << 20
	memory := newMemory(total)
	output := guestapi.AppendEvent(nil, &guestapi.Event{Stream: guestapi.StreamStdout, Data: make([]byte, 32<<10)})
	link := serveHostile(t, &hostileGuest{messages: [][]byte{{0, 1}, output}, endless: true})
	account := memory.Open("hostile", "sandbox")
	defer account.Close()
	ctx := budget.NewContext(within(t), account)
	for i := range 50 {
		p, err := link.Start(ctx, guestapi.ProcessSpec{Shell: "yes"})
		if errors.Is(err, guestapi.ErrTooLarge) || errors.Is(err, guestapi.ErrBusy) {
			break
		}
		if err != nil {
			t.Fatalf("start %d: %v", i, err)
		}
		defer p.Close()
	}
	// The link is still served for others, who pay for themselves.
	other := memory.Open("neighbour", "sandbox")
	defer other.Close()
	p, err := link.Start(budget.NewContext(within(t), other), guestapi.ProcessSpec{Shell: "yes"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := p.Next(within(t)); err != nil {
		t.Errorf("Next() of the neighbour = %v", err)
	}
	if held := account.Held(); held > total/8 {
		t.Errorf("unread streams hold %d bytes, want at most %d", held, total/8)
	}
}

// Calls without an account in their context are paid by the link's, which gets everything back.
func TestLinkPaysForCallsOfTheHost(t *testing.T) {
	memory := newMemory(64 << 20)
	account := memory.Open("machine")
	host, guest := channel(t)
	l := &hostileGuest{messages: [][]byte{{0}, smallFiles()}}
	runHostile(t, l, guest)
	link := open(t, host, guestlink.Options{Memory: account})
	if _, err := link.List(within(t), "/", "", 1); err != nil {
		t.Fatal(err)
	}
	if _, err := link.Processes(within(t)); err == nil {
		t.Error("files were parsed as processes")
	}
	if held := account.Held(); held != 0 {
		t.Errorf("the account holds %d bytes after the calls, want none", held)
	}
	link.Close()
	if err := account.Take(1); !errors.Is(err, budget.ErrClosed) {
		t.Errorf("Take() after the link was closed = %v, want %v", err, budget.ErrClosed)
	}
}
