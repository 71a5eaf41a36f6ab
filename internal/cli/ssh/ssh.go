// Package ssh has the commands for the use of sandboxes over SSH.
package ssh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
	"github.com/pandastack/pandastack/internal/lib/durable"
)

// Commands returns the commands ssh, ssh-config and ssh-key.
func Commands(f *cmdutil.Factory) []*cobra.Command {
	return []*cobra.Command{
		connect(f), config(f),
		cmdutil.Group("ssh-key", "Manage the public keys that may use sandboxes over SSH", add(f), list(f), remove(f)),
	}
}

func add(f *cmdutil.Factory) *cobra.Command {
	var req api.AddSSHKeyRequest
	c := &cobra.Command{
		Use:   "add FILE",
		Short: "Add the public key in a file, or - for standard input",
		Long: "Add the public key in a file, or - for standard input. The holder of the private key may then do\n" +
			"over SSH what your API key may do; the SSH key ends with that one.",
		Example: "  pandastack ssh-key add ~/.ssh/id_ed25519.pub",
		Args:    cobra.ExactArgs(1),
	}
	c.Flags().StringVar(&req.Label, "label", "", "label of the key (default its comment)")
	c.RunE = func(c *cobra.Command, args []string) error {
		text, err := read(f, args[0])
		if err != nil {
			return err
		}
		req.PublicKey = text
		cl, err := f.Dial()
		if err != nil {
			return err
		}
		key, err := cl.SSHKeys.Add(c.Context(), req)
		if err != nil {
			return err
		}
		return f.PrintLine(key, string(key.ID))
	}
	return c
}

// read returns the content of a file, or of standard input.
func read(f *cmdutil.Factory, name string) (string, error) {
	in := f.Stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return "", err
		}
		defer file.Close()
		in = file
	}
	data, err := io.ReadAll(io.LimitReader(in, api.MaxSSHKey+1))
	return string(data), err
}

func list(f *cmdutil.Factory) *cobra.Command {
	get := func(ctx context.Context, cl *client.Client) ([]api.SSHKey, error) { return cl.SSHKeys.List(ctx) }
	return cmdutil.ListCommand(f, "List the keys", get, []string{"ID", "LABEL", "API KEY", "AGE", "LAST USED"},
		func(k api.SSHKey) []string {
			used := "never"
			if k.LastUsedAt != nil {
				used = cmdutil.Age(*k.LastUsedAt, time.Now()) + " ago"
			}
			return []string{string(k.ID), k.Label, k.KeyPrefix, cmdutil.Age(k.CreatedAt, time.Now()), used}
		})
}

func remove(f *cmdutil.Factory) *cobra.Command {
	return &cobra.Command{
		Use:     "delete ID...",
		Aliases: []string{"rm"},
		Short:   "Delete keys; connections that use them end",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := f.Dial()
			if err != nil {
				return err
			}
			deleted := []string{}
			var all error
			for _, arg := range args {
				id, err := api.ParseSSHKeyID(arg)
				if err == nil {
					err = cl.SSHKeys.Delete(c.Context(), id)
				}
				if err != nil {
					all = errors.Join(all, err)
					continue
				}
				deleted = append(deleted, arg)
				f.Statusf("%s deleted", arg)
			}
			if f.JSON {
				all = errors.Join(all, cmdutil.WriteJSON(f.Stdout, map[string][]string{"deleted": deleted}))
			}
			return all
		},
	}
}

// gateway is how a client of OpenSSH reaches the gateway.
type gateway struct {
	host, port string
	options    []string // as in its configuration file: "Name value"
}

// hostKeyAlias is the name by which OpenSSH checks the key of the gateway.
const hostKeyAlias = "pandastack-gateway"

// reach asks the server how to reach the gateway. What it says ends up in a configuration file, so it is checked.
func reach(ctx context.Context, cl *client.Client) (gateway, error) {
	at, err := cl.SSHKeys.Gateway(ctx)
	if err != nil {
		return gateway{}, err
	}
	name := func(r rune) bool {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		return !letter && (r < '0' || r > '9') && !strings.ContainsRune(".-:", r)
	}
	if at.Host == "" || at.Host[0] == '-' || strings.ContainsFunc(at.Host, name) || at.Port < 1 || at.Port > 65535 ||
		len(at.HostKeys) == 0 {
		return gateway{}, api.Errorf(api.Internal, "the server says that its SSH gateway is at %q, port %d: that is "+
			"no address", at.Host, at.Port)
	}
	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(at.HostKeys[0]))
	if err != nil {
		return gateway{}, api.Errorf(api.Internal, "the server sends a key of its SSH gateway that is none: %w", err)
	}
	line := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
	return gateway{host: at.Host, port: strconv.Itoa(at.Port), options: []string{
		"HostKeyAlias " + hostKeyAlias, "HostKeyAlgorithms " + key.Type(), "StrictHostKeyChecking yes",
		"UserKnownHostsFile none", "GlobalKnownHostsFile none",
		"KnownHostsCommand /bin/echo " + hostKeyAlias + " " + line,
	}}, nil
}

