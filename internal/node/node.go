// Package node assembles a node from its components. It contains wiring and no logic that a component could hold.
//
// Up creates all components in one process, in order of dependency, and runs those that have a main loop. The cleanup
// of each component is registered right after its creation. When the context ends or a component fails, all components
// are stopped in reverse order within one time limit, and persistent machines are hibernated. A node that is killed
// leaves its machines running, and the next Up adopts them; so does one with lifecycle.keep_running, unless its user
// interrupts it.
//
// A data directory belongs to one node at a time: Up fails with InUseError if another node uses it.
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/ingress/acme"
	"github.com/pandastack/pandastack/internal/lib/ballast"
	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/budget"
	"github.com/pandastack/pandastack/internal/lib/cleanup"
	"github.com/pandastack/pandastack/internal/lib/config"
	"github.com/pandastack/pandastack/internal/lib/durable"
	"github.com/pandastack/pandastack/internal/lib/systemd"
	"github.com/pandastack/pandastack/internal/os/netslot"
)

// Options of a node.
type Options struct {
	Config  *config.Node
	Version string
	Log     *slog.Logger
	// Ready is called once, when the node accepts requests. It must not block.
	Ready func(Ready)
	// Manager receives a message when the node is ready, works, and stops.
	Manager systemd.Manager
	// Store replaces the object store that object_store.url names; nil uses that one. The caller closes Store.
	Store blob.Store
}

// ErrTerminated is the cause of a context that ends because the program is terminated.
//
// With lifecycle.keep_running its machines are left running then; every other end of the context stops them.
var ErrTerminated = errors.New("the program was terminated")

// Ready says how to reach a node that has started.
type Ready struct {
	URL      string // URL of the API for programs on this host
	TLSURL   string // URL of the API over TLS; empty if TLS is off
	CAFile   string // certificate of the node's own CA, which clients have to trust; empty if none
	FirstKey string // first API key, only at the first start of a node
}

// node is a node that is starting or running.
type node struct {
	Options
	shares  shares
	links   atomic.Uint64    // guest channels that were opened
	undo    cleanup.Stack    // stops and closes the components, last one first
	budgets []*budget.Pool   // all shares of the node, for metrics
	ballast *ballast.Ballast // of the data directory

	apiURL     string                  // base of the API's URLs
	cert       certificate             // of everything that is served over TLS
	pg         net.Listener            // of databases; nil: there are none
	guests     *netslot.Service        // of databases, for guests; nil: they reach none
	ssh        net.Listener            // of the SSH gateway; nil: there is none
	plain      net.Listener            // of the API
	secure     net.Listener            // of the API over TLS; nil: there is none
	acme       *acme.Manager           // issues certificates for domains of apps; nil: none are issued
	memory     bool                    // machines can have more memory than their template
	translates bool                    // monitors translate guests' code, and snapshots keep the translations
	fail       context.CancelCauseFunc // stops the node with an error
}

// Up runs a node until ctx ends or a component fails. It returns after all components have stopped, with the error of
// the component that failed, and nil if ctx ended and everything stopped in time.
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
		n.Log.Info("stopping", "why", context.Cause(running))
	}
	if err := n.Manager.Notify(systemd.Stopping); err != nil {
		n.Log.Warn("systemd does not know that the node stops", "err", err)
	}
	return errors.Join(err, n.stop(ctx))
}

// stop stops all components in reverse order, within lifecycle.shutdown_timeout.
func (n *node) stop(ctx context.Context) error {
	return n.undo.UnwindWithin(ctx, n.Config.Lifecycle.ShutdownTimeout)
}

// run runs the main loop of a component in the background until the node stops. If the loop returns before that, the
// node stops with its error. run registers a cleanup that cancels the loop and waits for it.
func (n *node) run(ctx context.Context, name string, loop func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	var once sync.Once
	go func() {
		defer close(done)
		err := loop(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("stopped unexpectedly")
		}
		once.Do(func() { n.fail(fmt.Errorf("%s: %w", name, err)) })
	}()
	n.undo.Push("stop "+name, func(ctx context.Context) error {
		cancel()
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("%s did not stop: %w", name, context.Cause(ctx))
		}
	})
}

