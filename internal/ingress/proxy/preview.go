package proxy

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"path"
	"strconv"
	"strings"
	"time"
)

// Preview is the content of a signed preview address.
//
// Its text is sandbox|port|expiry|workspace and, if it has paths, |paths joined by commas. None of these may contain
// the separators.
type Preview struct {
	Sandbox   string
	Port      int
	Expires   time.Time // in whole seconds
	Workspace string
	Paths     []string // prefixes that it covers; none: all paths
}

// Why a token of a preview is invalid.
var (
	ErrForged  = errors.New("the token was not signed by this server")
	ErrExpired = errors.New("the token has expired")
)

var b64 = base64.RawURLEncoding

// SignPreview returns the token of a preview: the text and its HMAC, each in base64 for URLs.
func SignPreview(key []byte, v Preview) string {
	parts := []string{v.Sandbox, strconv.Itoa(v.Port), strconv.FormatInt(v.Expires.Unix(), 10), v.Workspace}
	if len(v.Paths) > 0 {
		parts = append(parts, strings.Join(v.Paths, ","))
	}
	return seal(key, strings.Join(parts, "|"))
}

func seal(key []byte, text string) string {
	h := hmac.New(sha256.New, key)
	h.Write([]byte("preview\x00" + text)) //nolint:errcheck // a hash never fails
	return b64.EncodeToString([]byte(text)) + "." + b64.EncodeToString(h.Sum(nil))
}

// OpenPreview returns the preview of a token.
//
// It returns ErrForged if the token was not signed with this key, and ErrExpired if it was but has expired.
func OpenPreview(key []byte, token string, now time.Time) (Preview, error) {
	head, _, _ := strings.Cut(token, ".")
	text, err := b64.DecodeString(head)
	// The whole token is compared, since base64 decodes several texts to the same bytes.
	if err != nil || len(key) == 0 || !hmac.Equal([]byte(token), []byte(seal(key, string(text)))) {
		return Preview{}, ErrForged
	}
	parts := strings.Split(string(text), "|")
	if len(parts) != 4 && len(parts) != 5 {
		return Preview{}, ErrForged
	}
	port, err1 := strconv.Atoi(parts[1])
	expires, err2 := strconv.ParseInt(parts[2], 10, 64)
	if err1 != nil || err2 != nil {
		return Preview{}, ErrForged
	}
	v := Preview{Sandbox: parts[0], Port: port, Expires: time.Unix(expires, 0), Workspace: parts[3]}
	if len(parts) == 5 {
		v.Paths = strings.Split(parts[4], ",")
	}
	if now.After(v.Expires) {
		return Preview{}, ErrExpired
	}
	return v, nil
}

// Allows reports whether path p is below one of the prefixes.
//
// It compares whole segments, after dots are resolved. Without prefixes every path is allowed.
func (v Preview) Allows(p string) bool {
	p = path.Clean("/" + p)
	for _, prefix := range v.Paths {
		prefix = path.Clean(prefix)
		if prefix == "/" || p == prefix || strings.HasPrefix(p, prefix+"/") {
			return true
		}
	}
	return len(v.Paths) == 0
}
