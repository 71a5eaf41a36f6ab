package egress

import (
	"bytes"
	"errors"
	"io"
	"net"
)

// maxRequestLine limits the first line of an HTTP request.
const maxRequestLine = 16 << 10

// sniffed describes the first bytes of a connection.
type sniffed struct {
	kind string
	name string
	err  error // the connection ended, or must not be proxied
}

// peek reads a client's first bytes until the protocol is known.
func peek(c net.Conn) ([]byte, sniffed) {
	var b []byte
	buf := make([]byte, 4096)
	for {
		n, err := c.Read(buf)
		b = append(b, buf[:n]...)
		if len(b) > 0 {
			if f, ok := sniff(b, errors.Is(err, io.EOF)); ok {
				return b, f
			}
		}
		if err != nil {
			return b, sniffed{err: err}
		}
	}
}

// sniff detects the protocol that b begins; false: more bytes are needed. end means that no more will come.
func sniff(b []byte, end bool) (sniffed, bool) {
	name, err := serverName(b)
	switch {
	case err == nil:
		return sniffed{kind: KindTLS, name: name}, true
	case errors.Is(err, errShort):
		if end {
			return sniffed{err: io.ErrUnexpectedEOF}, true
		}
		return sniffed{}, false
	case !errors.Is(err, errNotTLS):
		return sniffed{err: err}, true
	}
	return sniffHTTP(b, end)
}

// sniffHTTP reports whether b begins with an HTTP request line, by its form alone: servers route requests by host
// even if the method is unknown.
func sniffHTTP(b []byte, end bool) (sniffed, bool) {
	other := sniffed{kind: KindTCP}
	line := bytes.TrimLeft(b, "\r\n") // some servers skip empty lines
	i := 0
	for i < len(line) && isToken(line[i]) {
		i++
	}
	if i < len(line) && (line[i] != ' ' || i == 0) || i > 64 {
		return other, true
	}
	stop := bytes.IndexByte(line, '\n')
	if stop < 0 {
		switch {
		case end:
			return other, true
		case len(b) > maxRequestLine:
			return sniffed{err: errors.New("first line is too long")}, true
		}
		return sniffed{}, false
	}
	words := bytes.Fields(line[:stop])
	switch last := words[len(words)-1]; {
	case len(words) < 3 || !bytes.HasPrefix(last, []byte("HTTP/")):
		return other, true
	case bytes.HasPrefix(last, []byte("HTTP/1.")):
		return sniffed{kind: KindHTTP}, true
	}
	return sniffed{err: errors.New("HTTP/2 without TLS hides its hosts")}, true
}

// isToken reports whether c is allowed in an HTTP method (RFC 9110, 5.6.2).
func isToken(c byte) bool {
	switch {
	case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
		return true
	}
	return bytes.IndexByte([]byte("!#$%&'*+-.^_`|~"), c) >= 0
}
