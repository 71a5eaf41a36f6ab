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

// Address is what a request is for: a port of a sandbox.
type Address struct {
	Sandbox string // lower-case letters and digits
	Port    uint16
}

// maxID bounds the id in a host name: a DNS label has at most 63 bytes, and the port takes some.
const maxID = 57

// errMalformed wraps what is wrong with a host name or header that is meant for a sandbox.
var errMalformed = errors.New("malformed address of a sandbox")

// AddressOf says which port of which sandbox a request is for. It answers false for a request that is not
// for a sandbox at all, and an error for one that is, but badly.
//
// A sandbox is addressed by the left-most label of the host, <port>-<id>, optionally followed by more
// that begins with a dash, or, on a bare address, localhost or a host that begins with "sandbox.", by the
// headers E2b-Sandbox-Id and E2b-Sandbox-Port.
func AddressOf(r *http.Request) (Address, bool, error) {
	host := hostname(r.Host)
	if id, port := r.Header.Get("E2b-Sandbox-Id"), r.Header.Get("E2b-Sandbox-Port"); id != "" && port != "" &&
		isSharedHost(host) {
		p, err := parseAddress(port, id)
		return p, true, err
	}
	label, domain, dotted := strings.Cut(host, ".")
	if !dotted || domain == "" || !startsWithDigit(label) || isAddress(host) {
		return Address{}, false, nil
	}
	port, id, ok := strings.Cut(label, "-")
	if !ok {
		return Address{}, false, nil
	}
	id, _, _ = strings.Cut(id, "-")
	p, err := parseAddress(port, id)
	return p, true, err
}

func hostname(hostport string) string {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}

func isSharedHost(host string) bool {
	return host == "localhost" || isAddress(host) || strings.HasPrefix(host, "sandbox.")
}

func isAddress(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}

func startsWithDigit(s string) bool { return s != "" && s[0] >= '0' && s[0] <= '9' }

func parseAddress(port, id string) (Address, error) {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return Address{}, fmt.Errorf("%w: port %.20q is not a number from 1 to 65535", errMalformed, port)
	}
	if !IsID(id) {
		return Address{}, fmt.Errorf("%w: id %.80q is not made of lower-case letters and digits", errMalformed, id)
	}
	return Address{Sandbox: id, Port: uint16(n)}, nil
}

// IsID says whether text has the form of a sandbox id.
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
