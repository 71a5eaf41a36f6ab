// Package node assembles a node: it knows every component and decides nothing that a component could.
//
// Up makes everything in one process, in the order of dependence, and starts what has a life. Each thing
// that was made has its end registered on the next line; when the node is asked to stop, or a component
// fails, all of it ends in reverse order within one limit. Machines that are to be kept are hibernated
// on the way; a node that is killed leaves its machines running, and the next Up adopts them.
//
// A data directory belongs to one node at a time. Up may be called once at a time for each.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/host/blob"
	"github.com/pandastack/pandastack/internal/lib/cleanup"
	"github.com/pandastack/pandastack/internal/lib/config"
	"github.com/pandastack/pandastack/internal/lib/durable"
)

// Options of a node.
type Options struct {
	Config  *config.Node
	Version string
	Log     *slog.Logger
	// Ready is called once, when the node answers. It must not wait.
	Ready func(Ready)
	// Store is used in place of the object store that object_store.url names, and stays the caller's; nil: that one.
	Store blob.Store
}

// Ready tells how to reach a node that has started.
type Ready struct {
	URL      string // of the API on this machine
	TLSURL   string // of the API over TLS; "": it is not served so
	CAFile   string // certificate of the node's own authority, which clients have to trust; "": there is none
	FirstKey string // of a new node, this once; "" on one that has keys
}

// node is a node in the making, and then running.
type node struct {
	Options
	back cleanup.Stack // how it ends, last-first

	fail context.CancelCauseFunc // ends the node with a reason
}

// Up runs a node until ctx ends, which is no error, or until a component fails, which is. It returns
// when everything it started has ended.
func Up(ctx context.Context, opt Options) error {
	running, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	n := &node{Options: opt, fail: fail}
	err := n.start(running)
	if err == nil {
		<-running.Done()
		if ctx.Err() == nil {
			err = context.Cause(running)
		}
		n.Log.Info("stopping")
	}
	return errors.Join(err, n.stop(ctx))
}

// stop ends everything in reverse order, within the configured limit.
func (n *node) stop(ctx context.Context) error {
	return n.back.UnwindWithin(ctx, n.Config.Lifecycle.ShutdownTimeout)
}

// run starts the life of a component. Its end before stop is asked for ends the node. The component's
// end is registered: it is told, and waited for.
func (n *node) run(ctx context.Context, name string, life func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	var once sync.Once
	go func() {
		defer close(done)
		err := life(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("ended")
		}
		once.Do(func() { n.fail(fmt.Errorf("%s: %w", name, err)) })
	}()
	n.back.Push("stop "+name, func(ctx context.Context) error {
		cancel()
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("%s does not end: %w", name, context.Cause(ctx))
		}
	})
}

// start makes everything, in the order of dependence.
func (n *node) start(ctx context.Context) error {
	began := time.Now()
	// Monitors inherit this where their own limit cannot be set: memory of guests never goes to a core file.
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("switch core files off: %w", err)
	}
	// The port first: when it is taken nothing else should have been touched.
	door, err := n.listen(ctx)
	if err != nil {
		return err
	}
	secure, err := n.listenTLS(ctx)
	if err != nil {
		return err
	}
	if err := n.data(ctx); err != nil {
		return err
	}
	host, err := n.host(ctx)
	if err != nil {
		return err
	}
	handler, first, err := n.control(ctx, host)
	if err != nil {
		return err
	}
	// Only a node that got this far brings machines to rest when it ends; one that could not start leaves
	// them for the next. Whoever follows the host's events still does then.
	n.back.Push("bring machines to rest", host.Close)
	n.run(ctx, "host agent", host.Run)
	told := Ready{URL: n.url(door), FirstKey: first}
	if secure != nil {
		if told.TLSURL, told.CAFile, err = n.serveTLS(ctx, secure, handler); err != nil {
			return err
		}
	}
	if err := n.leaveAccess(told); err != nil {
		return err
	}
	n.serve(ctx, door, handler, nil)
	n.Log.Info("node is ready", "url", told.URL, "data", n.Config.DataDir, "took", time.Since(began))
	if n.Ready != nil {
		n.Ready(told)
	}
	return nil
}

// leaveAccess writes how to reach the node for the command line on the same machine. The key is known
// only once, so it is kept from an earlier start.
func (n *node) leaveAccess(told Ready) error {
	path := config.NodeFile(n.Config.DataDir)
	access := config.NodeAccess{}
	if told.FirstKey == "" {
		if err := durable.ReadJSON(path, &access); err != nil {
			n.Log.Warn("file for the command line is not there; make a key and use it", "err", err)
		}
	} else {
		access.APIKey = told.FirstKey
	}
	access.APIURL, access.TLSURL, access.CAFile = told.URL, told.TLSURL, told.CAFile
	return durable.WriteJSON(path, access)
}
