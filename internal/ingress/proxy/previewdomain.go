package proxy

import (
	"net"
	"net/netip"
	"regexp"

	"github.com/pandastack/pandastack/api"
)

// hostForm is the form of a host name.
var hostForm = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]{0,250}[A-Za-z0-9_])?$`)

// PreviewDomain returns the domain of previews, with a port if clients need one: the configured domain, else the host
// of the API. Loopback addresses become localhost, below which browsers resolve every name to this machine.
func PreviewDomain(configured, apiHost string) (string, error) {
	name, port, err := net.SplitHostPort(apiHost)
	if err != nil {
		name, port = apiHost, ""
	}
	if configured != "" {
		if _, _, err := net.SplitHostPort(configured); err == nil || port == "" {
			return configured, nil
		}
		return net.JoinHostPort(configured, port), nil
	}
	name = Hostname(name)
	if ip, err := netip.ParseAddr(name); err == nil {
		if !ip.Unmap().IsLoopback() {
			return "", api.Errorf(api.Unsupported, "previews have host names, and %s is an address: "+
				"set preview.domain to a domain below which all names lead to this node, or use the API by a name", ip)
		}
		name = "localhost"
	}
	if !hostForm.MatchString(name) {
		return "", api.Errorf(api.Invalid, "the host %.60s of this request is not a name", name)
	}
	if port == "" {
		return name, nil
	}
	return net.JoinHostPort(name, port), nil
}
