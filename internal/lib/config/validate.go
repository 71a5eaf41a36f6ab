package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Validate returns an error that joins every invalid setting, each with a valid example. It looks only at n.
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
		bad("tls.listen", "is empty, so tls.cert has no effect; set it, for example to :443")
	}
	if u, err := url.Parse(n.PublicURL); n.PublicURL != "" &&
		(err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		bad("public_url", "%q is not an http or https address", n.PublicURL)
	}
	if !isPreviewDomain(n.Preview.Domain) {
		bad("preview.domain", "%q is not a domain, with or without a port, such as sandboxes.example.net",
			n.Preview.Domain)
	}
	n.validateAccess(bad, atLeast, oneOf)
	oneOf("log.level", n.Log.Level, "debug", "info", "warn", "error")
	oneOf("log.format", n.Log.Format, "text", "json")
	n.validateVMM(bad, atLeast, oneOf)
	n.validateCapacity(bad, atLeast)
	for _, l := range []struct {
		path  string
		value int
	}{
		{"limits.disk_mib_per_s", n.Limits.DiskMiBPerSecond}, {"limits.disk_iops", n.Limits.DiskIOPS},
		{"limits.network_in_mbit", n.Limits.NetworkIn}, {"limits.network_out_mbit", n.Limits.NetworkOut},
		{"limits.connections", n.Limits.Connections}, {"limits.new_connections_per_s", n.Limits.NewConnections},
		{"limits.contexts", n.Limits.Contexts},
	} {
		atLeast(l.path, l.value, 0)
		if l.value > maxLimit {
			bad(l.path, "%d is more than %d; use 0 for unlimited", l.value, maxLimit)
		}
	}
	n.validateNetwork(bad, atLeast)
	if n.Sandbox.WarmMonitors < 0 || n.Sandbox.WarmMonitors > 64 {
		bad("sandbox.warm_monitors", "%d is not from 0 to 64", n.Sandbox.WarmMonitors)
	}
	if n.Sandbox.TTL < 0 {
		bad("sandbox.ttl", "%v is negative; use 0s for never", n.Sandbox.TTL)
	}
	n.validateQuota(bad)
	n.validateVolume(bad, atLeast)
	n.validateDatabases(bad, atLeast)
	n.validateDatabaseBackups(bad)
	n.validateApps(bad)
	n.validateSSH(bad)
	n.validateTimes(bad)
	n.validateObjects(bad, atLeast)
	if n.Lifecycle.ShutdownTimeout <= 0 {
		bad(
			"lifecycle.shutdown_timeout",
			"%v leaves no time to stop; use a positive duration",
			n.Lifecycle.ShutdownTimeout,
		)
	}
	return errors.Join(all...)
}

// validateTimes checks the durations of sandboxes.
func (n *Node) validateTimes(bad func(string, string, ...any)) {
	if n.Sandbox.IdleHibernate < 0 {
		bad("sandbox.idle_hibernate", "%v is negative; use 0s for never", n.Sandbox.IdleHibernate)
	}
	if n.Sandbox.GuestTimeout < minGuestTimeout {
		bad("sandbox.guest_timeout", "%v is too short; use %v or more", n.Sandbox.GuestTimeout, minGuestTimeout)
	}
	if n.Sandbox.TombstoneRetention < minTombstoneRetention {
		bad(
			"sandbox.tombstone_retention",
			"%v is too short; use %v or more",
			n.Sandbox.TombstoneRetention,
			minTombstoneRetention,
		)
	}
}

// minDatabaseIdle is the shortest time after which an idle database is suspended.
const minDatabaseIdle = time.Second

