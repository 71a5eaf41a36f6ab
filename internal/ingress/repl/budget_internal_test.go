package repl

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/lib/budget"
)

// piece is how much output arrives at once.
const piece = 32 << 10

// feedPieces feeds output in pieces and returns the events, and how many bytes were allocated meanwhile.
func feedPieces(t *testing.T, k protocol, output []byte) (events []Event, allocated uint64) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for len(output) > 0 {
		part := output[:min(len(output), piece)]
		output = output[len(part):]
		_, _, err := k.handle(guestapi.Event{Stream: guestapi.StreamStdout, Offset: 1, Data: part},
			func(e Event) error { events = append(events, e); return nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	return events, after.TotalAlloc - before.TotalAlloc
}

// shown is the output of display.
func shown(media string, content []byte) []byte {
	return []byte("\x01m=" + media + ":" + base64.StdEncoding.EncodeToString(content) + "\x02")
}

// Content that arrives in many pieces is neither looked at nor copied as a whole for each of them, and takes no more
// memory than was paid for it.
func TestDisplayCostsItsLength(t *testing.T) {
	const size = 4 << 20
	nested := bytes.Repeat([]byte("[],"), size/3)
	for name, c := range map[string]struct {
		output []byte
		most   int // bytes allocated for a byte of output
	}{
		"picture":       {shown("image/png", make([]byte, size)), 2 * displayCost},
		"unfinished":    {bytes.TrimSuffix(shown("image/png", make([]byte, size)), []byte{2}), 2 * displayCost},
		"interrupted":   {bytes.Repeat([]byte("\x01m=image/png:iVB"), size/16), 64},
		"small ones":    {bytes.Repeat(shown("text/plain", nil), size/16), 64},
		"commas":        {shown("text/csv", bytes.Repeat([]byte{','}, size)), 2 * displayCost},
		"lines":         {shown("text/csv", bytes.Repeat([]byte("a\n"), size/2)), 2 * displayCost},
		"nested JSON":   {shown("application/json", append(append([]byte("["), nested...), "1]"...)), 2 * displayCost},
		"marks of text": {bytes.Repeat([]byte{1}, size), 8},
	} {
		t.Run(name, func(t *testing.T) {
			_, allocated := feedPieces(t, &bashProtocol{mark: "m"}, c.output)
			if most := uint64(c.most * len(c.output)); allocated > most {
				t.Errorf("%d bytes of output took %d bytes of memory, want at most %d", len(c.output), allocated, most)
			}
		})
	}
}

// A small table stays one; a table that would take much memory is text.
func TestTablesAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		csv   string
		table bool
	}{
		"small":        {"a,b\n1,2\n", true},
		"as many":      {strings.Repeat("1,2\n", maxCells/2), true},
		"cells":        {strings.Repeat("1,2\n", maxCells/2+1), false},
		"bytes":        {"a\n" + strings.Repeat("x", maxTable), false},
		"not a table":  {"a,b\n1\n", false},
		"empty":        {"", false},
		"quoted badly": {`a"b`, false},
	} {
		data := displayEvent([]byte("text/csv:" + base64.StdEncoding.EncodeToString([]byte(c.csv)))).Data
		if _, ok := data["text/html"]; ok != c.table || data["text/plain"] != c.csv {
			t.Errorf("%s: has a table: %v, want %v, and the text", name, ok, c.table)
		}
	}
}

// Messages of a driver cost a bounded multiple of their length, whatever is in them.
func TestMessagesCostTheirLength(t *testing.T) {
	const size = 2 << 20
	line := func(data string) []byte { return []byte(`{"id":"m","type":"result","data":` + data + "}\n") }
	members := &strings.Builder{}
	for i := range size / 12 {
		fmt.Fprintf(members, `"%d":1,`, i)
	}
	for name, output := range map[string][]byte{
		"nested":  line(`{"application/json":[` + strings.Repeat("[],", size/3) + `1]}`),
		"members": line("{" + members.String() + `"x":1}`),
		"text":    line(`{"text/plain":"` + strings.Repeat("x", size) + `"}`),
		"no data": line("[" + strings.Repeat("[],", size/3) + "1]"),
	} {
		t.Run(name, func(t *testing.T) {
			events, allocated := feedPieces(t, &jsonProtocol{id: "m"}, output)
			if most := uint64(3 * lineCost * len(output)); allocated > most {
				t.Errorf("%d bytes of output took %d bytes of memory, want at most %d", len(output), allocated, most)
			}
			if len(events) != 1 || len(events[0].Data) > maxForms {
				t.Errorf("%d events, the first with %d forms; want one with at most %d",
					len(events), len(events[0].Data), maxForms)
			}
		})
	}
}

