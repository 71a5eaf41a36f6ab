package proxy

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
)

// Address names a port of a sandbox.
type Address struct {
	Sandbox string // lower-case letters and digits
	Port    uint16
}

// maxID bounds the id in a host name: a DNS label has at most 63 bytes, and the port takes some of them.
const maxID = 57

// ErrMalformed is wrapped by errors about host names or headers that are meant for a sandbox.
var ErrMalformed = errors.New("malformed address of a sandbox")

// Addresser reads the address of a sandbox's port from a request.
//
// It returns false if the request is not for a sandbox at all, and an error that wraps ErrMalformed if the request is
// for one but names it wrongly.
type Addresser func(r *http.Request) (Address, bool, error)

// AddressOfHost is the Addresser of host names: their left-most label is <port>-<id>.
//
// More may follow the id behind another dash. A name without a domain and an IP address name no sandbox.
func AddressOfHost(r *http.Request) (Address, bool, error) {
	host := Hostname(r.Host)
	label, domain, dotted := strings.Cut(host, ".")
	if !dotted || domain == "" || !startsWithDigit(label) || IsIP(host) {
		return Address{}, false, nil
	}
	port, id, ok := strings.Cut(label, "-")
	if !ok {
		return Address{}, false, nil
	}
	id, _, _ = strings.Cut(id, "-")
	a, err := ParseAddress(port, id)
	return a, true, err
}

// HostIn returns the host name of the address below a domain, which may have a port of its own.
func (a Address) HostIn(domain string) string {
	return strconv.Itoa(int(a.Port)) + "-" + a.Sandbox + "." + domain
}

// Hostname returns the lower-case host of hostport without port, brackets and trailing dot.
func Hostname(hostport string) string {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}

// IsIP reports whether host is an IP address.
func IsIP(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}

func startsWithDigit(s string) bool { return s != "" && s[0] >= '0' && s[0] <= '9' }

// ParseAddress returns the address with the given port and id, or an error that wraps ErrMalformed.
func ParseAddress(port, id string) (Address, error) {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return Address{}, fmt.Errorf("%w: port %.20q is not a number from 1 to 65535", ErrMalformed, port)
	}
	if !IsID(id) {
		return Address{}, fmt.Errorf("%w: id %.80q is not made of lower-case letters and digits", ErrMalformed, id)
	}
	return Address{Sandbox: id, Port: uint16(n)}, nil
}

// IsID reports whether text has the form of a sandbox id.
func IsID(text string) bool {
	if text == "" || len(text) > maxID {
		return false
	}
	for _, c := range []byte(text) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}
