package checkpoint

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAppendSpan checks that spans stay sorted and disjoint when a continued scan repeats pages.
func TestAppendSpan(t *testing.T) {
	var got []Span
	for _, s := range []Span{{0, 4096}, {4096, 8192}, {12288, 20480}, {16384, 20480}, {16384, 24576}, {24576, 24576},
		{40960, 45056}} {
		got = appendSpan(got, s)
	}
	want := []Span{{0, 8192}, {12288, 24576}, {40960, 45056}}
	if !slices.Equal(got, want) {
		t.Errorf("got spans %v, want %v", got, want)
	}
}

// TestPrivatePages checks that PAGEMAP_SCAN and /proc/PID/pagemap agree for this process.
func TestPrivatePages(t *testing.T) {
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
	got, err := PrivatePages(os.Getpid(), start, start+pages*pageSize)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("PrivatePages() = %x, %v; want %x", got, err, want)
	}
	pagemap, err := os.Open("/proc/self/pagemap")
	if err != nil {
		t.Fatal(err)
	}
	defer pagemap.Close()
	if got, err := readPagemap(pagemap, start, start+pages*pageSize); err != nil || !slices.Equal(got, want) {
		t.Errorf("readPagemap() = %x, %v; want %x", got, err, want)
	}
}

func TestStubProgram(t *testing.T) {
	f, err := elf.NewFile(bytes.NewReader(StubProgram()))
	if err != nil {
		t.Fatal(err)
	}
	if f.Entry != stubAt+pauseLoop || f.Machine != elf.EM_X86_64 || len(f.Progs) != 2 {
		t.Errorf("got ELF header %+v and %d segments, want an amd64 executable with 2", f.FileHeader, len(f.Progs))
	}
	if libs, err := f.ImportedLibraries(); err != nil || len(libs) != 0 {
		t.Errorf("ImportedLibraries() = %v, %v; want none", libs, err)
	}
	// The loop ends with a jump to its first instruction.
	loop := stubCode[1].code
	if jump := int8(loop[len(loop)-2]); len(loop)-1+int(jump) != 0 {
		t.Errorf("the jump goes to byte %d of the loop, want 0", len(loop)-1+int(jump))
	}
}

func TestRestartSyscall(t *testing.T) {
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
			got := r.restartSyscall()
			if (got[rRIP] == 998) != c.back || (got[rRAX] == uint64(c.call)) != c.restarted ||
				got[rOrigRAX] != notInSyscall {
				t.Errorf("restartSyscall() = %+v, want back %v and restarted %v", got, c.back, c.restarted)
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
		t.Fatalf("parseMaps() = %v, %v; want 5 mappings", got, err)
	}
	if m := got[1]; m.name != "/usr/bin/a program" || m.inode != 42 || m.offset != 0x1000 ||
		m.prot != unix.PROT_READ|unix.PROT_EXEC {
		t.Errorf("got mapping %+v, want a readable and executable one with a name", m)
	}
	if !got[3].shared || !got[4].ofKernel() {
		t.Errorf("got mappings %+v, want a shared one and one of the kernel", got[3:])
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
		if all, err := parseMaps(text); err == nil && len(all) > maxVMAs {
			t.Errorf("got %d areas, want at most %d", len(all), maxVMAs)
		}
	})
}

func validCheckpoint() *Checkpoint {
	return &Checkpoint{
		Threads: []Thread{{}}, Bytes: 4 * pageSize, Files: []File{{Path: "/x"}},
		VMAs: []VMA{
			{Start: minAddress, End: minAddress + pageSize, Backing: Zero},
			{Start: minAddress + pageSize, End: minAddress + 3*pageSize, Backing: Stored, Offset: 2 * pageSize},
			{Start: minAddress + 3*pageSize, End: minAddress + 4*pageSize, Backing: Mapped},
		},
		FDs: []FD{{Number: 3, Role: "x"}},
	}
}

func TestValidateCheckpoint(t *testing.T) {
	if err := validCheckpoint().Validate(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Checkpoint){
		"no_thread":     func(cp *Checkpoint) { cp.Threads = nil },
		"too_low":       func(cp *Checkpoint) { cp.VMAs[0].Start = 0 },
		"out_of_order":  func(cp *Checkpoint) { cp.VMAs[0].End += pageSize },
		"empty":         func(cp *Checkpoint) { cp.VMAs[0].End = cp.VMAs[0].Start },
		"too_high":      func(cp *Checkpoint) { cp.VMAs[2].End = 1 << 60 },
		"odd":           func(cp *Checkpoint) { cp.VMAs[2].End++ },
		"behind":        func(cp *Checkpoint) { cp.VMAs[1].Offset = 3 * pageSize },
		"negative":      func(cp *Checkpoint) { cp.VMAs[1].Offset = -pageSize },
		"far_behind":    func(cp *Checkpoint) { cp.VMAs[1].Offset = 1 << 62 },
		"no_file":       func(cp *Checkpoint) { cp.VMAs[2].File = 1 },
		"protection":    func(cp *Checkpoint) { cp.VMAs[2].Prot = 8 },
		"descriptor":    func(cp *Checkpoint) { cp.FDs[0].Number = fdStage },
		"much_state":    func(cp *Checkpoint) { cp.Threads[0].XSave = make([]byte, maxState+1) },
		"odd_content":   func(cp *Checkpoint) { cp.Bytes++ },
		"many_filters":  func(cp *Checkpoint) { cp.Filters = make([][]byte, maxFilters+1) },
		"many_threads":  func(cp *Checkpoint) { cp.Threads = make([]Thread, maxThreads+1) },
		"no_descriptor": func(cp *Checkpoint) { cp.FDs[0].Number = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			cp := validCheckpoint()
			spoil(cp)
			if err := cp.Validate(); err == nil || !strings.Contains(err.Error(), "checkpoint ") {
				t.Errorf("Validate() = %v, want an error about the checkpoint", err)
			}
		})
	}
}

