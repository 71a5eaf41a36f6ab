package checkpoint

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Spans stay in order and apart, whatever a scan that goes on tells twice.
func TestAppendSpan(t *testing.T) {
	var got []Span
	for _, s := range []Span{{0, 4096}, {4096, 8192}, {12288, 20480}, {16384, 20480}, {16384, 24576}, {24576, 24576}, {40960, 45056}} {
		got = appendSpan(got, s)
	}
	want := []Span{{0, 8192}, {12288, 24576}, {40960, 45056}}
	if !slices.Equal(got, want) {
		t.Errorf("spans %v, want %v", got, want)
	}
}

// Both ways of asking the kernel tell the same of this very process.
func TestPrivate(t *testing.T) {
	const pages = 64
	mem, err := unix.Mmap(-1, 0, pages*pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	for _, p := range []int{0, 3, 4, 5, 63} {
		mem[p*pageSize] = 1
	}
	start, err := strconv.ParseUint(fmt.Sprintf("%p", mem), 0, 64)
	if err != nil {
		t.Fatal(err)
	}
	want := []Span{
		{start, start + pageSize},
		{start + 3*pageSize, start + 6*pageSize},
		{start + 63*pageSize, start + 64*pageSize},
	}
	got, err := Private(os.Getpid(), start, start+pages*pageSize)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %x, %v, want %x", got, err, want)
	}
	pagemap, err := os.Open("/proc/self/pagemap")
	if err != nil {
		t.Fatal(err)
	}
	defer pagemap.Close()
	if got, err := readPagemap(pagemap, start, start+pages*pageSize); err != nil || !slices.Equal(got, want) {
		t.Errorf("without the ioctl: got %x, %v, want %x", got, err, want)
	}
}

func TestProgram(t *testing.T) {
	f, err := elf.NewFile(bytes.NewReader(Program()))
	if err != nil {
		t.Fatal(err)
	}
	if f.Entry != vehicleCode+waiting || f.Machine != elf.EM_X86_64 || len(f.Progs) != 2 {
		t.Errorf("got %+v", f.FileHeader)
	}
	if libs, err := f.ImportedLibraries(); err != nil || len(libs) != 0 {
		t.Errorf("libraries %v, %v", libs, err)
	}
	// The loop ends with a jump to its first instruction.
	loop := program[1].code
	if jump := int8(loop[len(loop)-2]); len(loop)-1+int(jump) != 0 {
		t.Errorf("the jump goes to byte %d of the loop", len(loop)-1+int(jump))
	}
}

func TestAgain(t *testing.T) {
	for _, c := range []struct {
		name            string
		call, result    int64
		back, restarted bool
	}{
		{"interrupted", 271, -restartNoHand, true, true},
		{"with_a_limit", 202, -restartByBlock, true, true},
		{"done", 0, 12, false, false},
		{"failed", 0, -int64(unix.EAGAIN), false, false},
		{"in_no_call", -1, -restartSys, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r Regs
			r[rRIP], r[rOrigRAX], r[rRAX] = 1000, uint64(c.call), uint64(c.result)
			got := r.again()
			if (got[rRIP] == 998) != c.back || (got[rRAX] == uint64(c.call)) != c.restarted || got[rOrigRAX] != noCall {
				t.Errorf("got %+v", got)
			}
		})
	}
}

const someMaps = `00190000-00191000 rw-p 00000000 00:00 0
5562c0000000-5562c0001000 r-xp 00001000 fe:00 42                 /usr/bin/a program
7f0000000000-7f0000100000 rw-p 00000000 00:00 0                  [heap]
7ffd00000000-7ffd00001000 r--s 00000000 fe:00 43                 /x (deleted)
7ffd10000000-7ffd10002000 r-xp 00000000 00:00 0                  [vdso]
`

