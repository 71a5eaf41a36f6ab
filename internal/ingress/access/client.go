package access

import (
	"net/http"
	"strings"
)

// forged are headers in which proxies tell programs about the client. A request has none but those that this node sets.
var forged = map[string]bool{
	"X-Real-Ip": true, "True-Client-Ip": true, "Client-Ip": true, "X-Client-Ip": true, "X-Cluster-Client-Ip": true,
	"Cf-Connecting-Ip": true, "Cf-Connecting-Ipv6": true, "Fastly-Client-Ip": true, "X-Remote-Ip": true,
	"X-Remote-Addr": true, "X-Original-Host": true, "X-Original-Url": true, "X-Rewrite-Url": true, "X-Host": true,
	"X-Url-Scheme": true, "Front-End-Https": true, "Forwarded": true, "Proxy": true, "X-Forwarded": true,
}

// ClientHeaders removes what a client says about itself and adds what is known: its address in X-Real-Ip.
// Programs behind interfaces like CGI do
// not tell underscores in names of headers from dashes.
func ClientHeaders(r *http.Request) {
	for name := range r.Header {
		plain := http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))
		if forged[plain] || strings.HasPrefix(plain, "X-Forwarded-") && name != "X-Forwarded-Proto" {
			delete(r.Header, name)
		}
	}
	if from := AddressOf(r); from.IsValid() {
		r.Header.Set("X-Real-Ip", from.String())
	}
}
