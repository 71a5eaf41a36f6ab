package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Validate reports every setting that cannot be right, with what would be. It looks at nothing outside
// of n.
func (n *Node) Validate() error {
	var all []error
	bad := func(path, format string, args ...any) {
		all = append(all, fmt.Errorf(path+": "+format, args...))
	}
	oneOf := func(path, value string, allowed ...string) {
		if !slices.Contains(allowed, value) {
			bad(path, "%q is not one of %s", value, strings.Join(allowed, ", "))
		}
	}
	atLeast := func(path string, value, least int) {
		if value < least {
			bad(path, "%d is too small; use %d or more", value, least)
		}
	}
	if !filepath.IsAbs(n.DataDir) {
		bad("data_dir", "%q is not an absolute path", n.DataDir)
	}
	if _, port, err := net.SplitHostPort(n.Listen); err != nil || !isPort(port) {
		bad("listen", "%q is not an address and port such as 127.0.0.1:7700", n.Listen)
	}
	if _, port, err := net.SplitHostPort(n.TLS.Listen); n.TLS.Listen != "" && (err != nil || !isPort(port)) {
		bad("tls.listen", "%q is not an address and port such as :443", n.TLS.Listen)
	}
	if (n.TLS.Cert == "") != (n.TLS.Key == "") {
		bad("tls.cert", "a certificate and its key come together: set both tls.cert and tls.key, or neither")
	}
	if n.TLS.Cert != "" && n.TLS.Listen == "" {
		bad("tls.listen", "is empty, so the certificate of tls.cert is of no use")
	}
	if u, err := url.Parse(n.PublicURL); n.PublicURL != "" &&
		(err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		bad("public_url", "%q is not an http or https address", n.PublicURL)
	}
	oneOf("log.level", n.Log.Level, "debug", "info", "warn", "error")
	oneOf("log.format", n.Log.Format, "text", "json")
	oneOf("vmm.driver", n.VMM.Driver, "auto", "firecracker", "qemu")
	atLeast("vmm.more_memory_mib", n.VMM.MoreMemory, 0)
	if n.VMM.MoreMemory%128 != 0 {
		bad("vmm.more_memory_mib", "%d is not a multiple of 128", n.VMM.MoreMemory)
	}
	atLeast("vmm.more_disks", n.VMM.MoreDisks, 0)
	oneOf("vmm.accelerator", n.VMM.Accelerator, "auto", "kvm", "tcg")
	atLeast("capacity.memory_mib", n.Capacity.MemoryMiB, 0)
	atLeast("capacity.memory_reserve_mib", n.Capacity.MemoryReserveMiB, 0)
	atLeast("capacity.disk_image_gib", n.Capacity.DiskImageGiB, 1)
	atLeast("capacity.disk_reserve_mib", n.Capacity.DiskReserveMiB, 0)
	for _, l := range []struct {
		path  string
		value int
	}{
		{"limits.disk_mib", n.Limits.DiskMiB}, {"limits.disk_ops", n.Limits.DiskOps},
		{"limits.network_in_mbit", n.Limits.NetworkIn}, {"limits.network_out_mbit", n.Limits.NetworkOut},
	} {
		atLeast(l.path, l.value, 0)
		if l.value > mostLimit {
			bad(l.path, "%d is more than %d; use 0 for no bound", l.value, mostLimit)
		}
	}
	n.validateNetwork(bad, atLeast)
	if n.Sandbox.Spares < 0 || n.Sandbox.Spares > 64 {
		bad("sandbox.spares", "%d is not from 0 to 64", n.Sandbox.Spares)
	}
	if n.Sandbox.TTL < 0 {
		bad("sandbox.ttl", "%v is negative; use 0s for never", n.Sandbox.TTL)
	}
	atLeast("sandbox.max", n.Sandbox.Max, 0)
	if n.Sandbox.IdleHibernate < 0 {
		bad("sandbox.idle_hibernate", "%v is negative; use 0s for never", n.Sandbox.IdleHibernate)
	}
	if n.Sandbox.KeepEndings < leastEndings {
		bad("sandbox.keep_endings", "%v is too short; use %v or more", n.Sandbox.KeepEndings, leastEndings)
	}
	n.validateObjects(bad, atLeast)
	if n.Lifecycle.Stop <= 0 {
		bad("lifecycle.stop", "%v leaves no time to stop", n.Lifecycle.Stop)
	}
	return errors.Join(all...)
}

