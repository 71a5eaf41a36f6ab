package proxy

import (
	"crypto/subtle"
	"net/http"
	"slices"
	"strings"
	"time"
)

// TrafficHeader carries the token that opens the ports of a private sandbox.
const TrafficHeader = "e2b-traffic-access-token"

// PreviewName is the parameter of an address, and the cookie, that carries a signed preview. A browser that
// opens an address with it is given the cookie and sent to the same address without it.
const PreviewName = "pandastack_preview"

func equal(got, want string) bool { return subtle.ConstantTimeCompare([]byte(got), []byte(want)) == 1 }

// how a request may pass.
type pass int

const (
	passNone pass = iota
	passFree      // by nothing, or by what the program inside does not see
	passLink      // by a preview in its address
)

func (t Target) passOf(r *http.Request, port uint16) pass {
	if t.TrafficToken == "" || equal(r.Header.Get(TrafficHeader), t.TrafficToken) {
		return passFree
	}
	if cookie, err := r.Cookie(PreviewName); err == nil && t.covers(cookie.Value, r, port) {
		return passFree
	}
	if strings.Contains(r.URL.RawQuery, PreviewName+"=") && t.covers(r.URL.Query().Get(PreviewName), r, port) {
		return passLink
	}
	return passNone
}

// covers tells whether a signed preview lets a request in.
func (t Target) covers(token string, r *http.Request, port uint16) bool {
	v, err := OpenPreview(t.PreviewKey, token, time.Now())
	return err == nil && v.Sandbox == t.ID && v.Port == int(port) && v.Allows(r.URL.Path)
}

// Admit lets a request pass that may reach the sandbox's ports, without what opened them; any other it answers
// itself. A preview in the address of a page is put into a cookie.
func (t Target) Admit(w http.ResponseWriter, r *http.Request, port uint16) (*http.Request, bool) {
	if t.TrafficToken == "" {
		return r, true
	}
	how := t.passOf(r, port)
	if how == passNone {
		writeError(w, r, http.StatusForbidden, errorBody{Sandbox: t.ID,
			Message: "this sandbox is private: send its traffic access token in the header " + TrafficHeader})
		return nil, false
	}
	out := r.Clone(r.Context())
	dropPreviewCookie(out.Header)
	if how != passLink {
		return out, true
	}
	q := out.URL.Query()
	token := q.Get(PreviewName)
	out.URL.RawQuery = withoutPreview(out.URL.RawQuery)
	if r.Method != http.MethodGet && r.Method != http.MethodHead || r.Header.Get("Upgrade") != "" {
		return out, true
	}
	// Pages in frames of other sites are the usual case of a preview, so the cookie goes with them where the
	// connection is private.
	site := http.SameSiteLaxMode
	if r.TLS != nil {
		site = http.SameSiteNoneMode
	}
	http.SetCookie(
		w,
		&http.Cookie{Name: PreviewName, Value: token, Path: "/", HttpOnly: true, Secure: r.TLS != nil, SameSite: site},
	)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	to := *out.URL
	to.Scheme, to.Host = "", ""
	to.Path, to.RawPath = "/"+strings.TrimLeft(to.Path, "/"), "" // not another host
	http.Redirect(w, r, to.String(), http.StatusFound)
	return nil, false
}

// withoutPreview takes the preview out of a query and leaves all else as it is.
func withoutPreview(query string) string {
	parts := slices.DeleteFunc(
		strings.Split(query, "&"),
		func(p string) bool { return strings.HasPrefix(p, PreviewName+"=") },
	)
	return strings.Join(parts, "&")
}

// dropPreviewCookie takes the preview out of the cookies that a program inside sees.
func dropPreviewCookie(h http.Header) {
	var kept []string
	for _, line := range h.Values("Cookie") {
		for c := range strings.SplitSeq(line, ";") {
			if c = strings.TrimSpace(c); c != "" && !strings.HasPrefix(c, PreviewName+"=") {
				kept = append(kept, c)
			}
		}
	}
	h.Del("Cookie")
	if len(kept) > 0 {
		h.Set("Cookie", strings.Join(kept, "; "))
	}
}
