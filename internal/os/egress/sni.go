package egress

import (
	"errors"
	"fmt"
	"strings"
)

// maxHello limits a ClientHello with its record headers; those of browsers with post-quantum keys have 2 KiB.
const maxHello = 32 << 10

var (
	// errShort means that more bytes are needed.
	errShort = errors.New("not complete yet")
	// errNotTLS means that the bytes are not the beginning of a TLS connection.
	errNotTLS = errors.New("not TLS")
)

// Constants of TLS, from RFC 8446 and RFC 6066.
const (
	recordHandshake  = 22
	recordHeader     = 5
	recordMax        = 1<<14 + 256
	handshakeHello   = 1
	handshakeHeader  = 4
	extensionName    = 0
	nameTypeHost     = 0
	helloFixed       = 2 + 32 // version and random
	maxSessionIDSize = 32
)

// serverName parses the first bytes of a TLS connection and returns the server name in its ClientHello, in lower
// case; "" if it has none. The error is errShort if more bytes are needed, and errNotTLS for another protocol. Any
// other error means a ClientHello that is malformed or ambiguous.
func serverName(b []byte) (string, error) {
	message, err := handshake(b)
	if err != nil {
		return "", err
	}
	if message[0] != handshakeHello {
		return "", errors.New("first message is not a ClientHello")
	}
	p := parser{b: message[handshakeHeader:]}
	p.skip(helloFixed)
	if id := p.vector(1); len(id) > maxSessionIDSize {
		return "", errors.New("session id is too long")
	}
	p.vector(2) // ciphers
	p.vector(1) // compressions
	if p.bad {
		return "", errors.New("ClientHello is cut off")
	}
	if len(p.b) == 0 {
		return "", nil // no extensions
	}
	extensions := parser{b: p.vector(2)}
	if p.bad || len(p.b) > 0 {
		return "", errors.New("extensions do not fill the ClientHello")
	}
	return sniName(extensions)
}

// sniName returns the server name among extensions.
func sniName(p parser) (string, error) {
	name, seen := "", false
	for len(p.b) > 0 && !p.bad {
		kind := p.number(2)
		body := parser{b: p.vector(2)}
		if p.bad || kind != extensionName {
			continue
		}
		if seen {
			return "", errors.New("two server name extensions")
		}
		seen = true
		list := parser{b: body.vector(2)}
		if body.bad || len(body.b) > 0 || list.number(1) != nameTypeHost {
			return "", errors.New("server name extension is malformed")
		}
		host := list.vector(2)
		if list.bad || len(list.b) > 0 {
			return "", errors.New("more than one server name")
		}
		name = strings.ToLower(string(host))
		if !validName(name) {
			return "", fmt.Errorf("server name %q is not a valid host name", name)
		}
	}
	if p.bad {
		return "", errors.New("extensions are cut off")
	}
	return name, nil
}

// handshake joins records until the first handshake message is complete.
func handshake(b []byte) ([]byte, error) {
	var message []byte
	for rest := b; ; {
		if len(rest) > 0 && rest[0] != recordHandshake || len(rest) > 1 && rest[1] != 3 {
			if len(message) > 0 {
				return nil, errors.New("ClientHello is interrupted by another record")
			}
			return nil, errNotTLS
		}
		if len(rest) < recordHeader {
			return nil, short(b)
		}
		size := int(rest[3])<<8 | int(rest[4])
		if size == 0 || size > recordMax {
			return nil, errNotTLS
		}
		if len(rest) < recordHeader+size {
			return nil, short(b)
		}
		message = append(message, rest[recordHeader:recordHeader+size]...)
		rest = rest[recordHeader+size:]
		if len(message) < handshakeHeader {
			continue
		}
		want := handshakeHeader + int(message[1])<<16 + int(message[2])<<8 + int(message[3])
		if want > maxHello {
			return nil, errors.New("ClientHello is too long")
		}
		if len(message) >= want {
			return message[:want], nil
		}
	}
}

// short returns errShort while more bytes may follow.
func short(b []byte) error {
	if len(b) >= maxHello {
		return errors.New("ClientHello is too long")
	}
	return errShort
}

// parser takes bytes from the front; bad is set once there were too few.
type parser struct {
	b   []byte
	bad bool
}

func (p *parser) skip(n int) []byte {
	if p.bad || n > len(p.b) {
		p.bad = true
		return nil
	}
	taken := p.b[:n]
	p.b = p.b[n:]
	return taken
}

func (p *parser) number(size int) (n int) {
	for _, c := range p.skip(size) {
		n = n<<8 | int(c)
	}
	return n
}

// vector takes bytes that follow their length, a number of size bytes.
func (p *parser) vector(size int) []byte { return p.skip(p.number(size)) }