func config(f *cmdutil.Factory) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "ssh-config [ID...]",
		Short: "Print a configuration of OpenSSH with which ssh, scp, rsync and editors find sandboxes",
		Long: "Print a configuration of OpenSSH in which each sandbox is a host, <id>.pandastack: those given, or\n" +
			"all of the workspace. With --output it is written to a file, which ~/.ssh/config includes:\n" +
			"  Include ~/.ssh/pandastack",
		Example: "  pandastack ssh-config --output ~/.ssh/pandastack",
	}
	c.Flags().StringVar(&output, "output", "", "write to this file")
	c.RunE = func(c *cobra.Command, args []string) error {
		cl, err := f.Dial()
		if err != nil {
			return err
		}
		ids, err := sandboxes(c.Context(), cl, args)
		if err != nil {
			return err
		}
		g, err := reach(c.Context(), cl)
		if err != nil {
			return err
		}
		text := g.file(ids)
		if output == "" {
			_, err = io.WriteString(f.Stdout, text)
			return err
		}
		if err := durable.WriteFile(output, []byte(text), 0o600); err != nil {
			return err
		}
		f.Statusf("%d sandboxes written; have this line in ~/.ssh/config: Include %s", len(ids), output)
		return nil
	}
	return c
}

// sandboxes returns the ids that args are, or those of all sandboxes.
func sandboxes(ctx context.Context, cl *client.Client, args []string) ([]api.SandboxID, error) {
	var ids []api.SandboxID
	for _, arg := range args {
		id, err := cmdutil.FindSandbox(ctx, cl.Sandboxes, arg)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	if len(args) > 0 {
		return ids, nil
	}
	all, err := cl.Sandboxes.List(ctx, api.SandboxFilter{})
	for _, s := range all {
		ids = append(ids, s.ID)
	}
	return ids, err
}

// file returns the configuration for sandboxes.
func (g gateway) file(ids []api.SandboxID) string {
	var b strings.Builder
	b.WriteString("# Written by pandastack ssh-config.\n")
	for _, id := range ids {
		fmt.Fprintf(&b, "Host %s.pandastack\n  HostName %s\n  Port %s\n  User %s\n", id, g.host, g.port, id)
		for _, option := range g.options {
			fmt.Fprintf(&b, "  %s\n", option)
		}
	}
	return b.String()
}

// notConnected is the exit code of OpenSSH if it has no connection.
const notConnected = 255

func connect(f *cmdutil.Factory) *cobra.Command {
	var identity, user string
	var forwards []string
	c := &cobra.Command{
		Use:   "ssh ID [COMMAND...]",
		Short: "Use a sandbox over SSH, with the client of OpenSSH on this machine",
		Long: "Use a sandbox over SSH, with the client of OpenSSH on this machine: a terminal, or a command. The\n" +
			"exit code is the command's. Your public key must be known: pandastack ssh-key add ~/.ssh/id_ed25519.pub",
		Example: "  pandastack ssh sbx...\n  pandastack ssh -L 8080:localhost:80 sbx... sleep 1h",
		Args:    cobra.MinimumNArgs(1),
	}
	c.Flags().SetInterspersed(false) // what follows the id is the command's
	c.Flags().StringVarP(&identity, "identity", "i", "", "file with the private key")
	c.Flags().StringVar(&user, "user", "", "user of the sandbox to run as")
	c.Flags().StringArrayVarP(&forwards, "forward", "L", nil, "forward a local port, as of ssh -L; may be repeated")
	c.RunE = func(c *cobra.Command, args []string) error {
		cl, err := f.Dial()
		if err != nil {
			return err
		}
		id, err := cmdutil.FindSandbox(c.Context(), cl.Sandboxes, args[0])
		if err != nil {
			return err
		}
		g, err := reach(c.Context(), cl)
		if err != nil {
			return err
		}
		name := string(id)
		if user != "" {
			name += "+" + user
		}
		words := []string{"-p", g.port, "-l", name}
		for _, option := range g.options {
			words = append(words, "-o", option)
		}
		if identity != "" {
			words = append(words, "-i", identity, "-o", "IdentitiesOnly yes")
		}
		for _, forward := range forwards {
			words = append(words, "-L", forward)
		}
		words = append(words, "--", g.host)
		if len(args) > 1 {
			words = append(words, cmdutil.CommandLine(args[1:]))
		}
		return run(c.Context(), f, words)
	}
	return c
}

// run runs the client of OpenSSH.
func run(ctx context.Context, f *cmdutil.Factory, args []string) error {
	c := exec.CommandContext(ctx, "ssh", args...)
	c.Stdin, c.Stdout, c.Stderr = f.Stdin, f.Stdout, f.Stderr
	err := c.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() > 0 {
		if exit.ExitCode() == notConnected {
			f.Statusf("pandastack: if the key was refused, add it with: pandastack ssh-key add ~/.ssh/id_ed25519.pub")
		}
		return cmdutil.ExitCode(exit.ExitCode())
	}
	if errors.Is(err, exec.ErrNotFound) {
		return errors.New("the program ssh is not installed: install the client of OpenSSH")
	}
	return err
}
