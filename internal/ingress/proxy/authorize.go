package proxy

import (
	"crypto/subtle"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
)

// PreviewName is the query parameter, and the cookie, that carries a signed preview.
//
// A browser that visits a URL with the parameter gets the cookie and is redirected to the same URL without it.
const PreviewName = "pandastack_preview"

// secureCookie is the name of the cookie over TLS. By the prefix, browsers accept it only from the host itself: no page
// of another sandbox can set it.
const secureCookie = "__Host-" + PreviewName

func equal(got, want string) bool { return subtle.ConstantTimeCompare([]byte(got), []byte(want)) == 1 }

// access is what opens the ports of private sandboxes. The zero value opens none.
type access struct {
	policy     Policy
	previewKey []byte
	previews   Previews
	opened     func(r *http.Request, v Preview)
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
	grantNone   grant = iota
	grantFree         // the port is public, or the credential is in a header that programs do not see
	grantCookie       // a preview in a cookie
	grantLink         // a preview in the URL
)

// grantOf returns why r may reach the port, and the preview if that is one.
func (rt Route) grantOf(r *http.Request) (grant, Preview) {
	if !isPrivate(rt.Sandbox) {
		return grantFree, Preview{}
	}
	if header, token := rt.trafficToken(); token != "" && equal(r.Header.Get(header), token) {
		return grantFree, Preview{}
	}
	if token, ok := previewInURL(r.URL); ok {
		if v, ok := rt.openPreview(token, r); ok {
			return grantLink, v
		}
	}
	if rt.Shared || !rt.isOwnPage(r) {
		return grantNone, Preview{}
	}
	// Pages of other sandboxes may have set cookies of the same name for a common domain.
	for _, name := range []string{secureCookie, PreviewName} {
		for _, c := range r.CookiesNamed(name) {
			if v, ok := rt.openPreview(c.Value, r); ok {
				return grantCookie, v
			}
		}
	}
	return grantNone, Preview{}
}

// openPreview returns the preview of a token, and whether it covers the port and path of a request.
func (rt Route) openPreview(token string, r *http.Request) (Preview, bool) {
	v, err := OpenPreview(rt.access.previewKey, token, time.Now())
	ok := err == nil && v.Sandbox == rt.Address.Sandbox && v.Port == int(rt.Address.Port) && v.Allows(r.URL.Path) &&
		(rt.access.previews == nil || !rt.access.previews.IsRevoked(r.Context(), v.ID))
	return v, ok
}

// isOwnPage reports whether no page of somebody else made r. Browsers send the cookie of a preview with those requests
// too: at least pages of other sandboxes below the same domain are of the same site. A visit, by a link or in a
// frame, is not made by the page that has the link, which does not see the response.
func (rt Route) isOwnPage(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	visit := r.Header.Get("Sec-Fetch-Mode") == "navigate" && isSafe(r.Method)
	if site == "same-origin" || site == "none" || visit {
		return true
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return site == "" // not a browser, or one that does not tell
	}
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" {
		return false
	}
	if strings.EqualFold(u.Host, r.Host) {
		return true
	}
	a, ok, err := AddressOfHost(&http.Request{Host: u.Host})
	return ok && err == nil && a.Sandbox == rt.Address.Sandbox && domainOf(u.Host) == domainOf(r.Host)
}

// domainOf returns what follows the first label of a host.
func domainOf(host string) string {
	_, domain, _ := strings.Cut(Hostname(host), ".")
	return domain
}

func isSafe(method string) bool { return method == http.MethodGet || method == http.MethodHead }

// checkWake returns an error unless r may wake the sandbox: it has what the port's service needs, or what opens the
// port if that needs nothing.
func (rt Route) checkWake(r *http.Request) error {
	if rt.Service != nil {
		if ok, needed := rt.Service.MayWake(r, rt.Sandbox); needed && !ok {
			return api.Errorf(api.Forbidden, "this sandbox sleeps: send its access token to wake it")
		} else if needed {
			return nil
		}
	}
	if how, _ := rt.grantOf(r); how == grantNone {
		return api.Errorf(api.Forbidden, "%s", rt.privateMessage())
	}
	return nil
}

