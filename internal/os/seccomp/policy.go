package seccomp

import (
	"fmt"
	"runtime"
	"slices"

	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/sys/unix"
)

// Arg is a condition on an argument of a system call: its bits in Mask are those of Value.
type Arg struct {
	Index       int // 0 to 5
	Mask, Value uint64
}

// Is returns the condition that an argument, which the kernel takes as 32 bits, has a value.
func Is(index int, value uint32) Arg { return Arg{index, 1<<32 - 1, uint64(value)} }

// HasNone returns the condition that an argument of 32 bits has none of the bits in not.
func HasNone(index int, not uint32) Arg { return Arg{index, uint64(not), 0} }

// Rule allows a system call if all conditions on its arguments hold. Several rules for one call are alternatives.
type Rule struct {
	Call string
	Args []Arg
}

// Any returns rules that allow calls with any arguments.
func Any(calls ...string) []Rule {
	all := make([]Rule, len(calls))
	for i, call := range calls {
		all[i].Call = call
	}
	return all
}

// Policy is a list of allowed system calls.
type Policy struct {
	numbers map[uint32][]Rule // by the number of the call on this architecture
	tried   []uint32          // refused without a notification
}

// New returns a policy of the given rules. Calls that this architecture lacks are left out. A call that no supported
// architecture has is an error.
//
// The program is known to try the calls in tried and to go on without them: they are refused without a notification.
func New(rules []Rule, tried ...string) (*Policy, error) {
	return newPolicy(rules, tried, runtime.GOARCH)
}

func newPolicy(rules []Rule, tried []string, goarch string) (*Policy, error) {
	own, err := arch.GetInfo(goarch)
	if err != nil {
		return nil, fmt.Errorf("system calls: %w", err)
	}
	p := &Policy{numbers: map[uint32][]Rule{}}
	for _, r := range rules {
		if !Known(r.Call) {
			return nil, fmt.Errorf("unknown system call %q", r.Call)
		}
		for _, a := range r.Args {
			if a.Index < 0 || a.Index > 5 || a.Value&^a.Mask != 0 {
				return nil, fmt.Errorf("system call %s: the condition %+v cannot hold", r.Call, a)
			}
		}
		if n, ok := own.SyscallNames[r.Call]; ok {
			p.numbers[uint32(n)] = append(p.numbers[uint32(n)], r)
		}
	}
	for _, call := range tried {
		if !Known(call) {
			return nil, fmt.Errorf("unknown system call %q", call)
		}
		if n, ok := own.SyscallNames[call]; ok && p.numbers[uint32(n)] == nil {
			p.tried = append(p.tried, uint32(n))
		}
	}
	return p, nil
}

// Allows reports whether a policy allows a call with some arguments on this architecture.
func (p *Policy) Allows(call string, args [6]uint64) bool {
	for _, rules := range p.numbers {
		for _, r := range rules {
			fails := func(a Arg) bool { return args[a.Index]&a.Mask != a.Value }
			if r.Call == call && !slices.ContainsFunc(r.Args, fails) {
				return true
			}
		}
	}
	return false
}

// Known reports whether a supported architecture has a system call.
func Known(call string) bool {
	_, amd64 := arch.X86_64.SyscallNames[call]
	_, arm64 := arch.AARCH64.SyscallNames[call]
	return amd64 || arm64
}

// Name returns the name of a system call of this architecture.
func Name(number int) string {
	if own, err := arch.GetInfo(runtime.GOARCH); err == nil {
		if name, ok := own.SyscallNumbers[number]; ok {
			return name
		}
	}
	return fmt.Sprintf("number %d", number)
}

// Offsets in struct seccomp_data. All supported architectures are little-endian.
const (
	dataNumber = 0
	dataArch   = 4
	dataArgs   = 16
)

// x32 is the bit in system call numbers of the x32 ABI, which has the same architecture value as amd64.
const x32 = 0x40000000

// maxProgram bounds a program (BPF_MAXINSNS).
const maxProgram = 4096

const (
	load = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	and  = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
	jeq  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	jge  = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
	ret  = unix.BPF_RET | unix.BPF_K
)

// Program returns the classic BPF program of a policy for an architecture (an AUDIT_ARCH value). Calls that are not
// allowed get the action otherwise. Those of other architectures fail with ENOSYS: their numbers have
// other meanings.
//
// Calls with conditions come first. The kernel remembers which of the others are always allowed and runs no program
// for them.
func (p *Policy) Program(auditArch, otherwise uint32) ([]unix.SockFilter, error) {
	const refuse = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	all := []unix.SockFilter{
		{Code: load, K: dataArch},
		{Code: jeq, K: auditArch, Jt: 1},
		{Code: ret, K: refuse},
		{Code: load, K: dataNumber},
		{Code: jge, K: x32, Jf: 1},
		{Code: ret, K: refuse},
	}
	var simple, conditional []uint32
	for n, rules := range p.numbers {
		if slices.ContainsFunc(rules, func(r Rule) bool { return len(r.Args) == 0 }) {
			simple = append(simple, n)
		} else {
			conditional = append(conditional, n)
		}
	}
	slices.Sort(simple)
	slices.Sort(conditional)
	for _, n := range conditional {
		body := check(p.numbers[n], otherwise)
		if len(body) > 255 {
			return nil, fmt.Errorf("too many rules for system call %s", p.numbers[n][0].Call)
		}
		all = append(all, unix.SockFilter{Code: jeq, K: n, Jf: uint8(len(body))})
		all = append(all, body...)
	}
	for _, n := range simple {
		all = append(all, equal(n, unix.SECCOMP_RET_ALLOW)...)
	}
	for _, n := range p.tried {
		all = append(all, equal(n, refuse)...)
	}
	all = append(all, unix.SockFilter{Code: ret, K: otherwise})
	if len(all) > maxProgram {
		return nil, fmt.Errorf("a filter of %d instructions, at most %d are possible", len(all), maxProgram)
	}
	return all, nil
}

// equal returns the instructions that give a call an action.
func equal(number, action uint32) []unix.SockFilter {
	return []unix.SockFilter{{Code: jeq, K: number, Jf: 1}, {Code: ret, K: action}}
}

// check returns the instructions that decide about a call with conditions. They always return.
func check(rules []Rule, otherwise uint32) []unix.SockFilter {
	var all []unix.SockFilter
	for _, r := range rules {
		var one []unix.SockFilter
		var jumps []int // to the next rule
		for _, a := range r.Args {
			for half := range 2 {
				mask, value := uint32(a.Mask>>(32*half)), uint32(a.Value>>(32*half))
				if mask == 0 {
					continue
				}
				one = append(one, unix.SockFilter{Code: load, K: uint32(dataArgs + 8*a.Index + 4*half)})
				if mask != 1<<32-1 {
					one = append(one, unix.SockFilter{Code: and, K: mask})
				}
				jumps = append(jumps, len(one))
				one = append(one, unix.SockFilter{Code: jeq, K: value})
			}
		}
		one = append(one, unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ALLOW})
		for _, at := range jumps {
			one[at].Jf = uint8(len(one) - at - 1)
		}
		all = append(all, one...)
	}
	return append(all, unix.SockFilter{Code: ret, K: otherwise})
}
