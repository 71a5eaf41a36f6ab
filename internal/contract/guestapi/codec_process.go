package guestapi

import "time"

func (b *buffer) size(s *Size) {
	b.bool(s != nil)
	if s != nil {
		b.uint(uint64(s.Rows))
		b.uint(uint64(s.Cols))
	}
}

func (p *parser) size() *Size {
	if !p.bool() {
		return nil
	}
	return &Size{uint16(p.uintMax(1<<16 - 1)), uint16(p.uintMax(1<<16 - 1))}
}

// AppendProcessSpec encodes s.
func AppendProcessSpec(b []byte, s *ProcessSpec) []byte {
	w := buffer(b)
	w.strs(s.Argv)
	w.str(s.Shell)
	w.bool(s.Login)
	w.env(s.Env)
	w.str(s.Dir)
	w.str(s.User)
	w.str(s.Tag)
	w.bool(s.Stdin)
	w.size(s.PTY)
	w.int(int64(s.Timeout))
	return w
}

// ParseProcessSpec decodes a program that AppendProcessSpec encoded.
func ParseProcessSpec(b []byte) (ProcessSpec, error) {
	p := parser{b: b}
	s := ProcessSpec{
		Argv: p.strs(MaxEntries, MaxString), Shell: p.str(MaxString), Login: p.bool(), Env: p.env(),
		Dir: p.str(MaxPath), User: p.str(MaxName), Tag: p.str(MaxName), Stdin: p.bool(), PTY: p.size(),
		Timeout: time.Duration(p.count()),
	}
	return s, p.end()
}

// ProcessRequest is a request to attach to a process, signal it or resize its terminal, on the wire.
type ProcessRequest struct {
	Ref    ProcessRef
	From   Offsets
	Signal int
	Group  bool
	Size   Size
}

// AppendProcessRequest encodes r.
func AppendProcessRequest(b []byte, r *ProcessRequest) []byte {
	w := buffer(b)
	w.uint(uint64(r.Ref.PID))
	w.str(r.Ref.Tag)
	w.int(r.From.Stdout)
	w.int(r.From.Stderr)
	w.int(r.From.PTY)
	w.uint(uint64(r.Signal))
	w.bool(r.Group)
	w.size(&r.Size)
	return w
}

// ParseProcessRequest decodes a request that AppendProcessRequest encoded.
func ParseProcessRequest(b []byte) (ProcessRequest, error) {
	p := parser{b: b}
	r := ProcessRequest{
		Ref:    ProcessRef{uint32(p.uintMax(1<<32 - 1)), p.str(MaxName)},
		From:   Offsets{p.count(), p.count(), p.count()},
		Signal: int(p.uintMax(127)), Group: p.bool(),
	}
	if s := p.size(); s != nil {
		r.Size = *s
	}
	return r, p.end()
}

// Bits of the byte with the reason why a process was killed.
const (
	exitTimedOut    = 1
	exitOutOfMemory = 2
)

func (b *buffer) exit(e *Exit) {
	b.bool(e != nil)
	if e == nil {
		return
	}
	b.int(int64(e.Code))
	b.int(int64(e.Signal))
	var why uint8
	if e.TimedOut {
		why |= exitTimedOut
	}
	if e.OutOfMemory {
		why |= exitOutOfMemory
	}
	b.u8(why)
	b.str(e.Error[:min(len(e.Error), MaxText)])
	b.int(int64(e.CPU))
	b.int(int64(e.Wall))
}

func (p *parser) exit() *Exit {
	if !p.bool() {
		return nil
	}
	e := &Exit{Code: int(int32(p.int())), Signal: int(p.small())}
	why := p.u8()
	if why > exitTimedOut|exitOutOfMemory {
		p.fail()
	}
	e.TimedOut, e.OutOfMemory = why&exitTimedOut != 0, why&exitOutOfMemory != 0
	e.Error, e.CPU, e.Wall = p.text(MaxText), p.duration(), p.duration()
	return e
}