// CheckAccess returns the request to forward and true if r may reach the port.
//
// The returned request lacks the credential of a preview, and its context ends with the preview. CheckAccess returns
// false if it has sent a response itself: an error, or the redirect that replaces a preview in the URL of a page by a
// cookie.
func (rt Route) CheckAccess(w http.ResponseWriter, r *http.Request) (*http.Request, bool) {
	how, v := rt.grantOf(r)
	ctx := r.Context()
	if (how == grantCookie || how == grantLink) && rt.access.previews != nil {
		var ok bool
		if ctx, ok = rt.access.previews.Use(ctx, v.ID, v.Expires); !ok {
			how = grantNone
		}
	}
	if how == grantNone {
		writeError(w, r, http.StatusForbidden, errorBody{Sandbox: rt.Address.Sandbox, Message: rt.privateMessage()})
		return nil, false
	}
	out := r.Clone(ctx)
	dropPreviewCookies(out.Header)
	token, inURL := previewInURL(r.URL)
	out.URL.RawQuery = RemoveParam(out.URL.RawQuery, PreviewName)
	if how == grantLink && rt.access.opened != nil {
		rt.access.opened(r, v)
	}
	if !inURL || rt.Shared || !isVisit(r) {
		return out, true
	}
	if how == grantLink {
		setPreviewCookie(w, r, token, v.Expires)
	}
	redirectTo(w, out)
	return nil, false
}

func (rt Route) privateMessage() string {
	if header, token := rt.trafficToken(); token != "" {
		return "this sandbox is private: send its traffic access token in the header " + header +
			", or open it by a preview URL"
	}
	return "this sandbox is private: open it by a preview URL"
}

// isVisit reports whether r is for a page that a browser shows. Other clients, which may keep no cookies, send the
// preview with every request.
func isVisit(r *http.Request) bool {
	return isSafe(r.Method) && r.Header.Get("Upgrade") == "" &&
		(r.Header.Get("Sec-Fetch-Mode") == "navigate" || WantsPage(r))
}

// setPreviewCookie gives a browser the preview for the host of r alone.
//
// Most previews are frames in pages of other sites, so over TLS the cookie is sent from there too, and kept apart for
// each of these sites.
func setPreviewCookie(w http.ResponseWriter, r *http.Request, token string, expires time.Time) {
	c := &http.Cookie{
		Name: PreviewName, Value: token, Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode,
		MaxAge: max(1, int(time.Until(expires).Seconds())),
	}
	if isTLS(r) {
		c.Name, c.Secure, c.Partitioned, c.SameSite = secureCookie, true, true, http.SameSiteNoneMode
	}
	http.SetCookie(w, c)
}

// isTLS reports whether the client speaks TLS, to this node or to a proxy in front of it. The header can only make the
// cookie of its sender stricter.
func isTLS(r *http.Request) bool { return r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https" }

// redirectTo sends a browser to the URL of r on the same host.
func redirectTo(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	to := *r.URL
	to.Scheme, to.Host, to.User = "", "", nil
	to.Path, to.RawPath = "/"+strings.TrimLeft(to.Path, `/\`), "" // "//x" would be another host
	http.Redirect(w, r, to.String(), http.StatusFound)
}

func previewInURL(u *url.URL) (token string, ok bool) {
	if !strings.Contains(u.RawQuery, "preview") {
		return "", false
	}
	q := u.Query()
	return q.Get(PreviewName), q.Has(PreviewName)
}

// RemoveParam removes a parameter from a query and keeps the rest as it is.
//
// It finds the name however it is encoded.
func RemoveParam(query, name string) string {
	parts := slices.DeleteFunc(strings.Split(query, "&"), func(p string) bool {
		key, _, _ := strings.Cut(p, "=")
		key, err := url.QueryUnescape(key)
		return err == nil && key == name
	})
	return strings.Join(parts, "&")
}

// dropPreviewCookies removes previews from the cookies that a program inside sees.
func dropPreviewCookies(h http.Header) {
	var kept []string
	for _, line := range h.Values("Cookie") {
		for c := range strings.SplitSeq(line, ";") {
			if c = strings.TrimSpace(c); c != "" && !isPreviewCookie(c) {
				kept = append(kept, c)
			}
		}
	}
	h.Del("Cookie")
	if len(kept) > 0 {
		h.Set("Cookie", strings.Join(kept, "; "))
	}
}

// isPreviewCookie reports whether the text of a cookie, name=value, is that of a preview.
func isPreviewCookie(text string) bool {
	name, _, _ := strings.Cut(text, "=")
	name = strings.TrimSpace(name)
	return name == PreviewName || name == secureCookie
}