func (n *Node) validateObjects(bad func(string, string, ...any), atLeast func(string, int, int)) {
	if u, err := url.Parse(n.Objects.URL); n.Objects.URL != "" &&
		(err != nil || !slices.Contains([]string{"file", "s3", "gs", "azblob"}, u.Scheme)) {
		bad("objects.url", "%q begins with none of file://, s3://, gs://, azblob://", n.Objects.URL)
	}
	if n.Objects.Key != "" && !filepath.IsAbs(n.Objects.Key) {
		bad("objects.key", "%q is not an absolute path", n.Objects.Key)
	}
	atLeast("objects.cache_mib", n.Objects.CacheMiB, 64)
	if n.Objects.Timeout <= 0 {
		bad("objects.timeout", "%v leaves no time to answer", n.Objects.Timeout)
	}
}

func (n *Node) validateNetwork(bad func(string, string, ...any), atLeast func(string, int, int)) {
	atLeast("network.slots", n.Network.Slots, 1)
	atLeast("network.ready", n.Network.Ready, 0)
	if n.Network.Ready > n.Network.Slots {
		bad("network.ready", "%d are more than the %d of network.slots", n.Network.Ready, n.Network.Slots)
	}
	if !namePrefix.MatchString(n.Network.Prefix) {
		bad("network.prefix", "%q is not 1 to 8 of a-z and 0-9 that begin with a letter", n.Network.Prefix)
	}
	if _, err := n.Network.Addresses(); err != nil {
		bad("network.range", "%v", err)
	}
	if _, err := n.Network.Allowed(); err != nil {
		bad("network.allow", "%v", err)
	}
	if _, err := n.Network.Servers(); err != nil {
		bad("network.resolvers", "%v", err)
	}
	if _, err := n.Templates.Values(); err != nil {
		bad("templates.params", "%v", err)
	}
	if _, err := n.Templates.Names(); err != nil {
		bad("templates.aliases", "%v", err)
	}
}

// mostLimit is beyond what any device does, and far from what 64 bits hold.
const mostLimit = 1_000_000

// leastEndings is how long it is always known why a sandbox ended.
const leastEndings = 24 * time.Hour

var namePrefix = regexp.MustCompile(`^[a-z][a-z0-9]{0,7}$`)

// Agent is the path of the guest agent's program: GuestAgent, or the one beside this program.
func (n *Node) Agent() string {
	const name = "pandastack-guest"
	if n.GuestAgent != "" {
		return n.GuestAgent
	}
	self, err := os.Executable()
	if err != nil { // then nothing is beside it either, and whoever opens the file says so
		return name
	}
	return filepath.Join(filepath.Dir(self), name)
}

// Addresses reads Range; the zero prefix when it is empty.
func (n Network) Addresses() (netip.Prefix, error) {
	if n.Range == "" {
		return netip.Prefix{}, nil
	}
	p, err := netip.ParsePrefix(n.Range)
	switch {
	case err != nil || !p.Addr().Is4() || p != p.Masked() || p.Bits() > 30:
		return netip.Prefix{}, fmt.Errorf("%q is not an IPv4 network such as 10.213.0.0/16", n.Range)
	case n.Slots > 1<<(30-p.Bits()):
		return netip.Prefix{}, fmt.Errorf(
			"%s has room for %d sandboxes, and network.slots asks for %d",
			n.Range,
			1<<(30-p.Bits()),
			n.Slots,
		)
	}
	return p, nil
}

// Allowed reads Allow.
func (n Network) Allowed() ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, text := range list(n.Allow) {
		p, err := netip.ParsePrefix(text)
		if err != nil || !p.Addr().Is4() {
			return nil, fmt.Errorf("%q is not an IPv4 network", text)
		}
		all = append(all, p)
	}
	return all, nil
}

// Servers reads Resolvers; the port is 53 where none is given.
func (n Network) Servers() ([]netip.AddrPort, error) {
	var all []netip.AddrPort
	for _, text := range list(n.Resolvers) {
		if a, err := netip.ParseAddr(text); err == nil {
			all = append(all, netip.AddrPortFrom(a, 53))
			continue
		}
		a, err := netip.ParseAddrPort(text)
		if err != nil {
			return nil, fmt.Errorf("%q is not an address", text)
		}
		all = append(all, a)
	}
	return all, nil
}

// Values reads Params.
func (t Templates) Values() (map[string]string, error) { return pairs(t.Params) }

// Names reads Aliases: other name to name.
func (t Templates) Names() (map[string]string, error) { return pairs(t.Aliases) }

func pairs(text string) (map[string]string, error) {
	all := map[string]string{}
	for _, one := range list(text) {
		key, value, ok := strings.Cut(one, "=")
		if _, twice := all[key]; !ok || key == "" || twice {
			return nil, fmt.Errorf("%q is not a name and a value such as a=b, or is there twice", one)
		}
		all[key] = value
	}
	return all, nil
}

func list(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

func isPort(text string) bool {
	p, err := strconv.Atoi(text)
	return err == nil && p >= 0 && p <= 65535
}
