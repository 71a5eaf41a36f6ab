package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"github.com/pandastack/pandastack/api"
)

// maxEvent bounds one line of an event stream in bytes.
const maxEvent = 8 << 20

// event is one server-sent event.
type event struct{ name, data, id string }

func (e event) decode(v any) error {
	if err := json.Unmarshal([]byte(e.data), v); err != nil {
		return api.Wrap(api.Internal, err, "event "+e.name+" is not the expected JSON: "+err.Error())
	}
	return nil
}

func (e event) chunk(take func(string)) error {
	var c api.ExecChunk
	if err := e.decode(&c); err != nil {
		return err
	}
	if take != nil {
		take(c.Chunk)
	}
	return nil
}

// events sends a call and passes the events of its response to yield, until they end or yield returns an error. It
// returns an error event as the error that it carries.
func (c *Client) events(ctx context.Context, rq call, yield func(event) error) error {
	if rq.header == nil {
		rq.header = map[string]string{}
	}
	rq.header["Accept"] = "text/event-stream"
	res, err := c.send(ctx, rq)
	if err != nil {
		return err
	}
	defer res.Body.Close() //nolint:errcheck // nothing more is read
	err = readEvents(res.Body, func(e event) error {
		if e.name != "error" {
			return yield(e)
		}
		failed := &api.Error{}
		if err := e.decode(failed); err != nil {
			return err
		}
		return failed
	})
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*api.Error](err); ok {
		return err
	}
	return transportError(ctx, err)
}

// readEvents parses an event stream.
func readEvents(r io.Reader, yield func(event) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 64<<10), maxEvent)
	var e event
	var data []string
	for lines.Scan() {
		line := strings.TrimSuffix(lines.Text(), "\r")
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			if len(data) > 0 {
				e.data = strings.Join(data, "\n")
				if err := yield(e); err != nil {
					return err
				}
			}
			e, data = event{}, nil
		case field == "event":
			e.name = value
		case field == "id":
			e.id = value
		case field == "data":
			data = append(data, value)
		}
	}
	return lines.Err()
}
