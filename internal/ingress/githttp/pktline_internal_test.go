package githttp

import (
	"bufio"
	"bytes"
	"strings"
	"testing"
	"testing/iotest"
	"unicode"
)

func FuzzReadPush(f *testing.F) {
	zero := strings.Repeat("0", 40)
	f.Add([]byte("0000"))
	f.Add([]byte("0075" + zero + " " + zero + " refs/heads/main\x00side-band-64k \n0000PACK"))
	f.Add([]byte("0003"))
	f.Add([]byte("fff0x"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bufio.NewReader(bytes.NewReader(data))
		req, err := readPush(r)
		if err != nil {
			return
		}
		if !bytes.HasPrefix(data, req.raw) || !bytes.HasSuffix(req.raw, []byte(flush)) {
			t.Fatalf("read %q of %q", req.raw, data)
		}
		for _, c := range req.commands {
			if !isObjectID(c.old) || !isObjectID(c.new) {
				t.Fatalf("command %+v", c)
			}
		}
	})
}

func FuzzDemux(f *testing.F) {
	f.Add(append(packet(packet(nil, bandData, "000eunpack ok\n"), bandProgress, "hello\n"), flush...))
	f.Add([]byte("0005\x04"))
	f.Add([]byte("00000000"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var whole, slow bytes.Buffer
		a := &demux{out: &whole}
		_, errWhole := a.Write(data)
		b := &demux{out: &slow}
		var errSlow error
		r := iotest.OneByteReader(bytes.NewReader(data))
		for one := make([]byte, 1); errSlow == nil; {
			if _, err := r.Read(one); err != nil {
				break
			}
			_, errSlow = b.Write(one)
		}
		if (errWhole == nil) != (errSlow == nil) && !a.ended && !b.ended {
			t.Fatalf("%v in one piece, %v in many", errWhole, errSlow)
		}
		if !bytes.HasPrefix(data, whole.Bytes()) || errWhole == nil && !bytes.Equal(whole.Bytes(), slow.Bytes()) {
			t.Fatalf("passed on %q and %q of %q", whole.Bytes(), slow.Bytes(), data)
		}
		if len(a.report) > maxReport || len(a.printed) > maxPrinted {
			t.Fatalf("kept %d and %d bytes", len(a.report), len(a.printed))
		}
		readReport(a.report)
	})
}

func FuzzPrintable(f *testing.F) {
	f.Add("\x1b[31mred\x1b[0m\r\n")
	f.Add(strings.Repeat("ä", 600))
	f.Fuzz(func(t *testing.T, line string) {
		out := printable(line)
		if len(out) > 3*maxLine+3 {
			t.Fatalf("%d bytes", len(out))
		}
		for _, r := range out {
			if unicode.IsControl(r) && r != '\t' {
				t.Fatalf("%q has a control character", out)
			}
		}
	})
}

func TestReportOfSeveralRefs(t *testing.T) {
	r := readReport([]byte("000eunpack ok\n0017ok refs/heads/main\n001eng refs/notes/x hidden ref0000"))
	why, changed := r.refs["refs/heads/main"]
	if r.unpack != "ok" || len(r.refs) != 2 || !changed || why != "" || r.refs["refs/notes/x"] != "hidden ref" {
		t.Errorf("got %+v", r)
	}
	if r := readReport([]byte("nonsense")); len(r.refs) != 0 {
		t.Errorf("got %+v", r)
	}
}
