// Package signature signs requests that are sent to addresses of users' choice.
package signature

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"time"
)

// Sign returns the signature of a request: t=<seconds since 1970>,v1=<hex>, where hex is the HMAC-SHA-256 of the time,
// a period and the body under a secret that sender and receiver share.
func Sign(secret string, at time.Time, body string) string {
	t := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(t + "." + body)) // never fails
	return "t=" + t + ",v1=" + hex.EncodeToString(mac.Sum(nil))
}
