package blobtest

import (
	"bytes"
	"context"
	"io"
	"sync"

	"github.com/pandastack/pandastack/internal/lib/blob"
)

// Call is one request to a Faulty store.
type Call struct {
	Op             string // "get", "put", "stat", "list", "delete"
	Key            string // or prefix
	Offset, Length int64  // of a get
	N              int    // number of earlier requests of this Op
}

// Fault is the effect on a call. The zero value has none.
type Fault struct {
	Err  error // returned by the call; a put that fails stores nothing
	Hang bool  // no reply before the caller's context ends
	// a get ends after that many bytes, as if that were the object; with Hang it hangs there
	Short   int64
	Corrupt func(data []byte) []byte // changes the data that a get returns
}

// Faulty is a store that fails calls as the function given to SetFaults decides. The function decides on one
// call at a time.
type Faulty struct {
	blob.Store

	mu     sync.Mutex
	decide func(Call) Fault // guarded by mu
	count  map[string]int   // guarded by mu
}

// NewFaulty makes a faulty store over s. If decide is nil, no call fails before SetFaults.
func NewFaulty(s blob.Store, decide func(Call) Fault) *Faulty {
	return &Faulty{Store: s, decide: decide, count: map[string]int{}}
}

// SetFaults changes the effect on calls from now on and resets the counts.
func (f *Faulty) SetFaults(decide func(Call) Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.decide, f.count = decide, map[string]int{}
}

// Count returns the number of requests of an Op.
func (f *Faulty) Count(op string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count[op]
}

func (f *Faulty) nextFault(ctx context.Context, c Call) (Fault, error) {
	f.mu.Lock()
	c.N = f.count[c.Op]
	f.count[c.Op]++
	var fault Fault
	if f.decide != nil {
		fault = f.decide(c)
	}
	f.mu.Unlock()
	if fault.Hang && fault.Short == 0 {
		<-ctx.Done()
		return fault, context.Cause(ctx)
	}
	return fault, fault.Err
}

// Get implements blob.Store.
func (f *Faulty) Get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	fault, err := f.nextFault(ctx, Call{Op: "get", Key: key, Offset: offset, Length: length})
	if err != nil {
		return nil, err
	}
	r, err := f.Store.Get(ctx, key, offset, length)
	if err != nil || fault.Short == 0 && fault.Corrupt == nil {
		return r, err
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	if fault.Corrupt != nil {
		data = fault.Corrupt(data)
	}
	if fault.Short > 0 {
		data = data[:min(fault.Short, int64(len(data)))]
	}
	if fault.Hang {
		return io.NopCloser(io.MultiReader(bytes.NewReader(data), &hanging{ctx})), nil
	}
	return io.NopCloser(bytes.NewReader(data)), nil
}

type hanging struct{ ctx context.Context } // of the request

func (h *hanging) Read([]byte) (int, error) {
	<-h.ctx.Done()
	return 0, context.Cause(h.ctx)
}

// Put implements blob.Store.
func (f *Faulty) Put(ctx context.Context, key string, r io.Reader, size int64) error {
	if _, err := f.nextFault(ctx, Call{Op: "put", Key: key}); err != nil {
		return err
	}
	return f.Store.Put(ctx, key, r, size)
}

// PutIfAbsent implements blob.Store.
func (f *Faulty) PutIfAbsent(ctx context.Context, key string, r io.Reader, size int64) error {
	if _, err := f.nextFault(ctx, Call{Op: "put", Key: key}); err != nil {
		return err
	}
	return f.Store.PutIfAbsent(ctx, key, r, size)
}

// Stat implements blob.Store.
func (f *Faulty) Stat(ctx context.Context, key string) (blob.Info, error) {
	if _, err := f.nextFault(ctx, Call{Op: "stat", Key: key}); err != nil {
		return blob.Info{}, err
	}
	return f.Store.Stat(ctx, key)
}

// List implements blob.Store.
func (f *Faulty) List(ctx context.Context, prefix string, yield func(blob.Info) error) error {
	if _, err := f.nextFault(ctx, Call{Op: "list", Key: prefix}); err != nil {
		return err
	}
	return f.Store.List(ctx, prefix, yield)
}

// Delete implements blob.Store.
func (f *Faulty) Delete(ctx context.Context, key string) error {
	if _, err := f.nextFault(ctx, Call{Op: "delete", Key: key}); err != nil {
		return err
	}
	return f.Store.Delete(ctx, key)
}
