package httpapi

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
)

// preview is what a signed preview address says. Its text is sandbox|port|expiry|workspace, and |paths
// joined by commas if there are any; none of these can hold the separators.
type preview struct {
	sandbox   api.SandboxID
	port      int
	expires   time.Time
	workspace api.Workspace
	paths     []string
}

var b64 = base64.RawURLEncoding

// signPreview makes the token: the text and its HMAC, each as base64 for addresses.
func signPreview(key []byte, v preview) string {
	parts := []string{string(v.sandbox), strconv.Itoa(v.port), strconv.FormatInt(v.expires.Unix(), 10), string(v.workspace)}
	if len(v.paths) > 0 {
		parts = append(parts, strings.Join(v.paths, ","))
	}
	return seal(key, strings.Join(parts, "|"))
}

func seal(key []byte, text string) string {
	h := hmac.New(sha256.New, key)
	h.Write([]byte("preview\x00" + text)) //nolint:errcheck // a hash never fails
	return b64.EncodeToString([]byte(text)) + "." + b64.EncodeToString(h.Sum(nil))
}

// openPreview reads a token. What was not signed with this key is unauthenticated, what was but has
// expired is gone.
func openPreview(key []byte, token string, now time.Time) (preview, error) {
	bad := api.Errorf(api.Unauthenticated, "this preview address does not hold: make a new one")
	head, _, _ := strings.Cut(token, ".")
	text, err := b64.DecodeString(head)
	// The whole token is compared, since base64 reads more than one text as the same bytes.
	if err != nil || len(key) == 0 || !hmac.Equal([]byte(token), []byte(seal(key, string(text)))) {
		return preview{}, bad
	}
	parts := strings.Split(string(text), "|")
	if len(parts) != 4 && len(parts) != 5 {
		return preview{}, bad
	}
	port, err1 := strconv.Atoi(parts[1])
	expires, err2 := strconv.ParseInt(parts[2], 10, 64)
	if err1 != nil || err2 != nil {
		return preview{}, bad
	}
	v := preview{sandbox: api.SandboxID(parts[0]), port: port, expires: time.Unix(expires, 0), workspace: api.Workspace(parts[3])}
	if len(parts) == 5 {
		v.paths = strings.Split(parts[4], ",")
	}
	if now.After(v.expires) {
		return preview{}, api.Errorf(api.Gone, "this preview address has expired: make a new one")
	}
	return v, nil
}

// allows tells whether a path lies under one of the prefixes, whole segments of it, after all dots are
// resolved. Without prefixes every path does.
func (v preview) allows(p string) bool {
	p = path.Clean("/" + p)
	for _, prefix := range v.paths {
		prefix = path.Clean(prefix)
		if prefix == "/" || p == prefix || strings.HasPrefix(p, prefix+"/") {
			return true
		}
	}
	return len(v.paths) == 0
}