// FuzzCheckpoint checks that every valid checkpoint is either turned into a table or refused.
func FuzzCheckpoint(f *testing.F) {
	data, err := json.Marshal(validCheckpoint())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		var cp Checkpoint
		if json.Unmarshal(data, &cp) != nil || cp.Validate() != nil {
			return
		}
		b := restorer{plan: Plan{Checkpoint: &cp, Files: make([]int, len(cp.Files))}, table: syscallTable{at: tableAt}}
		if b.mapVMAs() != nil || b.createThreads() != nil {
			return
		}
		if raw, err := b.table.encode(); err == nil && len(raw) > tableBytes {
			t.Errorf("got a table of %d bytes, want at most %d", len(raw), tableBytes)
		}
	})
}

// TestSave checks that changed pages are read back, over stored content as well as over zeros.
func TestSave(t *testing.T) {
	dst, err := os.CreateTemp(t.TempDir(), "content")
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close()
	page := func(b byte) []byte { return bytes.Repeat([]byte{b}, pageSize) }
	const base = minAddress
	cp := validCheckpoint()
	cp.Bytes = 0
	cp.VMAs = []VMA{{Start: base, End: base + 1000*pageSize, Prot: 3, Backing: Zero}}
	c := Capture{
		Checkpoint: *cp,
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
	want := []VMA{
		{Start: base, End: base + pageSize, Prot: 3, Backing: Zero},
		{Start: base + pageSize, End: base + 4*pageSize, Prot: 3, Backing: Stored},
		{Start: base + 4*pageSize, End: base + 500*pageSize, Prot: 3, Backing: Zero},
		{Start: base + 500*pageSize, End: base + 501*pageSize, Prot: 3, Backing: Stored, Offset: 3 * pageSize},
		{Start: base + 501*pageSize, End: base + 1000*pageSize, Prot: 3, Backing: Zero},
	}
	if !slices.Equal(got.VMAs, want) || got.Bytes != 4*pageSize {
		t.Errorf("got areas %+v and %d bytes, want %+v and %d", got.VMAs, got.Bytes, want, 4*pageSize)
	}
	data, err := os.ReadFile(dst.Name())
	if err != nil || !bytes.Equal(data, slices.Concat(page(1), page(0), page(2), page(3))) {
		t.Errorf("the pages file differs from the saved pages (%v)", err)
	}
}

func TestClip(t *testing.T) {
	in, rest := clip([]Span{{0, 10}, {20, 40}, {50, 60}}, 5, 30)
	if !slices.Equal(in, []Span{{5, 10}, {20, 30}}) || !slices.Equal(rest, []Span{{20, 40}, {50, 60}}) {
		t.Errorf("clip() = %v, %v; want [{5 10} {20 30}], [{20 40} {50 60}]", in, rest)
	}
	in, rest = clip(rest, 30, 40)
	if !slices.Equal(in, []Span{{30, 40}}) || !slices.Equal(rest, []Span{{50, 60}}) {
		t.Errorf("clip() = %v, %v; want [{5 10} {20 30}], [{20 40} {50 60}]", in, rest)
	}
}

func TestMapDelta(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "over")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	page := bytes.Repeat([]byte{7}, pageSize)
	if _, err := f.Write(page); err != nil {
		t.Fatal(err)
	}
	c, err := MapDelta(f, validCheckpoint(), []Span{{minAddress, minAddress + pageSize}})
	if err != nil || !bytes.Equal(slices.Concat(c.pages...), page) {
		t.Fatalf("MapDelta mapped other pages than the file has (%v)", err)
	}
	for range 2 { // the second pass must not change anything
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}

	for name, spans := range map[string][]Span{
		"too_low":      {{0, pageSize}},
		"out_of_order": {{minAddress + pageSize, minAddress + 2*pageSize}, {minAddress, minAddress + pageSize}},
		"odd":          {{minAddress, minAddress + 1}},
		"empty":        {{minAddress, minAddress}},
		"much":         {{minAddress, minAddress + maxDelta + pageSize}},
		"short":        {{minAddress, minAddress + 2*pageSize}},
		"none":         {},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := MapDelta(f, validCheckpoint(), spans); err == nil {
				t.Error("MapDelta with wrong spans succeeded, want an error")
			}
		})
	}
}

// TestNotifies checks which filters belong to a process's surroundings.
func TestNotifies(t *testing.T) {
	ret := func(k uint32) []byte {
		return binary.LittleEndian.AppendUint32([]byte{unix.BPF_RET | unix.BPF_K, 0, 0, 0}, k)
	}
	load := binary.LittleEndian.AppendUint32([]byte{unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, 0, 0, 0},
		unix.SECCOMP_RET_USER_NOTIF)
	for name, c := range map[string]struct {
		filter []byte
		want   bool
	}{
		"notifies":  {append(ret(unix.SECCOMP_RET_ALLOW), ret(unix.SECCOMP_RET_USER_NOTIF)...), true},
		"with_data": {ret(unix.SECCOMP_RET_USER_NOTIF | 7), true},
		"refuses":   {append(ret(unix.SECCOMP_RET_ERRNO|1), ret(unix.SECCOMP_RET_ALLOW)...), false},
		"loads":     {append(load, ret(unix.SECCOMP_RET_ALLOW)...), false},
		"empty":     {nil, false},
		"cut_short": {ret(unix.SECCOMP_RET_USER_NOTIF)[:7], false},
	} {
		if got := notifies(c.filter); got != c.want {
			t.Errorf("%s: notifies() = %v, want %v", name, got, c.want)
		}
	}
}