func (n *Node) validateDatabases(bad func(string, string, ...any), atLeast func(string, int, int)) {
	d := n.Databases
	if _, port, err := net.SplitHostPort(d.Listen); d.Listen != "" && (err != nil || !isPort(port)) {
		bad("databases.listen", "%q is not an address and port such as :5432", d.Listen)
	}
	if d.Port < 0 || d.Port > 65535 {
		bad("databases.port", "%d is not from 0 to 65535", d.Port)
	}
	if !isPreviewDomain(d.Suffix) || strings.Contains(d.Suffix, ":") {
		bad("databases.suffix", "%q is not a domain such as db.example.com", d.Suffix)
	}
	if d.Template == "" {
		bad("databases.template", "is empty; name a template such as postgres-16")
	}
	if d.Idle < minDatabaseIdle {
		bad("databases.idle", "%v is too short; use %v or more", d.Idle, minDatabaseIdle)
	}
	atLeast("databases.storage_max_mib", d.StorageMaxMiB, 1)
	if d.StorageMaxMiB > maxVolumeMiB {
		bad("databases.storage_max_mib", "%d is more than %d", d.StorageMaxMiB, maxVolumeMiB)
	}
}

// Bounds of the settings of apps.
const (
	minAppIdle     = time.Second
	maxAppKept     = 20
	maxDeployments = 64
)

func (n *Node) validateAppRequests(bad func(string, string, ...any)) {
	a := n.Apps
	if a.Hold < time.Second || a.Hold > time.Minute {
		bad("apps.hold", "%v is not from 1s to 1m", a.Hold)
	}
	if a.ResponseTimeout < time.Second {
		bad("apps.response_timeout", "%v is too short; use 1s or more", a.ResponseTimeout)
	}
	for name, value := range map[string]int{
		"apps.body_mib": a.BodyMiB, "apps.wakes_per_min": a.Wakes, "apps.network_wakes_per_min": a.NetworkWakes,
	} {
		if value < 0 {
			bad(name, "%d is negative; use 0 for no limit", value)
		}
	}
	if a.HSTS < 0 {
		bad("apps.hsts", "%v is negative; use 0s to send none", a.HSTS)
	}
	for _, name := range n.ACME.Hosts() {
		if !strings.Contains(name, ".") || strings.ContainsAny(name, "*:/") || net.ParseIP(name) != nil {
			bad("acme.names", "%q is not a full host name such as panda.example.org; for wildcards use tls.cert", name)
		}
	}
	if n.ACME.Names != "" && n.ACME.Directory == "" {
		bad("acme.names", "is set, and acme.directory is not; set both")
	}
	switch u, err := url.Parse(n.ACME.Directory); {
	case n.ACME.Directory == "":
	case err != nil || u.Scheme != "https" || u.Host == "":
		bad("acme.directory", "%q is not an https URL", n.ACME.Directory)
	case n.TLS.Listen == "":
		bad("acme.directory", "is set, and tls.listen is not; set both")
	case (n.ACME.KeyID == "") != (n.ACME.MACKey == ""):
		bad("acme.key_id", "and acme.mac_key belong together; set both or neither")
	}
}

func (n *Node) validateApps(bad func(string, string, ...any)) {
	a := n.Apps
	if !isPreviewDomain(a.Suffix) || strings.Contains(a.Suffix, ":") {
		bad("apps.suffix", "%q is not a domain such as app.example.com", a.Suffix)
	}
	n.validateAppRequests(bad)
	if a.Template == "" {
		bad("apps.template", "is empty; name a template such as base")
	}
	if u, err := url.Parse(a.GitHubAPI); err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		bad("apps.github_api", "%q is not a URL such as https://api.github.com/", a.GitHubAPI)
	}
	if a.GitHubHost == "" || strings.ContainsAny(a.GitHubHost, "/:@ ") {
		bad("apps.github_host", "%q is not a host such as github.com", a.GitHubHost)
	}
	if a.BuildTimeout < time.Second {
		bad("apps.build_timeout", "%v is too short; use 1s or more", a.BuildTimeout)
	}
	for _, v := range []struct {
		name string
		mib  int
	}{{"apps.upload_mib", a.UploadMiB}, {"apps.repository_mib", a.RepositoryMiB}, {"apps.push_mib", a.PushMiB}} {
		if v.mib < 1 || v.mib > maxVolumeMiB {
			bad(v.name, "%d is not from 1 to %d", v.mib, maxVolumeMiB)
		}
	}
	for name, text := range map[string]string{"npm": a.Mirrors.NPM, "pypi": a.Mirrors.PyPI, "debian": a.Mirrors.Debian,
		"cargo": a.Mirrors.Cargo, "maven": a.Mirrors.Maven, "proxy": a.Mirrors.Proxy} {
		u, err := url.Parse(text)
		if text != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
			bad("apps.mirrors."+name, "%q is not a URL such as https://mirror.example.com", text)
		}
	}
	for _, line := range a.Mirrors.HostLines() {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			bad("apps.mirrors.hosts", "%q is not an address and a name such as 198.51.100.7 registry.example.com", line)
			continue
		}
		if _, err := netip.ParseAddr(fields[0]); err != nil {
			bad("apps.mirrors.hosts", "%q does not begin with an address", line)
		}
	}
	if a.Idle < minAppIdle {
		bad("apps.idle", "%v is too short; use %v or more", a.Idle, minAppIdle)
	}
	if a.Keep < 1 || a.Keep > maxAppKept {
		bad("apps.keep", "%d is not from 1 to %d", a.Keep, maxAppKept)
	}
	if a.Deployments < 1 || a.Deployments > maxDeployments {
		bad("apps.deployments", "%d is not from 1 to %d", a.Deployments, maxDeployments)
	}
}

