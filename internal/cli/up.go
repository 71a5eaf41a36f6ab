package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/lib/config"
	"github.com/pandastack/pandastack/internal/lib/obs"
	"github.com/pandastack/pandastack/internal/node"
)

// settings adds a flag for every setting of a node except data_dir, which all commands have. Settings that were renamed
// keep a hidden flag of the old name. The function that settings returns gives the flags that were set.
func settings(f *pflag.FlagSet) func() map[string]string {
	fields := (&config.Node{}).Fields()
	for _, field := range fields {
		if field.Path == "data_dir" {
			continue
		}
		for _, name := range []string{field.Flag(), field.OldFlag()} {
			if name == "" {
				continue
			}
			f.String(name, field.Default, field.Doc)
			flag := f.Lookup(name)
			flag.Hidden = name == field.OldFlag()
			if field.Kind == "yes or no" {
				flag.NoOptDefVal = "true"
			}
		}
	}
	return func() map[string]string {
		set := map[string]string{}
		for _, field := range fields {
			if flag := f.Lookup(field.Flag()); flag != nil && flag.Changed {
				set[field.Path] = flag.Value.String()
			}
			if flag := f.Lookup(field.OldFlag()); flag != nil && flag.Changed {
				set[field.Was] = flag.Value.String()
			}
		}
		return set
	}
}

func (a *app) up() *cobra.Command {
	c := &cobra.Command{
		Use:   "up",
		Short: "Run a node on this machine in the foreground",
		Long: "Run a node on this machine in the foreground: API, control plane and host agent in one process.\n" +
			"Interrupt it to stop: persistent sandboxes are hibernated and return with the next start, others\n" +
			"are deleted. A node that is killed leaves its machines running, and the next one adopts them; with\n" +
			"--lifecycle-keep-running, so does one that is terminated (SIGTERM). The first start prints the\n" +
			"first API key once.",
		Args: cobra.NoArgs,
	}
	set := settings(c.Flags())
	c.RunE = func(c *cobra.Command, _ []string) error {
		l, err := a.node(set())
		if err != nil {
			return err
		}
		log, err := obs.NewLogger(a.Stderr, l.Log.Format, l.Log.Level)
		if err != nil {
			return err
		}
		manager, err := config.ServiceManager(a.Env)
		if err != nil {
			return err
		}
		return local(node.Up(c.Context(), node.Options{
			Config: &l.Node, Version: a.Version, Log: log, Ready: a.ready, Manager: manager,
		}))
	}
	return c
}

// ready prints how to reach a node that has started.
func (a *app) ready(r node.Ready) {
	err := a.Print(
		config.NodeAccess{APIURL: r.URL, APIKey: r.FirstKey, TLSURL: r.TLSURL, CAFile: r.CAFile},
		func(w io.Writer) error {
			_, err := io.WriteString(w, readyText(r))
			return err
		},
	)
	if err != nil {
		a.Statusf("pandastack: %v", err)
	}
}

// readyText describes how to reach a node, and how to trust its certificate.
func readyText(r node.Ready) string {
	text := fmt.Sprintf("PandaStack is ready at %s\n", r.URL)
	if r.TLSURL != "" {
		text += fmt.Sprintf("and over TLS at %s\n", r.TLSURL)
	}
	if r.CAFile != "" {
		text += fmt.Sprintf("Its certificate is signed by this node's own authority. To trust it on this machine:\n"+
			"  sudo install -m 644 %s /usr/local/share/ca-certificates/pandastack.crt && sudo update-ca-certificates\n"+
			"For one program: NODE_EXTRA_CA_CERTS=%[1]s (Node.js), SSL_CERT_FILE=%[1]s (Python, Go, curl)\n", r.CAFile)
	}
	if r.FirstKey != "" {
		text += fmt.Sprintf("First API key, shown only once: %s\n", r.FirstKey)
	}
	return text
}

// useNode returns a client of a running node. If the node that flags, environment or files name is not running and none
// was named with --api, it starts one in this process, which logs from the given level on. The caller calls stop, which
// is never nil, when it is done.
func (a *app) useNode(ctx context.Context, level slog.Level) (cl *client.Client, stop func() error, err error) {
	none := func() error { return nil }
	if cl, err = a.Dial(); err != nil {
		return nil, none, err
	}
	probe, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if _, err := cl.Health(probe); err == nil || a.apiURL != "" {
		return cl, none, err
	}
	a.Statusf("no node is running at %s: starting one for this command", cl.URL())
	l, err := a.node(map[string]string{"listen": "127.0.0.1:0", "tls.listen": "", "tls.cert": "", "tls.key": "",
		"databases.listen": "127.0.0.1:0"})
	if err != nil {
		return nil, none, err
	}
	if os.Geteuid() != 0 {
		return nil, none, local(errors.New("starting a node requires root; use sudo, or name a running node with " +
			"--api"))
	}
	url, stop, err := a.startNode(ctx, &l.Node, level)
	if err != nil {
		return nil, stop, err
	}
	c, err := config.LoadClient(config.ClientSources{URL: url, DataDir: l.DataDir})
	if err != nil {
		return nil, stop, err
	}
	cl, err = client.New(c.URL, c.Key, client.WithUserAgent("pandastack-cli/"+a.Version))
	return cl, stop, err
}

// startNode runs a node in this process and waits until it is ready.
func (a *app) startNode(
	ctx context.Context,
	n *config.Node,
	level slog.Level,
) (url string, stop func() error, err error) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	ready, ended := make(chan node.Ready, 1), make(chan error, 1)
	log := slog.New(slog.NewTextHandler(a.Stderr, &slog.HandlerOptions{Level: level}))
	go func() {
		onReady := func(r node.Ready) { ready <- r }
		ended <- node.Up(life, node.Options{Config: n, Version: a.Version, Log: log, Ready: onReady})
	}()
	stop = func() error {
		end()
		return local(<-ended)
	}
	select {
	case r := <-ready:
		return r.URL, stop, nil
	case err := <-ended:
		end()
		return "", func() error { return nil }, local(err)
	case <-ctx.Done():
		return "", stop, api.Wrap(api.Canceled, context.Cause(ctx), "interrupted")
	}
}
