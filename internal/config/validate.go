package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
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
	if u, err := url.Parse(n.PublicURL); n.PublicURL != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		bad("public_url", "%q is not an http or https address", n.PublicURL)
	}
	oneOf("log.level", n.Log.Level, "debug", "info", "warn", "error")
	oneOf("log.format", n.Log.Format, "text", "json")
	oneOf("vmm.accelerator", n.VMM.Accelerator, "auto", "kvm", "tcg")
	atLeast("capacity.memory_mib", n.Capacity.MemoryMiB, 0)
	atLeast("capacity.memory_reserve_mib", n.Capacity.MemoryReserveMiB, 0)
	atLeast("capacity.disk_image_gib", n.Capacity.DiskImageGiB, 1)
	atLeast("capacity.disk_reserve_mib", n.Capacity.DiskReserveMiB, 0)
	n.validateNetwork(bad, atLeast)
	if n.Sandbox.TTL < 0 {
		bad("sandbox.ttl", "%v is negative; use 0s for never", n.Sandbox.TTL)
	}
	if n.Lifecycle.Stop <= 0 {
		bad("lifecycle.stop", "%v leaves no time to stop", n.Lifecycle.Stop)
	}
	return errors.Join(all...)
}

func (n *Node) validateNetwork(bad func(string, string, ...any), atLeast func(string, int, int)) {
	atLeast("network.slots", n.Network.Slots, 1)
	atLeast("network.ready", n.Network.Ready, 0)
	if n.Network.Ready > n.Network.Slots {
		bad("network.ready", "%d are more than the %d of network.slots", n.Network.Ready, n.Network.Slots)
	}
	prefix, err := netip.ParsePrefix(n.Network.Range)
	switch {
	case err != nil || !prefix.Addr().Is4() || prefix != prefix.Masked():
		bad("network.range", "%q is not an IPv4 network such as 10.213.0.0/16", n.Network.Range)
	case n.Network.Slots > 1<<max(0, 30-prefix.Bits()):
		bad("network.range", "%s has room for %d sandboxes, and network.slots asks for %d", n.Network.Range, 1<<max(0, 30-prefix.Bits()), n.Network.Slots)
	}
	if n.Network.DNS != "" {
		if _, err := netip.ParseAddr(n.Network.DNS); err != nil {
			bad("network.dns", "%q is not an address", n.Network.DNS)
		}
	}
}

func isPort(text string) bool {
	p, err := strconv.Atoi(text)
	return err == nil && p >= 0 && p <= 65535
}