func TestParseMaps(t *testing.T) {
	got, err := parseMaps(someMaps)
	if err != nil || len(got) != 5 {
		t.Fatal(got, err)
	}
	if m := got[1]; m.name != "/usr/bin/a program" || m.inode != 42 || m.offset != 0x1000 ||
		m.prot != unix.PROT_READ|unix.PROT_EXEC {
		t.Errorf("got %+v", m)
	}
	if !got[3].shared || !got[4].kernels() {
		t.Errorf("got %+v", got)
	}
}

const fileMaps = `7f0000000000-7f0000001000 ---p 00000000 00:00 0
7f1000000000-7f1000200000 rw-p 00000000 fe:00 4711                       /x/memory
7f1000200000-7f1000400000 rw-p 00200000 fe:00 4711                       /x/memory (deleted)
7f2000000000-7f2000100000 r--p 00000000 fe:00 99                         /lib/x.so
`

func TestFindMapped(t *testing.T) {
	for _, c := range []struct {
		name  string
		inode uint64
		bytes int64
		want  uint64
	}{
		{"pieces", 4711, 4 << 20, 0x7f1000000000},
		{"first_piece", 4711, 2 << 20, 0x7f1000000000},
		{"whole", 99, 1 << 20, 0x7f2000000000},
		{"too_large", 4711, 8 << 20, 0},
		{"other_file", 1, 1 << 20, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			maps, err := parseMaps(fileMaps)
			if err != nil {
				t.Fatal(err)
			}
			if got, ok := findMapped(maps, c.inode, c.bytes); got != c.want || ok != (c.want != 0) {
				t.Errorf("got %x, %v, want %x", got, ok, c.want)
			}
		})
	}
}

func FuzzParseMaps(f *testing.F) {
	f.Add(someMaps)
	f.Add("0-1 rwxp 0 0:0 0")
	f.Fuzz(func(t *testing.T, text string) {
		if all, err := parseMaps(text); err == nil && len(all) > maxAreas {
			t.Errorf("%d areas", len(all))
		}
	})
}

func valid() *Image {
	return &Image{
		Threads: []Thread{{}}, Bytes: 4 * pageSize, Files: []File{{Path: "/x"}},
		Areas: []Area{
			{Start: reserved, End: reserved + pageSize, Backing: Zero},
			{Start: reserved + pageSize, End: reserved + 3*pageSize, Backing: Stored, Offset: 2 * pageSize},
			{Start: reserved + 3*pageSize, End: reserved + 4*pageSize, Backing: Mapped},
		},
		FDs: []FD{{Number: 3, Role: "x"}},
	}
}

