// Package jsonlines takes the output of a program that is not trusted, piece by piece, and decodes its lines.
package jsonlines

import "bytes"

// Decoder decodes lines that are messages of type T, and skips others.
//
// It holds at most Limit bytes. A Decoder belongs to one goroutine.
type Decoder[T any] struct {
	Limit  int                          // bytes of one line
	Decode func(line []byte) (T, error) // must not keep line

	rest []byte
	skip bool // until the end of a line that was too long
}

// Write adds output and calls each with the messages that it completes.
//
// Empty lines are skipped. Lines that are longer than Limit or are no messages are counted and skipped, too: they are
// of programs that found their way to the output. The first error of each ends the call.
func (d *Decoder[T]) Write(p []byte, each func(T) error) (bad int, err error) {
	for len(p) > 0 {
		part, after, complete := bytes.Cut(p, []byte("\n"))
		if len(d.rest)+len(part) > d.Limit {
			d.rest, d.skip = nil, true
		}
		if !d.skip {
			d.rest = append(d.rest, part...)
		}
		if !complete {
			return bad, nil
		}
		p = after
		line, skip := d.rest, d.skip
		d.rest, d.skip = d.rest[:0], false
		if skip {
			bad++
			continue
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		message, err := d.Decode(line)
		if err != nil {
			bad++
			continue
		}
		if err := each(message); err != nil {
			return bad, err
		}
	}
	return bad, nil
}