func (n *Node) validateSSH(bad func(string, string, ...any)) {
	if _, port, err := net.SplitHostPort(n.SSH.Listen); n.SSH.Listen != "" && (err != nil || !isPort(port)) {
		bad("ssh.listen", "%q is not an address and port such as :2222", n.SSH.Listen)
	}
	if host, port, err := net.SplitHostPort(n.SSH.Public); n.SSH.Public != "" &&
		(err != nil || host == "" || !isPort(port) || port == "0") {
		bad("ssh.public", "%q is not a host name and port such as ssh.example.com:22", n.SSH.Public)
	}
}

// Bounds of the settings of databases' backups.
const (
	maxBackupDays   = 3650
	maxBaseBackups  = 1000
	minBaseInterval = time.Hour
	// minSpoolMiB is room for some segments of the log of 16 MiB.
	minSpoolMiB = 64
	maxSpoolMiB = 1 << 20
)

func (n *Node) validateDatabaseBackups(bad func(string, string, ...any)) {
	d := n.Databases
	for _, v := range []struct {
		key         string
		value       int
		least, most int
	}{
		{"databases.backup_days", d.BackupDays, 1, maxBackupDays},
		{"databases.base_backups", d.BaseBackups, 1, maxBaseBackups},
		{"databases.spool_mib", d.SpoolMiB, minSpoolMiB, maxSpoolMiB},
		{"databases.rehearsal_hour", d.RehearsalHour, 0, 23},
	} {
		if v.value < v.least || v.value > v.most {
			bad(v.key, "%d is out of range; use %d to %d", v.value, v.least, v.most)
		}
	}
	if d.ReplicaLag < time.Second {
		bad("databases.replica_lag", "%v is too short; use 1s or more", d.ReplicaLag)
	}
	if d.BaseInterval < minBaseInterval {
		bad("databases.base_interval", "%v is too short; use %v or more", d.BaseInterval, minBaseInterval)
	}
}

// maxVolumeMiB is the largest volume.
const maxVolumeMiB = 64 << 10

func (n *Node) validateVolume(bad func(string, string, ...any), atLeast func(string, int, int)) {
	v := n.Volume
	if v.SizeMiB < 1 || v.SizeMiB > maxVolumeMiB {
		bad("volume.size_mib", "%d is not from 1 to %d", v.SizeMiB, maxVolumeMiB)
	}
	atLeast("volume.oversubscription_percent", v.Oversubscription, 0)
	atLeast("volume.helpers", v.Helpers, 1)
	if v.HelperIdle < 0 {
		bad("volume.helper_idle", "%v is negative; use 0s to end a machine after each use", v.HelperIdle)
	}
	if v.HelperTemplate == "" {
		bad("volume.helper_template", "is empty; use mini")
	}
}