func TestCheck(t *testing.T) {
	if err := valid().Check(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Image){
		"no_thread":     func(im *Image) { im.Threads = nil },
		"too_low":       func(im *Image) { im.Areas[0].Start = 0 },
		"out_of_order":  func(im *Image) { im.Areas[0].End += pageSize },
		"empty":         func(im *Image) { im.Areas[0].End = im.Areas[0].Start },
		"too_high":      func(im *Image) { im.Areas[2].End = 1 << 60 },
		"odd":           func(im *Image) { im.Areas[2].End++ },
		"behind":        func(im *Image) { im.Areas[1].Offset = 3 * pageSize },
		"negative":      func(im *Image) { im.Areas[1].Offset = -pageSize },
		"far_behind":    func(im *Image) { im.Areas[1].Offset = 1 << 62 },
		"no_file":       func(im *Image) { im.Areas[2].File = 1 },
		"protection":    func(im *Image) { im.Areas[2].Prot = 8 },
		"descriptor":    func(im *Image) { im.FDs[0].Number = stage },
		"much_state":    func(im *Image) { im.Threads[0].State = make([]byte, maxState+1) },
		"odd_content":   func(im *Image) { im.Bytes++ },
		"many_filters":  func(im *Image) { im.Filters = make([][]byte, maxFilters+1) },
		"many_threads":  func(im *Image) { im.Threads = make([]Thread, maxThreads+1) },
		"no_descriptor": func(im *Image) { im.FDs[0].Number = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			im := valid()
			spoil(im)
			if err := im.Check(); err == nil || !strings.Contains(err.Error(), "process image") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Whatever passes the check can be turned into a table, or is refused.
func FuzzImage(f *testing.F) {
	data, err := json.Marshal(valid())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		var im Image
		if json.Unmarshal(data, &im) != nil || im.Check() != nil {
			return
		}
		b := builder{plan: Plan{Image: &im, Files: make([]int, len(im.Files))}, table: table{at: tableAt}}
		if b.mapAreas() != nil || b.threads() != nil {
			return
		}
		if raw, err := b.table.encode(); err == nil && len(raw) > tableBytes {
			t.Errorf("a table of %d bytes", len(raw))
		}
	})
}

// Content that differs is found again at its place, whether it lies over content or over zeros.
func TestSave(t *testing.T) {
	dst, err := os.CreateTemp(t.TempDir(), "content")
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close()
	page := func(b byte) []byte { return bytes.Repeat([]byte{b}, pageSize) }
	const base = reserved
	im := valid()
	im.Bytes = 0
	im.Areas = []Area{{Start: base, End: base + 1000*pageSize, Prot: 3, Backing: Zero}}
	c := Capture{
		Image: *im,
		spans: []Span{
			{base + pageSize, base + 2*pageSize},
			{base + 3*pageSize, base + 4*pageSize},
			{base + 500*pageSize, base + 501*pageSize},
		},
		pages: [][]byte{page(1), page(2), page(3)},
	}
	got, err := c.Save(dst)
	if err != nil {
		t.Fatal(err)
	}
	want := []Area{
		{Start: base, End: base + pageSize, Prot: 3, Backing: Zero},
		{Start: base + pageSize, End: base + 4*pageSize, Prot: 3, Backing: Stored},
		{Start: base + 4*pageSize, End: base + 500*pageSize, Prot: 3, Backing: Zero},
		{Start: base + 500*pageSize, End: base + 501*pageSize, Prot: 3, Backing: Stored, Offset: 3 * pageSize},
		{Start: base + 501*pageSize, End: base + 1000*pageSize, Prot: 3, Backing: Zero},
	}
	if !slices.Equal(got.Areas, want) || got.Bytes != 4*pageSize {
		t.Errorf("got %+v, %d bytes", got.Areas, got.Bytes)
	}
	data, err := os.ReadFile(dst.Name())
	if err != nil || !bytes.Equal(data, slices.Concat(page(1), page(0), page(2), page(3))) {
		t.Errorf("content differs, %v", err)
	}
}

func TestCut(t *testing.T) {
	in, rest := cut([]Span{{0, 10}, {20, 40}, {50, 60}}, 5, 30)
	if !slices.Equal(in, []Span{{5, 10}, {20, 30}}) || !slices.Equal(rest, []Span{{20, 40}, {50, 60}}) {
		t.Errorf("got %v, %v", in, rest)
	}
	in, rest = cut(rest, 30, 40)
	if !slices.Equal(in, []Span{{30, 40}}) || !slices.Equal(rest, []Span{{50, 60}}) {
		t.Errorf("got %v, %v", in, rest)
	}
}

func TestMapOver(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "over")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	page := bytes.Repeat([]byte{7}, pageSize)
	if _, err := f.Write(page); err != nil {
		t.Fatal(err)
	}
	c, err := MapOver(f, valid(), []Span{{reserved, reserved + pageSize}})
	if err != nil || !bytes.Equal(slices.Concat(c.pages...), page) {
		t.Fatalf("what was mapped is not what is there, %v", err)
	}
	for range 2 { // the second time there is nothing to do
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}

	for name, spans := range map[string][]Span{
		"too_low":      {{0, pageSize}},
		"out_of_order": {{reserved + pageSize, reserved + 2*pageSize}, {reserved, reserved + pageSize}},
		"odd":          {{reserved, reserved + 1}},
		"empty":        {{reserved, reserved}},
		"much":         {{reserved, reserved + maxOver + pageSize}},
		"short":        {{reserved, reserved + 2*pageSize}},
		"none":         {},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := MapOver(f, valid(), spans); err == nil {
				t.Error("it was mapped")
			}
		})
	}
}
