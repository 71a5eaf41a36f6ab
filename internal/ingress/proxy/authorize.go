package proxy

import (
	"crypto/subtle"
	"net/http"
	"slices"
	"strings"
	"time"
)

// PreviewName is the query parameter, and the cookie, that carries a signed preview.
//
// A browser that opens a URL with the parameter gets the cookie and is redirected to the same URL without it.
const PreviewName = "pandastack_preview"

func equal(got, want string) bool { return subtle.ConstantTimeCompare([]byte(got), []byte(want)) == 1 }

// access is what opens the ports of private sandboxes. The zero value opens none.
type access struct {
	policy     Policy
	previewKey []byte
}

// trafficToken returns the token of the policy and its header; both are empty without one.
func (rt Route) trafficToken() (header, token string) {
	if rt.access.policy == nil {
		return "", ""
	}
	return rt.access.policy.TrafficToken(rt.Sandbox.ID)
}

// grant is why a request may reach a port.
type grant int

const (
	grantNone grant = iota
	grantFree       // the port is public, or the credential is in a header that programs do not see
	grantLink       // a preview in the URL
)

func (rt Route) grantOf(r *http.Request) grant {
	if !isPrivate(rt.Sandbox) {
		return grantFree
	}
	if header, token := rt.trafficToken(); token != "" && equal(r.Header.Get(header), token) {
		return grantFree
	}
	if cookie, err := r.Cookie(PreviewName); err == nil && rt.previewAllows(cookie.Value, r) {
		return grantFree
	}
	if strings.Contains(r.URL.RawQuery, PreviewName+"=") && rt.previewAllows(r.URL.Query().Get(PreviewName), r) {
		return grantLink
	}
	return grantNone
}

// previewAllows reports whether a signed preview covers the port and path of a request.
func (rt Route) previewAllows(token string, r *http.Request) bool {
	v, err := OpenPreview(rt.access.previewKey, token, time.Now())
	return err == nil && v.Sandbox == rt.Address.Sandbox && v.Port == int(rt.Address.Port) && v.Allows(r.URL.Path)
}

// mayWake reports whether r may wake the sandbox, if it is private: r has what opens the port or the port's service.
func (rt Route) mayWake(r *http.Request) bool {
	return rt.grantOf(r) != grantNone || rt.Service != nil && rt.Service.MayWake(r, rt.Sandbox)
}

// CheckAccess returns the request to forward and true if r may reach the port.
//
// The returned request lacks the credential of a preview. CheckAccess returns false if it has sent a response
// itself: an error, or the redirect that replaces a preview in the URL of a page by a cookie.
func (rt Route) CheckAccess(w http.ResponseWriter, r *http.Request) (*http.Request, bool) {
	if !isPrivate(rt.Sandbox) {
		return r, true
	}
	how := rt.grantOf(r)
	if how == grantNone {
		writeError(w, r, http.StatusForbidden, errorBody{Sandbox: rt.Address.Sandbox, Message: rt.privateMessage()})
		return nil, false
	}
	out := r.Clone(r.Context())
	dropPreviewCookie(out.Header)
	if how != grantLink {
		return out, true
	}
	token := out.URL.Query().Get(PreviewName)
	out.URL.RawQuery = withoutPreview(out.URL.RawQuery)
	if r.Method != http.MethodGet && r.Method != http.MethodHead || r.Header.Get("Upgrade") != "" {
		return out, true
	}
	redirectWithCookie(w, out, token)
	return nil, false
}

func (rt Route) privateMessage() string {
	if header, token := rt.trafficToken(); token != "" {
		return "this sandbox is private: send its traffic access token in the header " + header
	}
	return "this sandbox is private: open it by a preview address"
}

// redirectWithCookie sends a browser to the URL of r with the preview in a cookie.
//
// Most previews are frames in pages of other sites, so the cookie is sent from there too if the connection is TLS.
func redirectWithCookie(w http.ResponseWriter, r *http.Request, token string) {
	site := http.SameSiteLaxMode
	if r.TLS != nil {
		site = http.SameSiteNoneMode
	}
	http.SetCookie(w, &http.Cookie{
		Name: PreviewName, Value: token, Path: "/", HttpOnly: true, Secure: r.TLS != nil, SameSite: site,
	})
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	to := *r.URL
	to.Scheme, to.Host = "", ""
	to.Path, to.RawPath = "/"+strings.TrimLeft(to.Path, "/"), "" // "//x" would be another host
	http.Redirect(w, r, to.String(), http.StatusFound)
}

// withoutPreview removes the preview from a query and keeps the rest as it is.
func withoutPreview(query string) string {
	parts := slices.DeleteFunc(
		strings.Split(query, "&"),
		func(p string) bool { return strings.HasPrefix(p, PreviewName+"=") },
	)
	return strings.Join(parts, "&")
}

// dropPreviewCookie removes the preview from the cookies that a program inside sees.
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
