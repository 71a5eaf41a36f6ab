package checkpoint

import (
	"bytes"
	"encoding/binary"
)

// Addresses of a stub's own memory, below any address that the kernel chooses for a program.
const (
	stubAt           = 0x100000 // the page with the stub's program
	tableAt          = 0x110000 // the table of system calls and the data that they point to
	tableBytes       = 0x040000
	argsAt           = 0x190000 // arguments and environment, which remain after the restore
	argsBytes        = pageSize
	kernelMappingsAt = 0x1a0000 // the kernel's own mappings while they are being moved
	minAddress       = 0x200000 // everything in a checkpoint lies above
)

// fdStage is the first of the descriptor numbers that the inherited descriptors are moved to.
const fdStage = 512

// Offsets in the stub's page: pauseLoop is its entry point, syscallLoop runs the system call table.
const (
	pauseLoop   = 0xb0
	syscallLoop = 0xc0
)

// stubCode is the machine code of a stub.
var stubCode = [...]struct {
	at   int
	code []byte
}{
	{pauseLoop, []byte{
		0xb8, callPause, 0, 0, 0, // mov  eax, pause
		0x0f, 0x05, // syscall
		0xeb, 0xf7, // jmp  back
	}},
	// rbx: the next entry of the table; r12: the number of entries left
	{syscallLoop, []byte{
		0x48, 0x8b, 0x03, // mov  rax, [rbx]
		0x48, 0x8b, 0x7b, 0x08, // mov  rdi, [rbx+8]
		0x48, 0x8b, 0x73, 0x10, // mov  rsi, [rbx+16]
		0x48, 0x8b, 0x53, 0x18, // mov  rdx, [rbx+24]
		0x4c, 0x8b, 0x53, 0x20, // mov  r10, [rbx+32]
		0x4c, 0x8b, 0x43, 0x28, // mov  r8, [rbx+40]
		0x4c, 0x8b, 0x4b, 0x30, // mov  r9, [rbx+48]
		0x0f, 0x05, // syscall
		0x48, 0x89, 0x43, 0x38, // mov  [rbx+56], rax
		0x48, 0x83, 0xc3, 0x40, // add  rbx, 64
		0x49, 0xff, 0xcc, // dec  r12
		0x75, 0xd6, // jnz first instruction
		0xcc, // int3
	}},
}

// elfHeader and elfSegment are Elf64_Ehdr and Elf64_Phdr (elf(5)).
type elfHeader struct {
	Ident                                                [16]byte
	Type, Machine                                        uint16
	Version                                              uint32
	Entry, Phoff, Shoff                                  uint64
	Flags                                                uint32
	Ehsize, Phentsize, Phnum, Shentsize, Shnum, Shstrndx uint16
}

type elfSegment struct {
	Type, Flags                                uint32
	Offset, Vaddr, Paddr, Filesz, Memsz, Align uint64
}

// StubProgram returns the executable file of a stub, which waits until a signal ends it. It is a
// static ELF executable.
func StubProgram() []byte {
	const (
		executable, amd64, current = 2, 62, 1
		load, stack                = 1, 0x6474e551
		execute, write, read       = 1, 2, 4
	)
	page := make([]byte, pageSize)
	var head bytes.Buffer
	segments := []elfSegment{
		{
			Type:   load,
			Flags:  read | execute,
			Vaddr:  stubAt,
			Paddr:  stubAt,
			Filesz: pageSize,
			Memsz:  pageSize,
			Align:  pageSize,
		},
		{Type: stack, Flags: read | write, Align: 16},
	}
	h := elfHeader{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', 2, 1, 1}, Type: executable, Machine: amd64, Version: current,
		Entry: stubAt + pauseLoop, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: uint16(len(segments)),
	}
	_ = binary.Write(&head, binary.LittleEndian, h) // writing to memory cannot fail
	_ = binary.Write(&head, binary.LittleEndian, segments)
	copy(page, head.Bytes())
	for _, p := range stubCode {
		copy(page[p.at:], p.code)
	}
	return page
}
