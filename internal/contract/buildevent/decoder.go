package buildevent

import (
	"bytes"
)

// Decoder takes output of the program piece by piece, as it comes, and returns its events.
//
// It holds at most MaxLine bytes. A Decoder belongs to one goroutine.
type Decoder struct {
	rest []byte
	skip bool // until the end of a line that was too long
}

// Write adds output and calls each with the events that it completes. Lines that are no events are counted and skipped:
// they are of programs that found their way to the output. The first error of each ends the call.
func (d *Decoder) Write(p []byte, each func(Event) error) (bad int, err error) {
	for len(p) > 0 {
		end := bytes.IndexByte(p, '\n')
		part := p
		if end >= 0 {
			part = p[:end]
		}
		if len(d.rest)+len(part) > MaxLine {
			d.rest, d.skip = nil, true
		}
		if !d.skip {
			d.rest = append(d.rest, part...)
		}
		if end < 0 {
			return bad, nil
		}
		p = p[end+1:]
		line, skip := d.rest, d.skip
		d.rest, d.skip = d.rest[:0], false
		if skip {
			bad++
			continue
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		e, err := Decode(line)
		if err != nil {
			bad++
			continue
		}
		if err := each(e); err != nil {
			return bad, err
		}
	}
	return bad, nil
}
