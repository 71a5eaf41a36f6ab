// Package page makes and reads the cursors of lists that are ordered by time and id.
package page

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/pandastack/pandastack/api"
)

// Max limits the length of a page.
const Max = 1000

// Cursor returns the cursor of a position in a list: after the item of that time and id.
func Cursor(created int64, id string) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d.%s", created, id))
}

// Parse checks limit and cursor and sets where the page starts. It returns an invalid error that names the field.
func Parse(limit int, text string, created *int64, id *string) (int, error) {
	if limit < 0 || limit > Max {
		return 0, api.Errorf(api.Invalid, "limit: %d is out of range: use 1 to %d, or leave it out", limit, Max).
			With("field", "limit")
	}
	if text == "" {
		return limit, nil
	}
	bad := api.Errorf(api.Invalid, "cursor: it was not issued by this server: start without a cursor").
		With("field", "cursor")
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return 0, bad
	}
	number, name, ok := strings.Cut(string(data), ".")
	if !ok || name == "" || len(name) > 64 || strings.ContainsRune(name, 0) {
		return 0, bad
	}
	if *created, err = strconv.ParseInt(number, 10, 64); err != nil || !utf8.ValidString(name) {
		return 0, bad
	}
	*id = name
	return limit, nil
}
