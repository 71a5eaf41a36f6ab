package proxy

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"path"
	"strconv"
	"strings"
	"time"
)

// Preview is the content of a signed preview address.
//
// Its text is sandbox|port|expiry|workspace|paths|nonce, with the paths joined by commas. None of these may contain the
// separators. The nonce may be missing, and with it the paths if there are none.
type Preview struct {
	ID        string // names the preview and does not open it; SignPreview and OpenPreview set it
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

// EarlierPreviewID returns the id that all previews of a sandbox without a nonce have.
//
// Earlier releases made such previews.
func EarlierPreviewID(sandbox string) string { return "pvw" + strings.TrimPrefix(sandbox, "sbx") }

var b64 = base64.RawURLEncoding

// SignPreview returns the token of a new preview and its id. The token is the text and its HMAC, each in base64 for
// URLs. No two calls return the same.
func SignPreview(key []byte, v Preview) (token, id string) {
	token = seal(key, strings.Join([]string{
		v.Sandbox, strconv.Itoa(v.Port), strconv.FormatInt(v.Expires.Unix(), 10), v.Workspace,
		strings.Join(v.Paths, ","), strings.ToLower(rand.Text()[:nonceLetters]),
	}, "|"))
	return token, PreviewID(token)
}

// nonceLetters is the length of a nonce, in letters of five bits.
const nonceLetters = 16

// PreviewID returns the id of the preview with the given token.
func PreviewID(token string) string {
	sum := sha256.Sum256([]byte(token))
	return "pvw" + hex.EncodeToString(sum[:])[:20]
}

func seal(key []byte, text string) string {
	h := hmac.New(sha256.New, key)
	h.Write([]byte("preview\x00" + text)) //nolint:errcheck // a hash never fails
	return b64.EncodeToString([]byte(text)) + "." + b64.EncodeToString(h.Sum(nil))
}

// OpenPreview returns the preview of a token.
//
// It returns ErrForged if the token was not signed with this key, and the preview and ErrExpired if it was but has
// expired.
func OpenPreview(key []byte, token string, now time.Time) (Preview, error) {
	head, _, _ := strings.Cut(token, ".")
	text, err := b64.DecodeString(head)
	// The whole token is compared, since base64 decodes several texts to the same bytes.
	if err != nil || len(key) == 0 || !hmac.Equal([]byte(token), []byte(seal(key, string(text)))) {
		return Preview{}, ErrForged
	}
	parts := strings.Split(string(text), "|")
	if len(parts) < 4 || len(parts) > 6 {
		return Preview{}, ErrForged
	}
	port, err1 := strconv.Atoi(parts[1])
	expires, err2 := strconv.ParseInt(parts[2], 10, 64)
	if err1 != nil || err2 != nil {
		return Preview{}, ErrForged
	}
	v := Preview{
		ID: PreviewID(token), Sandbox: parts[0], Port: port, Expires: time.Unix(expires, 0), Workspace: parts[3],
	}
	if len(parts) < 6 {
		v.ID = EarlierPreviewID(v.Sandbox)
	}
	if len(parts) > 4 && parts[4] != "" {
		v.Paths = strings.Split(parts[4], ",")
	}
	if now.After(v.Expires) {
		return v, ErrExpired
	}
	return v, nil
}

// Allows reports whether path p is below one of the prefixes.
//
// It compares whole segments, after dots are resolved. Without prefixes every path is allowed. With prefixes, a path
// that a program could resolve differently is not: by decoding it once more, by ignoring parameters of segments
// ("..;x"), or by taking a backslash for a slash.
func (v Preview) Allows(p string) bool {
	if len(v.Paths) == 0 {
		return true
	}
	if isAmbiguous(p) {
		return false
	}
	p = path.Clean("/" + p)
	for _, prefix := range v.Paths {
		prefix = path.Clean(prefix)
		if prefix == "/" || p == prefix || strings.HasPrefix(p, prefix+"/") {
			return true
		}
	}
	return false
}

// isAmbiguous reports whether some programs see a step upwards in a decoded path where path.Clean sees none.
func isAmbiguous(p string) bool {
	for level := range maxDecodings {
		if strings.ContainsAny(p, "\\\x00") {
			return true
		}
		for segment := range strings.SplitSeq(p, "/") {
			name, _, cut := strings.Cut(segment, ";")
			if (cut || level > 0) && (name == ".." || name == ".") {
				return true
			}
		}
		again := decodePath.Replace(p)
		if again == p {
			return false
		}
		p = again
	}
	return true // encoded more often than any program decodes
}

// maxDecodings is how many layers of percent encoding isAmbiguous looks below.
const maxDecodings = 4

// decodePath decodes what steps are made of.
var decodePath = strings.NewReplacer(
	"%2e", ".", "%2E", ".", "%2f", "/", "%2F", "/", "%5c", `\`, "%5C", `\`, "%3b", ";", "%3B", ";", "%25", "%",
)
