package twonode

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/config"
	"github.com/pandastack/pandastack/internal/node"
	"github.com/pandastack/pandastack/internal/os/disk"
)

// runningNode is a node that runs in this process, with a client for it.
type runningNode struct {
	*client.Client
	dir   string
	end   context.CancelFunc
	ended chan error
}

// start starts a node in the subdirectory name of the pair's directory. The node has the baked templates of the node
// that is being measured, and nothing else.
func (p *Pair) start(
	ctx context.Context,
	name string,
	store blob.Store,
	change func(*config.Node),
) (_ *runningNode, err error) {
	cfg := *p.Config
	cfg.DataDir = filepath.Join(p.dir, name)
	if err := p.prepare(cfg.DataDir); err != nil {
		return nil, fmt.Errorf("directory of node %s: %w", name, err)
	}
	cfg.Listen, cfg.PublicURL = "127.0.0.1:0", ""
	cfg.TLS, cfg.Databases.Listen = config.TLS{}, ""
	cfg.VMM.Driver, cfg.VMM.Accelerator = p.Driver, p.Accelerator
	cfg.Network.Prefix, cfg.Network.CIDR = prefixOf(cfg.Network.Prefix, name), ""
	cfg.Network.Slots, cfg.Network.PrewarmedSlots = slots, 2
	cfg.ObjectStore = config.ObjectStore{
		Key:      filepath.Join(p.dir, "objects.key"),
		CacheMiB: cfg.ObjectStore.CacheMiB,
		Timeout:  cfg.ObjectStore.Timeout,
	}
	if change != nil {
		change(&cfg)
	}
	nodeCtx, end := context.WithCancel(context.WithoutCancel(ctx))
	n := &runningNode{dir: cfg.DataDir, end: end, ended: make(chan error, 1)}
	ready := make(chan node.Ready, 1)
	go func() {
		n.ended <- node.Up(nodeCtx, node.Options{
			Config: &cfg, Version: p.Version, Log: p.Log, Store: store, Ready: func(r node.Ready) { ready <- r },
		})
	}()
	select {
	case r := <-ready:
		if n.Client, err = client.New(r.URL, r.FirstKey); err != nil {
			return nil, errors.Join(err, n.stop())
		}
		return n, nil
	case err := <-n.ended:
		end()
		return nil, fmt.Errorf("node %s: %w", name, err)
	case <-ctx.Done():
		return nil, errors.Join(context.Cause(ctx), n.stop())
	}
}

// slots is the number of network slots of each node.
const slots = 16

// prefixOf returns the network prefix of a node: never the prefix of the measured node, whose objects and user IDs it
// would claim, and at most longestPrefix characters.
func prefixOf(prefix, name string) string {
	derived := prefix[:min(len(prefix), longestPrefix-len(name))] + name
	if derived != prefix {
		return derived
	}
	kept := prefix[:longestPrefix-len(name)-1]
	if strings.HasPrefix(prefix[len(kept):], "x") {
		return kept + "y" + name
	}
	return kept + "x" + name
}

// longestPrefix is the limit of network.prefix, because names of network interfaces are short.
const longestPrefix = 8

// stop stops a node and removes its data directory.
func (n *runningNode) stop() error {
	n.end()
	return errors.Join(<-n.ended, os.RemoveAll(n.dir))
}

// prepare creates a node's data directory with the kernels and baked templates of the measured node, as reflinks.
func (p *Pair) prepare(dir string) error {
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o711)); err != nil {
		return err
	}
	if err := os.Symlink(filepath.Join(p.Config.DataDir, "kernel"), filepath.Join(dir, "kernel")); err != nil {
		return err
	}
	from := filepath.Join(p.Config.DataDir, "templates", p.Template)
	to := filepath.Join(dir, "templates", p.Template)
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		copied := filepath.Join(to, inside)
		if e.IsDir() {
			return errors.Join(os.MkdirAll(copied, 0o711), os.Chmod(copied, info.Mode().Perm()))
		}
		return errors.Join(disk.Clone(path, copied), os.Chmod(copied, info.Mode().Perm()))
	})
}

// sh runs a shell command as root that must exit with code 0.
func (n *runningNode) sh(ctx context.Context, id api.SandboxID, line string) error {
	res, err := n.Sandboxes.Exec(ctx, id, api.ExecRequest{Cmd: line, User: "root", TimeoutSeconds: 120})
	if err == nil && res.ExitCode != 0 {
		err = fmt.Errorf("%q exited with code %d: %s", line, res.ExitCode, res.Stderr)
	}
	return err
}