func (n *Node) validateQuota(bad func(string, string, ...any)) {
	for _, f := range fields(reflect.ValueOf(&n.Quota).Elem(), "quota.") {
		if value := f.value.Int(); value < 0 || value > maxQuota {
			bad(f.Path, "%d is not from 0 to %d; use 0 for unlimited", value, int64(maxQuota))
		}
	}
}

// maxQuota is more than any host has, and small enough not to overflow 64 bits in bytes.
const maxQuota = 1 << 40

func (n *Node) validateAccess(
	bad func(string, string, ...any),
	atLeast func(string, int, int),
	oneOf func(string, string, ...string),
) {
	if _, err := n.TrustedProxies.Prefixes(); err != nil {
		bad("trusted_proxies.networks", "%v", err)
	}
	oneOf("trusted_proxies.header", n.TrustedProxies.Header, "x-forwarded-for", "forwarded")
	atLeast("rate_limit.key_per_s", n.RateLimit.Key, 0)
	atLeast("rate_limit.address_per_s", n.RateLimit.Address, 0)
	atLeast("rate_limit.port_per_s", n.RateLimit.Port, 0)
	atLeast("rate_limit.port_address_per_s", n.RateLimit.PortAddress, 0)
	atLeast("rate_limit.failures_per_min", n.RateLimit.FailuresPerMinute, 0)
	if n.RateLimit.MaxWait < 0 {
		bad("rate_limit.max_wait", "%v is negative; use a duration such as 2s, or 0s for no bound", n.RateLimit.MaxWait)
	}
	atLeast("audit.entries_per_s", n.Audit.Rate, 0)
	atLeast("audit.max_entries", n.Audit.MaxEntries, 0)
	if n.Audit.Retention < 0 {
		bad("audit.retention", "%v is negative; use 0s for never", n.Audit.Retention)
	}
}

func (n *Node) validateObjects(bad func(string, string, ...any), atLeast func(string, int, int)) {
	if u, err := url.Parse(n.ObjectStore.URL); n.ObjectStore.URL != "" &&
		(err != nil || !slices.Contains([]string{"file", "s3", "gs", "azblob"}, u.Scheme)) {
		bad("object_store.url", "%q does not begin with file://, s3://, gs:// or azblob://", n.ObjectStore.URL)
	}
	if n.ObjectStore.Key != "" && !filepath.IsAbs(n.ObjectStore.Key) {
		bad("object_store.key", "%q is not an absolute path", n.ObjectStore.Key)
	}
	if n.Backup.URL != "" && !filepath.IsAbs(n.Backup.URL) && !strings.Contains(n.Backup.URL, "://") {
		bad("backup.url", "%q is neither an absolute path nor a URL such as file:///path or s3://bucket", n.Backup.URL)
	}
	atLeast("backup.keep", n.Backup.Keep, 0)
	switch b := n.Backup; {
	case b.Every < 0 || b.Every > 0 && b.Every < time.Minute:
		bad("backup.every", "%v is less than a minute; use a duration such as 24h, or 0s for none", b.Every)
	case b.Every > 0 && b.PassphraseFile == "":
		bad("backup.passphrase_file", "backup.every needs it: name a file with a passphrase")
	case b.Every > 0 && b.URL == "" && n.ObjectStore.URL == "":
		bad("backup.url", "backup.every needs it or object_store.url: name a directory on another disk, or a bucket")
	}
	atLeast("object_store.cache_mib", n.ObjectStore.CacheMiB, 64)
	if n.ObjectStore.Timeout <= 0 {
		bad("object_store.timeout", "%v leaves no time for a request; use a positive duration", n.ObjectStore.Timeout)
	}
}

