package githttp

import (
	"context"
	"io"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

// maxLine is the number of bytes of a line on a terminal; the rest is left out.
const maxLine = 1000

// terminal writes to the terminal of who pushes, and passes on what git sends. It may be used concurrently.
type terminal struct {
	mu    sync.Mutex
	out   io.Writer
	flush func()
	err   error // of the first write that failed; nothing is written behind it
}

// Write sends packets of git.
func (t *terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return 0, t.err
	}
	n, err := t.out.Write(p)
	if t.err = err; err == nil {
		t.flush()
	}
	return n, err
}

// say prints a line.
func (t *terminal) say(line string) { t.send(bandProgress, printable(line)+"\n") }

// fail ends the push with an error.
func (t *terminal) fail(text string) { t.send(bandError, printable(text)+"\n") }

func (t *terminal) send(band byte, content string) {
	_, _ = t.Write(packet(nil, band, content[:min(len(content), maxBand)])) // t.err has it
}

// keepAliveEvery is how often something is sent to a client that waits, so that no proxy takes it for dead.
const keepAliveEvery = 10 * time.Second

// keepAlive sends empty packets until ctx ends.
func (t *terminal) keepAlive(ctx context.Context) {
	tick := time.NewTicker(keepAliveEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			t.send(bandProgress, "")
		}
	}
}

// printable makes a line safe for a terminal: programs of a build print it, or git prints names that somebody chose.
func printable(line string) string {
	line = strings.TrimRight(line, "\r\n")
	if len(line) > maxLine {
		cut := maxLine
		for cut > 0 && !utf8.RuneStart(line[cut]) {
			cut--
		}
		line = line[:cut] + "..."
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return r
		case unicode.IsControl(r), r >= 0x2028 && r <= 0x202e, r >= 0x2066 && r <= 0x2069: // also writing backwards
			return -1
		case r == utf8.RuneError:
			return '?'
		}
		return r
	}, line)
}
