package proxy

import (
	"net/http"

	"github.com/pandastack/pandastack/api"
)

// MaxHeader bounds the headers of a request, with its target, in bytes.
//
// Programs in sandboxes usually accept less.
const MaxHeader = 64 << 10

// LimitHeaders refuses requests whose headers have more than MaxHeader bytes.
func LimitHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if headerSize(r) <= MaxHeader {
			next.ServeHTTP(w, r)
			return
		}
		const status = http.StatusRequestHeaderFieldsTooLarge
		err := api.Errorf(api.TooLarge, "the headers have more than %d bytes: clear cookies of this site, or send less",
			MaxHeader)
		w.Header().Set("Connection", "close")
		if _, isPort, _ := AddressOfHost(r); isPort || WantsPage(r) {
			writeError(w, r, status, errorBody{Message: err.Message, ErrorCode: err.Code})
			return
		}
		err.RequestID = api.NewRequestID()
		writeJSON(w, status, err.RequestID, err)
	})
}

// headerSize returns about how many bytes the headers of a request have in HTTP/1.
func headerSize(r *http.Request) int {
	n := len(r.Method) + len(r.RequestURI) + len(r.Host)
	for name, values := range r.Header {
		for _, v := range values {
			n += len(name) + len(v) + len(": \r\n")
		}
	}
	return n
}
