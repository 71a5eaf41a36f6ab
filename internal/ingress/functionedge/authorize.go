package functionedge

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/ingress/access"
)

// signatureHeader has the signature of a request.
const signatureHeader = "X-Pandastack-Signature"

// tolerance is how far the time of a signature may be from now.
const tolerance = 5 * time.Minute

// authorize checks that a request may be sent to a function, and returns its caller: without a key, the workspace of
// the function. A key is removed from the request.
func (e *Edge) authorize(w http.ResponseWriter, r *http.Request, t Target) (auth.Principal, error) {
	switch t.Auth {
	case api.FunctionPublic:
		return auth.Principal{Workspace: t.Workspace}, nil
	case api.FunctionSigned:
		if r.Header.Get(signatureHeader) == "" {
			break
		}
		if err := e.checkSignature(r, t); err != nil {
			return auth.Principal{}, err
		}
		return auth.Principal{Workspace: t.Workspace}, nil
	case api.FunctionKey:
	default:
		return auth.Principal{}, api.Errorf(api.Internal, "function %s has the unknown protection %q", t.Function,
			t.Auth)
	}
	return e.checkKey(w, r, t)
}

// checkKey checks the key of a request. A key of another workspace learns nothing.
func (e *Edge) checkKey(w http.ResponseWriter, r *http.Request, t Target) (auth.Principal, error) {
	why := "this function is not public: "
	if t.Auth == api.FunctionSigned {
		why += "sign the request with the secret of the function, or "
	}
	p, err := e.admit(w, r, why)
	if err != nil {
		return p, err
	}
	if p.Workspace != t.Workspace {
		return p, api.Errorf(api.NotFound, "function %s not found", t.Function)
	}
	r.Header.Del("Authorization")
	return p, nil
}

// admit returns the caller with the key of a request. why is the begin of the error if there is none.
func (e *Edge) admit(w http.ResponseWriter, r *http.Request, why string) (auth.Principal, error) {
	token := ""
	if scheme, text, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		token = strings.TrimSpace(text)
	}
	if token == "" {
		return auth.Principal{}, api.Errorf(api.Unauthenticated, "%ssend the header Authorization: Bearer pds_...", why)
	}
	return e.cfg.Guard.Admit(w, r, token, access.Need(api.ScopePorts))
}

// Sign returns the signature of a request: t=<seconds since 1970>,v1=<hex>, where hex is the HMAC-SHA-256 with the
// function's secret of the time, the method, the target as sent (path and query) and the body, each but the last
// followed by a newline.
func Sign(secret string, at time.Time, method, target string, body []byte) string {
	seconds := strconv.FormatInt(at.Unix(), 10)
	return "t=" + seconds + ",v1=" + hex.EncodeToString(digest(secret, seconds, method, target, body))
}

func digest(secret, seconds, method, target string, body []byte) []byte {
	m := hmac.New(sha256.New, []byte(secret))
	m.Write([]byte(seconds + "\n" + method + "\n" + target + "\n"))
	m.Write(body)
	return m.Sum(nil)
}

// checkSignature checks the signature of a request, for which it reads the body.
func (e *Edge) checkSignature(r *http.Request, t Target) error {
	seconds, sum, ok := parseSignature(r.Header.Get(signatureHeader))
	if !ok {
		e.cfg.Guard.Failed(r)
		return api.Errorf(api.Unauthenticated, "%s is not like t=<seconds since 1970>,v1=<hex>", signatureHeader)
	}
	at, err := strconv.ParseInt(seconds, 10, 64)
	if d := e.now().Sub(time.Unix(at, 0)); err != nil || d < -tolerance || d > tolerance {
		e.cfg.Guard.Failed(r)
		return api.Errorf(api.Unauthenticated, "the signature is older than %v, or from the future: check the clock",
			tolerance)
	}
	var body []byte
	if r.Body != nil {
		body, err = io.ReadAll(r.Body)
		if over, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return tooLarge(over.Limit)
		}
		if err != nil {
			return api.Wrap(api.Invalid, err, "the body broke off: "+err.Error())
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	want := digest(t.Secret, seconds, r.Method, r.RequestURI, body)
	if t.Secret == "" || !hmac.Equal(sum, want) {
		e.cfg.Guard.Failed(r)
		return api.Errorf(api.Unauthenticated, "the signature does not fit the request and the function's secret")
	}
	return nil
}

// parseSignature returns the parts of a signature.
func parseSignature(text string) (seconds string, sum []byte, ok bool) {
	first, second, ok := strings.Cut(text, ",")
	if !ok || len(text) > 200 {
		return "", nil, false
	}
	seconds, ok = strings.CutPrefix(strings.TrimSpace(first), "t=")
	if !ok {
		return "", nil, false
	}
	second, ok = strings.CutPrefix(strings.TrimSpace(second), "v1=")
	if !ok {
		return "", nil, false
	}
	sum, err := hex.DecodeString(second)
	return seconds, sum, err == nil && len(sum) == sha256.Size
}