func (n *Node) validateCapacity(bad func(string, string, ...any), atLeast func(string, int, int)) {
	atLeast("capacity.memory_mib", n.Capacity.MemoryMiB, 0)
	atLeast("capacity.memory_reserve_mib", n.Capacity.MemoryReserveMiB, 0)
	atLeast("capacity.memory_overcommit_percent", n.Capacity.MemoryOvercommit, 10)
	atLeast("capacity.memory_pressure_percent", n.Capacity.MemoryPressure, 0)
	if n.Capacity.NodeMemoryMiB != 0 {
		atLeast("capacity.node_memory_mib", n.Capacity.NodeMemoryMiB, 256)
	}
	atLeast("capacity.streams", n.Capacity.Streams, 64)
	atLeast("capacity.connections", n.Capacity.Connections, 64)
	atLeast("capacity.disk_image_gib", n.Capacity.DiskImageGiB, 1)
	atLeast("capacity.disk_reserve_mib", n.Capacity.DiskReserveMiB, 0)
	atLeast("capacity.disk_overcommit", n.Capacity.DiskOvercommit, 0)
	if n.Capacity.DiskOvercommit > maxOvercommit {
		bad("capacity.disk_overcommit", "%d is more than %d; use 0 for no bound",
			n.Capacity.DiskOvercommit, maxOvercommit)
	}
}

func (n *Node) validateNetwork(bad func(string, string, ...any), atLeast func(string, int, int)) {
	atLeast("network.slots", n.Network.Slots, 1)
	atLeast("network.prewarmed_slots", n.Network.PrewarmedSlots, 0)
	if n.Network.PrewarmedSlots > n.Network.Slots {
		bad(
			"network.prewarmed_slots",
			"%d is more than the %d of network.slots",
			n.Network.PrewarmedSlots,
			n.Network.Slots,
		)
	}
	if !namePrefix.MatchString(n.Network.Prefix) {
		bad("network.prefix", "%q is not 1 to 8 characters of a-z and 0-9 that begin with a letter", n.Network.Prefix)
	}
	if _, err := n.Network.Addresses(); err != nil {
		bad("network.cidr", "%v", err)
	}
	if _, err := n.Network.Allowed(); err != nil {
		bad("network.allow", "%v", err)
	}
	if _, err := n.Network.Servers(); err != nil {
		bad("network.resolvers", "%v", err)
	}
	if _, err := n.Schedules.Allowed(); err != nil {
		bad("schedules.allow_networks", "%v", err)
	}
	if n.Schedules.Parallel < 1 || n.Schedules.PerWorkspace < 1 {
		bad("schedules.parallel", "%d, with schedules.per_workspace %d: use at least 1", n.Schedules.Parallel,
			n.Schedules.PerWorkspace)
	}
	if n.Functions.Concurrency < 1 || n.Functions.Builds < 1 {
		bad("functions.concurrency", "%d, with functions.builds %d: use at least 1", n.Functions.Concurrency,
			n.Functions.Builds)
	}
	if _, err := n.Build.Allowed(); err != nil {
		bad("build.allow_networks", "%v", err)
	}
	if _, err := n.Templates.Values(); err != nil {
		bad("templates.params", "%v", err)
	}
	if _, err := n.Templates.Names(); err != nil {
		bad("templates.aliases", "%v", err)
	}
}

// maxOvercommit is more than any node can use, and small enough not to overflow 64 bits in bytes.
const maxOvercommit = 1000

// maxLimit is more than any device achieves, and small enough not to overflow 64 bits in bytes.
const maxLimit = 1_000_000

// minTombstoneRetention is the time for which the API promises to return why a sandbox ended.
const minTombstoneRetention = 24 * time.Hour

// minGuestTimeout is long enough for a guest that is only slow.
const minGuestTimeout = time.Second

var namePrefix = regexp.MustCompile(`^[a-z][a-z0-9]{0,7}$`)

