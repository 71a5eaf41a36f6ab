package vmm_test

import (
	"strings"
	"testing"
	"unicode"

	"github.com/pandastack/pandastack/internal/vmm"
)

func TestConsoleTail(t *testing.T) {
	trace := strings.Repeat("[    3.9]  do_exit+0x9a3/0xaf0\r\n", 20)
	for name, c := range map[string]struct{ console, want string }{
		"empty":       {"", ""},
		"blank_lines": {"\r\n \n\t\n", ""},
		"last_lines":  {"1\n2\n3\n4\n5\r\n6\r\n", "2; 3; 4; 5; 6"},
		"escaped":     {"\x1b[31mred\x00\u202e\xff\n", `\x1b[31mred\x00\u202e\xff`},
		"agent_and_panic": {
			"noise\npandastack-guest: old\npandastack-guest: no disk\n" + trace +
				"[    3.8] Kernel panic - not syncing\n" + trace,
			"pandastack-guest: no disk; [    3.8] Kernel panic - not syncing" +
				strings.Repeat("; [    3.9]  do_exit+0x9a3/0xaf0", 5),
		},
		"agent_last": {"pandastack-guest: no disk\nbye\n", "pandastack-guest: no disk; bye"},
		"one_line": {
			"pandastack-guest: Kernel panic\n" + "a\nb\nc\nd\ne\n", "pandastack-guest: Kernel panic; a; b; c; d; e",
		},
		"rune_cut": {strings.Repeat("x", 199) + "€", strings.Repeat("x", 199)},
	} {
		t.Run(name, func(t *testing.T) {
			if got := vmm.ConsoleTail([]byte(c.console)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func FuzzConsoleTail(f *testing.F) {
	f.Add([]byte("pandastack-guest: x\nKernel panic\n\x1b]0;\a\u202e\xf0\x9f"))
	f.Add([]byte(strings.Repeat("\x00", 70_000)))
	f.Fuzz(func(t *testing.T, console []byte) {
		const most = 7 * (4*200 + 2) // pieces of 200 bytes, each byte escaped as four
		got := vmm.ConsoleTail(console)
		if len(got) > most {
			t.Errorf("got %d bytes, want at most %d", len(got), most)
		}
		for _, r := range got {
			if !unicode.IsGraphic(r) {
				t.Errorf("got %q in the text, want graphic characters only", r)
			}
		}
	})
}