// small reads a number of at most 15 bits.
func (p *parser) small() int64 {
	v := p.int()
	if v < 0 || v >= 1<<15 {
		p.fail()
		return 0
	}
	return v
}

// AppendProcessInfo encodes i.
func AppendProcessInfo(b []byte, i *ProcessInfo) []byte {
	w := buffer(b)
	w.uint(uint64(i.PID))
	w.str(i.Tag)
	w.strs(i.Argv)
	w.str(i.Shell)
	w.env(i.Env)
	w.str(i.Dir)
	w.str(i.User)
	w.bool(i.PTY)
	w.time(i.Started)
	w.exit(i.Exit)
	return w
}

// ParseProcessInfos decodes a sequence of processes that AppendProcessInfo encoded, at most limit.
//
// pay is as in ParseFileInfos.
func ParseProcessInfos(b []byte, limit int, pay func(bytes int64) error) ([]ProcessInfo, error) {
	p := parser{b: b}
	var all []ProcessInfo
	for len(p.b) > 0 {
		if len(all) == limit {
			return nil, ErrFormat
		}
		i := p.processInfo()
		if err := pay(i.Bytes()); err != nil {
			return nil, err
		}
		all = append(all, i)
	}
	return all, p.end()
}

// Bytes returns about how much memory i takes in a list, rather too much than too little.
func (i *ProcessInfo) Bytes() int64 {
	n := listItemBytes + len(i.Tag) + len(i.Shell) + len(i.Dir) + len(i.User)
	for _, a := range i.Argv {
		n += 32 + len(a)
	}
	return int64(n) + mapBytes(i.Env)
}

func (p *parser) processInfo() ProcessInfo {
	i := ProcessInfo{PID: uint32(p.uintMax(1<<32 - 1)), Tag: p.text(MaxName)}
	for n := p.uintMax(MaxEntries); n > 0 && !p.bad; n-- {
		i.Argv = append(i.Argv, p.utf8(MaxString))
	}
	i.Shell = p.utf8(MaxString)
	if n := p.uintMax(MaxEntries); n > 0 {
		i.Env = make(map[string]string)
		for ; n > 0 && !p.bad; n-- {
			k := p.utf8(MaxString)
			i.Env[k] = p.utf8(MaxString)
		}
	}
	i.Dir, i.User, i.PTY, i.Started, i.Exit = p.utf8(MaxPath), p.text(MaxName), p.bool(), p.time(), p.exit()
	return i
}

// eventExit is the first byte of an exit; other events begin with their Stream.
const eventExit = 0

// AppendEvent encodes e.
func AppendEvent(b []byte, e *Event) []byte {
	w := buffer(b)
	if e.Exit != nil {
		w.u8(eventExit)
		w.exit(e.Exit)
		return w
	}
	w.u8(uint8(e.Stream))
	w.int(e.Offset)
	return append(w, e.Data...)
}

// ParseEvent decodes an event that AppendEvent encoded. Data shares the memory of b.
func ParseEvent(b []byte) (Event, error) {
	p := parser{b: b}
	switch kind := p.u8(); {
	case p.bad:
		return Event{}, ErrFormat
	case kind == eventExit:
		e := Event{Exit: p.exit()}
		if err := p.end(); err != nil || e.Exit == nil {
			return Event{}, ErrFormat
		}
		return e, nil
	case kind <= uint8(StreamPTY):
		e := Event{Stream: Stream(kind), Offset: p.count()}
		if p.bad {
			return Event{}, ErrFormat
		}
		e.Data = p.b
		return e, nil
	}
	return Event{}, ErrFormat
}

// AppendPID encodes the first response to Start and Attach.
func AppendPID(b []byte, pid uint32) []byte {
	w := buffer(b)
	w.uint(uint64(pid))
	return w
}

// ParsePID decodes a response that AppendPID encoded.
func ParsePID(b []byte) (uint32, error) {
	p := parser{b: b}
	pid := uint32(p.uintMax(1<<32 - 1))
	return pid, p.end()
}
