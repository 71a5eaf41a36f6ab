package proxy

import (
	"context"
	"net/http"
	"slices"
	"strings"
)

// Programs share a site, and some responses an origin, with each other and with the API. This file removes from
// requests what belongs to the platform, and from responses what would take effect beyond the program's own host.

// siteHeaders take effect on the whole site of a response: Clear-Site-Data clears cookies of all hosts below the
// domain, and Alt-Svc names other servers for the host.
var siteHeaders = []string{"Clear-Site-Data", "Alt-Svc"}

// originHeaders take effect on later responses of the same origin.
var originHeaders = []string{
	"Service-Worker-Allowed", "Strict-Transport-Security", "Public-Key-Pins", "Nel", "Report-To", "Reporting-Endpoints",
	"Origin-Agent-Cluster", "Accept-Ch", "Critical-Ch", "Set-Login", "Refresh",
}

// isolate removes from the response of a program what would take effect on other hosts, and if the origin is shared, on
// other responses of the origin.
func isolate(res *http.Response) error {
	rt, _ := routeOf(res.Request.Context())
	if rt.OwnSite {
		res.Header.Del("Alt-Svc")
		return nil
	}
	Isolate(res.Header, rt.Shared, rt.Prefix)
	return nil
}

// Isolate removes from the headers of a response what would take effect beyond the program.
//
// That is on other hosts and, if its origin is shared, on other responses of the origin. prefix is what precedes the
// program's own path in a shared URL; "": nothing.
func Isolate(h http.Header, shared bool, prefix string) {
	for _, name := range siteHeaders {
		h.Del(name)
	}
	ownCookies(h, shared, prefix)
	if !shared {
		return
	}
	for _, name := range originHeaders {
		h.Del(name)
	}
	h.Set("Content-Security-Policy", "sandbox") // a page of an origin of its own, without scripts
	h.Set("X-Content-Type-Options", "nosniff")
	if prefix == "" {
		h.Set("Cache-Control", "no-store") // the URL does not name the sandbox
	}
}

// ownCookies binds the cookies of a response to its host, or to its prefix. Where neither names the sandbox, there are
// none.
func ownCookies(h http.Header, shared bool, prefix string) {
	lines := h.Values("Set-Cookie")
	if len(lines) == 0 {
		return
	}
	h.Del("Set-Cookie")
	if shared && prefix == "" {
		return
	}
	for _, line := range lines {
		if !isPreviewCookie(line) {
			h.Add("Set-Cookie", ownCookie(line, prefix))
		}
	}
}

// ownCookie returns the text of a cookie without its domain and with the path below prefix.
func ownCookie(line, prefix string) string {
	parts := strings.Split(line, ";")
	path := "/"
	kept := slices.DeleteFunc(parts[1:], func(attribute string) bool {
		name, value, _ := strings.Cut(attribute, "=")
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "domain":
			return true
		case "path":
			if value = strings.TrimSpace(value); strings.HasPrefix(value, "/") {
				path = value
			}
			return prefix != ""
		default:
			return false
		}
	})
	out := strings.Join(append(parts[:1], kept...), ";")
	if prefix != "" {
		out += "; Path=" + prefix + path
	}
	return out
}

// dropCredentials removes credentials of the platform from the headers and the query of a request to a program,
// wherever the client put them: keys of the API and tokens of the sandbox.
func (p *Proxy) dropCredentials(out *http.Request, rt Route) {
	var secrets []string
	if rt.access.policy != nil {
		secrets = rt.access.policy.Secrets(rt.Sandbox.ID)
	}
	isSecret := func(v string) bool {
		return p.cfg.IsKey != nil && p.cfg.IsKey(v) || slices.ContainsFunc(secrets, func(s string) bool {
			return equal(v, s)
		})
	}
	for _, name := range p.cfg.HideHeaders {
		out.Header.Del(name)
	}
	DropKeys(out, isSecret)
}

// DropKeys removes secrets from the headers and the query of a request to a program.
func DropKeys(out *http.Request, isSecret func(text string) bool) {
	for name, values := range out.Header {
		if !slices.ContainsFunc(values, func(v string) bool { return containsSecret(v, isSecret) }) {
			continue
		}
		if name != "Sec-Websocket-Protocol" {
			out.Header.Del(name)
			continue
		}
		protocols := slices.DeleteFunc(strings.Split(strings.Join(values, ","), ","), func(v string) bool {
			return containsSecret(v, isSecret)
		})
		out.Header.Del(name)
		if len(protocols) > 0 {
			out.Header.Set(name, strings.TrimSpace(strings.Join(protocols, ",")))
		}
	}
	q := out.URL.Query()
	for name, values := range q {
		if slices.ContainsFunc(values, isSecret) {
			out.URL.RawQuery = RemoveParam(out.URL.RawQuery, name)
		}
	}
}

// containsSecret reports whether a word of a header's value is a secret: the value itself, what follows a scheme, or
// what follows the prefix of a key among WebSocket protocols.
func containsSecret(value string, isSecret func(string) bool) bool {
	for word := range strings.FieldsFuncSeq(value, func(c rune) bool { return c == ' ' || c == ',' || c == ';' }) {
		if isSecret(strings.TrimPrefix(word, "bearer.")) {
			return true
		}
	}
	return false
}

// isForbidden returns why a request cannot be forwarded, "" if it can be.
func isForbidden(r *http.Request, rt Route) (status int, why string) {
	switch {
	case r.Method == http.MethodConnect:
		return http.StatusMethodNotAllowed, "CONNECT is not possible on ports of sandboxes: send the request itself"
	case r.URL.Path != "" && !strings.HasPrefix(r.URL.Path, "/"):
		return http.StatusBadRequest, "the target of the request is not a path"
	case rt.Shared && r.Header.Get("Service-Worker") != "":
		return http.StatusForbidden, "service workers need the sandbox's own host name: open the port by that"
	default:
		return 0, ""
	}
}

// routeOnly is a context whose only value is the route. It keeps informational responses of programs from the client:
// the hook that would pass them on is a value of the context, and their headers are not isolated.
type routeOnly struct{ context.Context }

// Value implements context.Context.
func (c routeOnly) Value(key any) any {
	if key == (routeKey{}) {
		return c.Context.Value(key)
	}
	return nil
}