// What is too large is dropped with a message, and what follows it is read.
func TestTooLargeIsDropped(t *testing.T) {
	bash := append(append([]byte("before"), shown("image/png", make([]byte, maxDisplay))...), "after"...)
	python := append(bytes.Repeat([]byte("x"), maxLine+1), "\n"+`{"id":"m","type":"stdout","text":"after"}`+"\n"...)
	for name, c := range map[string]struct {
		k      protocol
		output []byte
	}{
		"bash":        {&bashProtocol{mark: "m"}, bash},
		"interrupted": {&bashProtocol{mark: "m"}, bytes.Replace(bash, []byte{2}, []byte("\x01m=a/b:\x02"), 1)},
		"json":        {&jsonProtocol{id: "m"}, python},
	} {
		events, _ := feedPieces(t, c.k, c.output)
		var errs, out string
		for _, e := range events {
			switch e.Kind {
			case Stderr:
				errs += e.Text
			case Stdout:
				out += e.Text
			}
		}
		if !strings.Contains(errs, "dropped") || !strings.Contains(errs, "bytes") || !strings.HasSuffix(out, "after") {
			t.Errorf("%s: output is %.100q with errors %.200q, want a message and what follows", name, out, errs)
		}
	}
}

// What the account of a request does not pay for is dropped with a message; everything paid is returned.
func TestUnpaidIsDropped(t *testing.T) {
	pool := budget.New(budget.Config{Name: "memory", Total: 1 << 20, Levels: []budget.Level{{Name: "workspace"}}})
	account := pool.Open("w")
	defer account.Close()
	result, err := json.Marshal(map[string]any{
		"id": "m", "type": "result", "data": map[string]any{"text/plain": strings.Repeat("x", 1<<20)}})
	if err != nil {
		t.Fatal(err)
	}
	small := "\n" + `{"id":"m","type":"result","data":{"text/plain":"small"}}` + "\n"
	for name, c := range map[string]struct {
		k      protocol
		output []byte
	}{
		"bash": {
			&bashProtocol{mark: "m", memory: account},
			append(shown("image/png", make([]byte, 1<<20)), shown("text/plain", []byte("small"))...),
		},
		"json": {&jsonProtocol{id: "m", memory: account}, append(result, small...)},
	} {
		events, _ := feedPieces(t, c.k, c.output)
		if len(events) != 2 || events[0].Kind != Stderr || !strings.Contains(events[0].Text, "dropped: memory: ") ||
			events[1].Data["text/plain"] != "small" {
			t.Errorf("%s: events are %.300v, want a message and the small result", name, events)
		}
		if held := account.Held(); held != 0 {
			t.Errorf("%s: %d bytes are held behind the last result, want none", name, held)
		}
	}
}

// The contexts that one sandbox ended do not push out those of another one.
func TestEndedContextsOfOthersAreKept(t *testing.T) {
	var r Runner
	r.remember("neighbour", "py1")
	for i := range 10 * maxEnded {
		r.remember("hostile", fmt.Sprint("py", i))
	}
	if r.checkNotEnded("neighbour", Context{ID: "py1"}) == nil {
		t.Error("the neighbour's context is forgotten")
	}
	if n := len(r.ended["hostile"]); n != maxEnded {
		t.Errorf("%d contexts of one sandbox are remembered, want %d", n, maxEnded)
	}
	for i := range 2 * maxEndedSandboxes {
		r.remember(fmt.Sprint(i), "py")
	}
	if n := len(r.ended); n > maxEndedSandboxes {
		t.Errorf("contexts of %d sandboxes are remembered, want at most %d", n, maxEndedSandboxes)
	}
}