// start creates and starts all components, in order of dependency.
func (n *node) start(ctx context.Context) error {
	began := time.Now()
	// Monitors inherit this limit where their own cannot be set: guest memory must never end up in a core file.
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("disable core files: %w", err)
	}
	if err := protect("/proc/self/oom_score_adj"); err != nil {
		n.Log.Warn("the kernel may kill the node before others when memory is short", "err", err)
	}
	memory, err := n.limitMemory()
	if err != nil {
		return err
	}
	n.shares = newShares(n.Config.Capacity, memory)
	n.budgets = append(n.budgets, n.shares.all()...)
	// Listen first: if the port is in use, the node must fail before it changes anything.
	if n.plain, err = n.listen(ctx); err != nil {
		return err
	}
	if n.secure, err = n.listenTLS(ctx); err != nil {
		return err
	}
	if n.pg, err = n.listenDatabases(ctx); err != nil {
		return err
	}
	if n.ssh, err = n.listenSSH(ctx); err != nil {
		return err
	}
	n.apiURL = cmp.Or(strings.TrimSuffix(n.Config.PublicURL, "/"), n.url(n.plain))
	if err := n.openDataDir(ctx); err != nil {
		return err
	}
	if n.secure != nil || n.pg != nil {
		if n.cert, err = n.certificate(n.secure, n.pg); err != nil {
			return err
		}
	}
	host, err := n.host(ctx)
	if err != nil {
		return err
	}
	handler, edge, first, err := n.control(ctx, host)
	if err != nil {
		return err
	}
	// Registered only now: a node that fails to start leaves its machines running for the next one. The control plane
	// still follows the host's events while Close runs, since it was registered earlier and stops later.
	n.undo.Push("hibernate or stop machines", func(stop context.Context) error {
		interrupted := errors.Is(context.Cause(ctx), context.Canceled)
		host.SetLeaveRunning(n.Config.Lifecycle.KeepRunning && !interrupted)
		return host.Close(stop)
	})
	n.run(ctx, "host agent", host.Run)
	ready := Ready{URL: n.url(n.plain), FirstKey: first}
	if edge != nil {
		n.run(ctx, "connections to databases", func(ctx context.Context) error { return edge.Serve(ctx, n.pg) })
		if n.guests != nil {
			n.run(ctx, "connections of guests to databases", func(ctx context.Context) error {
				return edge.Serve(ctx, n.guests)
			})
		}
	}
	if n.secure != nil {
		if ready.TLSURL, ready.CAFile, err = n.serveTLS(ctx, n.secure, handler); err != nil {
			return err
		}
	}
	if err := n.writeAccessFile(ready); err != nil {
		return err
	}
	n.serve(ctx, n.plain, handler, nil)
	n.Log.Info("node is ready", "url", ready.URL, "data", n.Config.DataDir, "took", time.Since(began))
	if n.Config.Backup.Every > 0 {
		n.run(ctx, "backups", n.makeBackups)
	}
	n.run(ctx, "service manager", func(ctx context.Context) error { return n.reportAlive(ctx, ready.URL) })
	if n.Ready != nil {
		n.Ready(ready)
	}
	return nil
}

// writeAccessFile writes the file from which the command line on this host learns URL and key. Only the first start
// knows the key, so later starts keep the one in the file.
func (n *node) writeAccessFile(ready Ready) error {
	path := config.NodeFile(n.Config.DataDir)
	access := config.NodeAccess{}
	if ready.FirstKey == "" {
		if err := durable.ReadJSON(path, &access); err != nil {
			n.Log.Warn(
				"no stored API key for the command line; create one with 'pandastack key create' and set "+
					"PANDASTACK_API_KEY",
				"err",
				err,
			)
		}
	} else {
		access.APIKey = ready.FirstKey
	}
	access.APIURL, access.TLSURL, access.CAFile = ready.URL, ready.TLSURL, ready.CAFile
	return durable.WriteJSON(path, access)
}
