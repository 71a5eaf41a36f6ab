// Package clientconfig reads where the package managers of this host download from, and which certificate authorities
// its administrator added, so that machines on it can do the same.
//
// Credentials are left out. The package runs the package managers that are installed, and changes nothing.
package clientconfig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Config is what was found. The field of a client that is not installed is empty.
type Config struct {
	Certificates string   // PEM
	NPM          string   // registry
	PyPI         string   // index
	Go           string   // GOPROXY
	Hosts        []string // lines of the file hosts with IPv4 addresses that are not this host's own
}

// Host is where to look.
type Host struct {
	Root string // of the file system: "/"
	// Run runs a program and returns its output; an error of exec.ErrNotFound says that it is not installed.
	Run func(ctx context.Context, name string, args ...string) (string, error)
}

// Here is this host.
func Here() Host {
	return Host{Root: "/", Run: func(ctx context.Context, name string, args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir = "/"
		out, err := cmd.Output()
		return string(out), err
	}}
}

// directories have the certificates that administrators add, in Debian and in Red Hat's distributions.
var directories = []string{"usr/local/share/ca-certificates", "etc/pki/ca-trust/source/anchors"}

// maxCertificates bounds the size of all certificates together.
const maxCertificates = 1 << 20

// Read reads the configuration of a host.
func (h Host) Read(ctx context.Context) (c Config, err error) {
	if c.Certificates, err = h.certificates(); err != nil {
		return c, err
	}
	if c.Hosts, err = h.hosts(); err != nil {
		return c, err
	}
	for _, one := range []struct {
		to      *string
		program string
		args    []string
	}{
		{&c.NPM, "npm", []string{"config", "get", "registry"}},
		{&c.PyPI, "pip", []string{"config", "get", "global.index-url"}},
		{&c.Go, "go", []string{"env", "GOPROXY"}},
	} {
		out, err := h.Run(ctx, one.program, one.args...)
		if ctx.Err() != nil {
			return c, context.Cause(ctx)
		}
		var exit *exec.ExitError
		if errors.Is(err, exec.ErrNotFound) || errors.As(err, &exit) { // not installed, or it has no such setting
			continue
		}
		if err != nil {
			return c, fmt.Errorf("%s %s: %w", one.program, strings.Join(one.args, " "), err)
		}
		*one.to = clean(out)
	}
	return c, nil
}

// clean removes credentials from a URL, or from a list of them.
func clean(text string) string {
	parts := strings.Split(strings.TrimSpace(text), ",")
	for i, part := range parts {
		if u, err := url.Parse(part); err == nil && u.User != nil {
			u.User = nil
			parts[i] = u.String()
		}
	}
	return strings.Join(parts, ",")
}

// maxHosts bounds the lines of the file hosts.
const maxHosts = 500

// hosts returns the names that the administrator gave to addresses of other hosts.
func (h Host) hosts() (lines []string, err error) {
	data, err := os.ReadFile(filepath.Join(h.Root, "etc/hosts"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(data)) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		a, err := netip.ParseAddr(fields[0])
		if err != nil || !a.Is4() || a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() ||
			a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
			continue
		}
		if len(lines) == maxHosts {
			return nil, fmt.Errorf("etc/hosts has more than %d names of other hosts", maxHosts)
		}
		lines = append(lines, strings.Join(fields, " "))
	}
	return lines, nil
}

func (h Host) certificates() (string, error) {
	var all strings.Builder
	for _, dir := range directories {
		root := os.DirFS(filepath.Join(h.Root, dir))
		names, err := fs.Glob(root, "*")
		if err != nil {
			return "", err
		}
		slices.Sort(names)
		for _, name := range names {
			if ext := filepath.Ext(name); ext != ".crt" && ext != ".pem" {
				continue
			}
			data, err := fs.ReadFile(root, name)
			if err != nil {
				return "", err
			}
			if !strings.Contains(string(data), "-----BEGIN CERTIFICATE-----") { // not PEM
				continue
			}
			all.WriteString(strings.TrimSpace(string(data)) + "\n")
			if all.Len() > maxCertificates {
				return "", fmt.Errorf("%s: the certificates have more than %d bytes", dir, maxCertificates)
			}
		}
	}
	return all.String(), nil
}
