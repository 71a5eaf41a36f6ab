package jsonlines_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/lib/jsonlines"
)

// number decodes lines that have a number.
func number(line []byte) (string, error) {
	s := strings.TrimSpace(string(line))
	if strings.Trim(s, "0123456789") != "" {
		return "", errors.New("not a number")
	}
	return s, nil
}

func TestDecoder(t *testing.T) {
	d := jsonlines.Decoder[string]{Limit: 8, Decode: number}
	var got []string
	each := func(s string) error {
		got = append(got, s)
		return nil
	}
	bad := 0
	for _, piece := range []string{"1", "2\n\n  \nnoise\n", "00000000", "1", "2\n3\n12345678\n", "4"} {
		n, err := d.Write([]byte(piece), each)
		if err != nil {
			t.Fatal(err)
		}
		bad += n
	}
	if want := []string{"12", "3", "12345678"}; !slices.Equal(got, want) || bad != 2 {
		t.Errorf("messages %q with %d bad lines, want %q with 2", got, bad, want)
	}
	stop := errors.New("stop")
	if _, err := d.Write([]byte("\n5\n"), func(string) error { return stop }); err != stop {
		t.Errorf("Write() = %v, want the error of its callback", err)
	}
}

// FuzzDecoder compares pieces of any sizes with the same output as a whole.
func FuzzDecoder(f *testing.F) {
	f.Add([]byte("1\n22\n\nnoise\n123456789\n4"), byte(3))
	f.Add([]byte("\n\n\r\n 7 \n"), byte(1))
	f.Fuzz(func(t *testing.T, output []byte, size byte) {
		const limit = 8
		var want []string
		wrong := 0
		lines := bytes.Split(output, []byte("\n"))
		for _, line := range lines[:len(lines)-1] {
			if len(line) <= limit && len(bytes.TrimSpace(line)) == 0 {
				continue
			}
			if s, err := number(line); err == nil && len(line) <= limit {
				want = append(want, s)
			} else {
				wrong++
			}
		}
		d := jsonlines.Decoder[string]{Limit: limit, Decode: func(line []byte) (string, error) {
			if len(line) > limit {
				t.Errorf("a line of %d bytes is decoded, want at most %d", len(line), limit)
			}
			return number(line)
		}}
		var got []string
		bad := 0
		for piece := range slices.Chunk(output, max(int(size), 1)) {
			n, err := d.Write(piece, func(s string) error {
				got = append(got, s)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			bad += n
		}
		if !slices.Equal(got, want) || bad != wrong {
			t.Errorf("pieces of %d bytes of %q: messages %q, %d bad, want %q, %d bad", size, output, got, bad, want,
				wrong)
		}
	})
}