// validateVMM reports the problems of the settings of monitors.
func (n *Node) validateVMM(
	bad func(path, format string, args ...any),
	atLeast func(path string, value, least int),
	oneOf func(path, value string, allowed ...string),
) {
	oneOf("vmm.driver", n.VMM.Driver, "auto", "firecracker", "qemu")
	atLeast("vmm.hotplug_memory_mib", n.VMM.HotplugMemoryMiB, 0)
	if n.VMM.HotplugMemoryMiB%128 != 0 {
		bad("vmm.hotplug_memory_mib", "%d is not a multiple of 128", n.VMM.HotplugMemoryMiB)
	}
	atLeast("vmm.hotplug_disks", n.VMM.HotplugDisks, 0)
	oneOf("vmm.accelerator", n.VMM.Accelerator, "auto", "kvm", "tcg")
	oneOf("vmm.seccomp_mode", n.VMM.SeccompMode, "enforce", "record")
	for _, call := range n.VMM.AllowedSyscalls() {
		if strings.Trim(call, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
			bad("vmm.seccomp_allow", "%q is not the name of a system call, such as timerfd_create", call)
		}
	}
}

// Agent returns the path of the guest agent.
//
// It is GuestAgent if that is set, else pandastack-guest beside this program.
func (n *Node) Agent() string {
	const name = "pandastack-guest"
	if n.GuestAgent != "" {
		return n.GuestAgent
	}
	self, err := os.Executable()
	if err != nil { // the open of the relative path will fail with a clear error
		return name
	}
	return filepath.Join(filepath.Dir(self), name)
}

// Addresses parses CIDR. It returns the zero prefix if CIDR is empty.
func (n Network) Addresses() (netip.Prefix, error) {
	if n.CIDR == "" {
		return netip.Prefix{}, nil
	}
	p, err := netip.ParsePrefix(n.CIDR)
	switch {
	case err != nil || !p.Addr().Is4() || p != p.Masked() || p.Bits() > 30:
		return netip.Prefix{}, fmt.Errorf("%q is not an IPv4 network such as 10.213.0.0/16", n.CIDR)
	case n.Slots > 1<<(30-p.Bits()):
		return netip.Prefix{}, fmt.Errorf(
			"%s has room for %d sandboxes, but network.slots is %d",
			n.CIDR,
			1<<(30-p.Bits()),
			n.Slots,
		)
	}
	return p, nil
}

// Prefixes parses Networks. An address is the network that contains it alone.
func (t TrustedProxies) Prefixes() ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, text := range list(t.Networks) {
		p, err := netip.ParsePrefix(text)
		if a, bad := netip.ParseAddr(text); bad == nil {
			p, err = a.Prefix(a.BitLen())
		}
		if err != nil || p.Addr().Is4In6() {
			return nil, fmt.Errorf("%q is not an address or network such as 10.0.0.0/8", text)
		}
		all = append(all, p.Masked())
	}
	return all, nil
}

// Allowed parses Allow.
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

// Servers parses Resolvers. The port is 53 unless one is given.
func (n Network) Servers() ([]netip.AddrPort, error) {
	var all []netip.AddrPort
	for _, text := range list(n.Resolvers) {
		if a, err := netip.ParseAddr(text); err == nil {
			all = append(all, netip.AddrPortFrom(a, 53))
			continue
		}
		a, err := netip.ParseAddrPort(text)
		if err != nil {
			return nil, fmt.Errorf("%q is not an IP address, with or without a port", text)
		}
		all = append(all, a)
	}
	return all, nil
}

// Values parses Params.
func (t Templates) Values() (map[string]string, error) { return pairs(t.Params) }

// Names parses Aliases. It returns the template of each alias.
func (t Templates) Names() (map[string]string, error) { return pairs(t.Aliases) }

func pairs(text string) (map[string]string, error) {
	all := map[string]string{}
	for _, one := range list(text) {
		key, value, ok := strings.Cut(one, "=")
		if _, twice := all[key]; !ok || key == "" || twice {
			return nil, fmt.Errorf("%q is not a name and a value such as a=b, or is set twice", one)
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

// previewDomain is a host name in lower case, without a dot at its end.
var previewDomain = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)

// isPreviewDomain reports whether text is a host name to which the label of a port can be prepended, with or without a
// port. An address is none.
func isPreviewDomain(text string) bool {
	name, port, err := net.SplitHostPort(text)
	if err != nil {
		name, port = text, "1"
	}
	_, err = netip.ParseAddr(name)
	return text == "" || err != nil && isPort(port) && len(name) <= 180 && previewDomain.MatchString(name)
}
