package program

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/pandastack/pandastack/internal/contract/fnruntime"
)

// hop are the headers of one connection, which are not forwarded.
var hop = []string{
	"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade",
}

func removeHop(h http.Header) {
	for _, line := range h["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			h.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range hop {
		h.Del(name)
	}
}

// Forward calls the handler with a request and streams its response to w. If answered is false, nothing was written
// to w. An error means that nothing is known of the outcome, or that the client has left.
//
// A handler that fails before its response begins is Result.Failure with answered false.
func (p *Program) Forward(
	ctx context.Context,
	c Call,
	w http.ResponseWriter,
	in *http.Request,
) (res Result, answered bool, err error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	res, answered, err = p.forward(ctx, c, w, in)
	return res, answered, cause(ctx, err)
}

func (p *Program) forward(
	ctx context.Context,
	c Call,
	w http.ResponseWriter,
	in *http.Request,
) (res Result, answered bool, err error) {
	answer, err := p.transport.RoundTrip(p.outgoing(ctx, c, in))
	if err != nil {
		return res, false, err
	}
	defer answer.Body.Close()
	res.Status = answer.StatusCode
	if answer.Header.Get(fnruntime.HeaderFailure) != "" {
		data, err := io.ReadAll(io.LimitReader(answer.Body, fnruntime.MaxSummary+1))
		if err != nil {
			return res, false, err
		}
		failure, err := fnruntime.DecodeFailure(data)
		if err != nil {
			return res, false, err
		}
		res.Failure = &failure
		res.Summary, err = p.summary(ctx, c, answer)
		return res, false, err
	}
	if answer.StatusCode < http.StatusOK { // of a protocol that was not asked for
		return res, false, fmt.Errorf("the handler answered with status %d", answer.StatusCode)
	}
	writeHead(w, answer)
	if err := stream(w, answer.Body); err != nil {
		return res, true, err
	}
	res.Summary, err = p.summary(ctx, c, answer)
	res.Failure = res.Summary.Failure
	return res, true, err
}

// outgoing returns the request for the program.
func (p *Program) outgoing(ctx context.Context, c Call, in *http.Request) *http.Request {
	out := in.Clone(ctx)
	removeHop(out.Header)
	for name := range out.Header {
		if strings.HasPrefix(name, "Pandastack-") {
			out.Header.Del(name)
		}
	}
	out.RequestURI, out.URL.Scheme, out.URL.Host = "", "http", "localhost"
	out.Header["User-Agent"] = in.Header["User-Agent"] // or none
	if out.Header["User-Agent"] == nil {
		out.Header.Set("User-Agent", "")
	}
	c.head(out.Header)
	out.Header.Set(fnruntime.HeaderRequest, "1")
	return out
}

// writeHead writes the head of a response of the handler.
func writeHead(w http.ResponseWriter, answer *http.Response) {
	removeHop(answer.Header)
	length := answer.Header.Get(fnruntime.HeaderLength)
	for name, values := range answer.Header {
		if !strings.HasPrefix(name, "Pandastack-") {
			w.Header()[name] = slices.Clone(values)
		}
	}
	if length != "" {
		w.Header().Set("Content-Length", length)
	}
	w.WriteHeader(answer.StatusCode)
}

// stream copies a body piece by piece as it comes.
func stream(w http.ResponseWriter, body io.Reader) error {
	flush := http.NewResponseController(w)
	if err := flush.Flush(); err != nil {
		return err
	}
	buffer := make([]byte, 32<<10)
	for {
		n, err := body.Read(buffer)
		if n > 0 {
			if _, err := w.Write(buffer[:n]); err != nil {
				return err
			}
			if err := flush.Flush(); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// maxGet bounds what Get reads of a response.
const maxGet = 8 << 20

// Get calls the handler with a GET request whose response does not matter unless the handler fails.
func (p *Program) Get(ctx context.Context, c Call, path string) (*fnruntime.Failure, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	r, err := request(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	c.head(r.Header)
	r.Header.Set(fnruntime.HeaderRequest, "1")
	answer, err := p.transport.RoundTrip(r)
	if err != nil {
		return nil, cause(ctx, err)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(io.LimitReader(answer.Body, maxGet))
	if err != nil {
		return nil, cause(ctx, err)
	}
	if answer.Header.Get(fnruntime.HeaderFailure) == "" {
		return nil, nil
	}
	failure, err := fnruntime.DecodeFailure(data)
	return &failure, err
}
