package httpapi

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
)

func makePreview(rq *request, req api.PreviewRequest) (api.Preview, error) {
	if len(rq.s.cfg.PreviewKey) == 0 {
		return api.Preview{}, api.Errorf(api.Unsupported, "this server signs no preview addresses")
	}
	box, err := onSandbox(rq, rq.s.deps.Sandboxes.Get)
	if err != nil {
		return api.Preview{}, err
	}
	v := proxy.Preview{
		Sandbox: string(box.ID), Port: req.Port, Workspace: string(rq.p.Workspace), Paths: req.Paths,
		Expires: time.Now().Add(time.Duration(req.TTLSeconds) * time.Second).UTC().Truncate(time.Second),
	}
	host, err := rq.previewURL(v)
	if err != nil {
		return api.Preview{}, err
	}
	token, id := proxy.SignPreview(rq.s.cfg.PreviewKey, v)
	host.RawQuery = previewQuery("", token)
	if rq.s.deps.Previews != nil {
		err := rq.s.deps.Previews.Record(rq.r.Context(), rq.p, box.ID, api.PreviewInfo{
			ID: id, Port: v.Port, Paths: v.Paths, CreatedAt: time.Now(), ExpiresAt: v.Expires,
		})
		if err != nil {
			return api.Preview{}, err
		}
	}
	return api.Preview{
		ID: id, URL: rq.baseURL() + previewPrefix + token + "/", HostURL: host.String(), Token: token,
		SandboxID: box.ID, Port: req.Port, Paths: req.Paths, ExpiresAt: v.Expires,
	}, nil
}

// previewSandbox returns the sandbox in the path, which the caller owns, on a server that records previews.
func (rq *request) previewSandbox() (api.SandboxID, error) {
	box, err := onSandbox(rq, rq.s.deps.Sandboxes.Get)
	if err == nil && rq.s.deps.Previews == nil {
		err = api.Errorf(api.Unsupported, "this server records no previews")
	}
	return box.ID, err
}

func listPreviews(rq *request) (api.PreviewList, error) {
	id, err := rq.previewSandbox()
	if err != nil {
		return api.PreviewList{}, err
	}
	list, err := rq.s.deps.Previews.List(rq.r.Context(), id)
	return api.PreviewList{Previews: list}, err
}

func revokePreview(rq *request) error {
	id, err := rq.previewSandbox()
	if err != nil {
		return err
	}
	return rq.s.deps.Previews.Revoke(rq.r.Context(), id, rq.r.PathValue("preview"))
}

func revokePreviews(rq *request) error {
	id, err := rq.previewSandbox()
	if err != nil {
		return err
	}
	return rq.s.deps.Previews.RevokeAll(rq.r.Context(), rq.p, id, proxy.EarlierPreviewID(string(id)))
}

// previewQuery adds a preview to a query.
func previewQuery(query, token string) string {
	if query = proxy.RemoveParam(query, proxy.PreviewName); query != "" {
		query += "&"
	}
	return query + proxy.PreviewName + "=" + url.QueryEscape(token)
}

// redirectPreview sends the client of a preview to the sandbox's own host name: nothing that a program sends has the
// origin of the API.
func redirectPreview(rq *request) error {
	to, err := rq.previewTarget()
	if err != nil && proxy.WantsPage(rq.r) {
		e := api.AsError(err)
		proxy.WritePage(rq.w, e.Code.Info().Status, e.Message, string(rq.id()))
		return nil
	}
	if err != nil {
		return err
	}
	h := rq.w.Header()
	h.Set("Location", to)
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer") // the URL is the credential
	rq.w.WriteHeader(http.StatusTemporaryRedirect)
	return nil
}

// previewTarget returns where a request with a preview in its path goes.
func (rq *request) previewTarget() (string, error) {
	token := rq.r.PathValue("token")
	v, err := openPreview(rq.s.cfg.PreviewKey, token)
	if err != nil {
		return "", err
	}
	rq.p = auth.Principal{Workspace: api.Workspace(v.Workspace), KeyPrefix: "preview"} // for the audit log
	rq.action, rq.target = "preview of port "+strconv.Itoa(v.Port), v.Sandbox
	if rq.s.deps.Previews != nil && rq.s.deps.Previews.IsRevoked(rq.r.Context(), v.ID) {
		return "", api.Errorf(api.Gone, "this preview address was revoked: ask for a new one")
	}
	_, _, rest := splitForwardPath(rq.r.URL.EscapedPath())
	inner, err := url.ParseRequestURI(rest)
	if err != nil {
		return "", api.Errorf(api.Invalid, "the path behind the token is no path: %w", err)
	}
	if !v.Allows(inner.Path) {
		return "", api.Errorf(api.Forbidden, "this preview address does not cover %s", truncate(inner.Path))
	}
	to, err := rq.previewURL(v)
	if err != nil {
		return "", err
	}
	to.Path, to.RawPath = inner.Path, inner.RawPath
	to.RawQuery = previewQuery(rq.r.URL.RawQuery, token)
	return to.String(), nil
}

func openPreview(key []byte, token string) (proxy.Preview, error) {
	v, err := proxy.OpenPreview(key, token, time.Now())
	switch {
	case errors.Is(err, proxy.ErrExpired):
		return v, api.Errorf(api.Gone, "this preview address has expired: make a new one")
	case err != nil:
		return v, api.Errorf(api.Unauthenticated, "this preview address does not hold: make a new one")
	}
	return v, nil
}

// previewURL returns the root of the host name of a preview.
func (rq *request) previewURL(v proxy.Preview) (*url.URL, error) {
	base, err := url.Parse(rq.baseURL())
	if err != nil {
		return nil, api.Errorf(api.Invalid, "the address of this request is not a URL: %w", err)
	}
	domain, err := proxy.PreviewDomain(rq.s.cfg.PreviewDomain, base.Host)
	if err != nil {
		return nil, err
	}
	a := proxy.Address{Sandbox: v.Sandbox, Port: uint16(v.Port)} //nolint:gosec // checked when the preview was made
	return &url.URL{Scheme: base.Scheme, Host: a.HostIn(domain), Path: "/"}, nil
}
