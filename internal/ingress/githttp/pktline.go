package githttp

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Bounds of git's packet lines.
const (
	header     = 4     // hexadecimal digits of the length, which counts itself
	maxPacket  = 65520 // with the header
	maxBand    = maxPacket - header - 1
	maxRequest = 1 << 20 // bytes of the commands of a push
	maxReport  = 1 << 20 // bytes of the report of a push
)

const flush = "0000"

// errPacket is the error for bytes that are not packet lines.
var errPacket = errors.New("git sent or received a malformed packet line")

// length reads the header of a packet. 0 is a flush packet; the other packets without content belong to protocols that
// are not served here.
func length(head []byte) (int, error) {
	n := 0
	for _, c := range head {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, errPacket
		}
		n = n<<4 | int(c)
	}
	if n != 0 && n < header || n > maxPacket {
		return 0, errPacket
	}
	return n, nil
}

// packet appends a packet with a band and content.
func packet(dst []byte, band byte, content string) []byte {
	dst = fmt.Appendf(dst, "%04x", header+1+len(content))
	dst = append(dst, band)
	return append(dst, content...)
}

// The bands of a response.
const (
	bandData     = 1
	bandProgress = 2 // for the terminal
	bandError    = 3
)

// command is what a push wants of a ref.
type command struct {
	old, new, ref string
}

// deletes reports whether the ref is to be removed.
func (c command) deletes() bool { return strings.Trim(c.new, "0") == "" }

// pushRequest is the first part of a push, which a pack follows.
type pushRequest struct {
	commands []command
	sideband bool // progress can be sent
	raw      []byte
}

// readPush reads the commands of a push up to the flush packet behind them.
func readPush(r *bufio.Reader) (pushRequest, error) {
	var req pushRequest
	for {
		head := make([]byte, header)
		if _, err := io.ReadFull(r, head); err != nil {
			return req, fmt.Errorf("%w: %w", errPacket, err)
		}
		n, err := length(head)
		if err != nil {
			return req, err
		}
		if n == 0 {
			req.raw = append(req.raw, head...)
			return req, nil
		}
		if len(req.raw)+n > maxRequest {
			return req, fmt.Errorf("%w: the commands have more than %d bytes", errPacket, maxRequest)
		}
		line := make([]byte, n-header)
		if _, err := io.ReadFull(r, line); err != nil {
			return req, fmt.Errorf("%w: %w", errPacket, err)
		}
		req.raw = append(append(req.raw, head...), line...)
		req.line(string(line))
	}
}

// line takes one line of the first part. git in the machine judges those that are not understood here.
func (req *pushRequest) line(text string) {
	text, capabilities, has := strings.Cut(text, "\x00")
	if has {
		for word := range strings.FieldsSeq(capabilities) {
			req.sideband = req.sideband || word == "side-band-64k"
		}
	}
	f := strings.SplitN(strings.TrimSuffix(text, "\n"), " ", 3)
	if len(f) == 3 && isObjectID(f[0]) && isObjectID(f[1]) {
		req.commands = append(req.commands, command{f[0], f[1], f[2]})
	}
}

func isObjectID(s string) bool {
	return (len(s) == 40 || len(s) == 64) && strings.Trim(s, "0123456789abcdef") == ""
}

// report is what git said of a push.
type report struct {
	unpack string            // "ok", or why the pack was refused
	refs   map[string]string // "" for a ref that was changed, or why not
}

// readReport reads a report. What is not one is an empty report: nothing was changed then.
func readReport(data []byte) report {
	r := report{refs: map[string]string{}}
	for len(data) >= header {
		n, err := length(data[:header])
		if err != nil || n == 0 || n > len(data) {
			break
		}
		line := strings.TrimSuffix(string(data[header:n]), "\n")
		data = data[n:]
		word, rest, _ := strings.Cut(line, " ")
		switch word {
		case "unpack":
			r.unpack = rest
		case "ok":
			r.refs[rest] = ""
		case "ng":
			ref, why, _ := strings.Cut(rest, " ")
			if why == "" {
				why = "refused"
			}
			r.refs[ref] = why
		}
	}
	return r
}

// demux passes on the packets of a response with bands, except for the flush packet that ends it. It keeps the report,
// and the end of what git printed.
type demux struct {
	out     io.Writer
	rest    []byte // of a packet that is not complete
	ended   bool
	report  []byte
	printed []byte
}

// maxPrinted bounds what is kept of what git printed.
const maxPrinted = 4 << 10

// Write implements io.Writer.
func (d *demux) Write(p []byte) (int, error) {
	d.rest = append(d.rest, p...)
	data := d.rest
	for len(data) >= header {
		if d.ended {
			return 0, fmt.Errorf("%w: it goes on behind its end", errPacket)
		}
		n, err := length(data[:header])
		if err != nil {
			return 0, err
		}
		if n == 0 {
			d.ended, data = true, data[header:]
			continue
		}
		if len(data) < n {
			break
		}
		if err := d.take(data[header:n]); err != nil {
			return 0, err
		}
		if _, err := d.out.Write(data[:n]); err != nil {
			return 0, err
		}
		data = data[n:]
	}
	d.rest = bytes.Clone(data)
	return len(p), nil
}

func (d *demux) take(content []byte) error {
	if len(content) == 0 {
		return fmt.Errorf("%w: it has no band", errPacket)
	}
	switch content[0] {
	case bandData:
		if len(d.report)+len(content) > maxReport {
			return fmt.Errorf("%w: the report has more than %d bytes", errPacket, maxReport)
		}
		d.report = append(d.report, content[1:]...)
	case bandProgress:
		d.printed = append(d.printed, content[1:]...)
		if over := len(d.printed) - maxPrinted; over > 0 {
			d.printed = bytes.Clone(d.printed[over:])
		}
	case bandError:
	default:
		return fmt.Errorf("%w: there is no band %d", errPacket, content[0])
	}
	return nil
}
