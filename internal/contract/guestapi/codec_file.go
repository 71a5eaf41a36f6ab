package guestapi

// FileRequest is any request about files on the wire. Each operation uses the fields it needs.
//
// Flag is the operation's option: whether a removal or a watch includes everything below, whether a write is atomic,
// and for the operations that describe files whether to say where symbolic links lead. Agents in older snapshots know
// it only of removals and watches.
type FileRequest struct {
	Path, To, User string
	Flag           bool
	Depth          int
	Offset, Length int64
	Mode           uint32
	Size           int64
	Metadata       map[string]string
}

// AppendFileRequest encodes r.
func AppendFileRequest(b []byte, r *FileRequest) []byte {
	w := buffer(b)
	w.str(r.Path)
	w.str(r.To)
	w.str(r.User)
	w.bool(r.Flag)
	w.int(int64(r.Depth))
	w.int(r.Offset)
	w.int(r.Length)
	w.uint(uint64(r.Mode))
	w.int(r.Size)
	w.env(r.Metadata)
	return w
}

// ParseFileRequest decodes a request that AppendFileRequest encoded.
func ParseFileRequest(b []byte) (FileRequest, error) {
	p := parser{b: b}
	r := FileRequest{
		Path: p.str(MaxPath), To: p.str(MaxPath), User: p.str(MaxName), Flag: p.bool(),
		Depth: int(int32(p.int())), Offset: p.int(), Length: p.int(),
		Mode: uint32(p.uintMax(1<<32 - 1)), Size: p.int(), Metadata: p.metadata(),
	}
	return r, p.end()
}

// withEnd is added to the kind of a symbolic link whose end follows, which only requests with the flag get.
const withEnd = 0x80

// AppendFileInfo encodes i.
func AppendFileInfo(b []byte, i *FileInfo) []byte {
	w := buffer(b)
	w.str(i.Path)
	w.str(i.Name)
	kind := uint8(i.Kind)
	if i.End != nil {
		kind |= withEnd
	}
	w.u8(kind)
	w.str(i.Target)
	w.int(i.Size)
	w.uint(uint64(i.Mode))
	w.uint(uint64(i.UID))
	w.uint(uint64(i.GID))
	w.str(i.User)
	w.str(i.Group)
	w.time(i.Modified)
	w.env(i.Metadata)
	if i.End != nil {
		w.str(i.End.Path)
		w.u8(uint8(i.End.Kind))
		w.uint(uint64(i.End.Mode))
	}
	return w
}

func (p *parser) fileInfo() FileInfo {
	at, name, kind := p.utf8(2*MaxPath), p.utf8(MaxName), p.u8()
	i := FileInfo{
		Path: at, Name: name, Kind: FileKind(kind &^ withEnd), Target: p.utf8(MaxPath),
		Size: p.count(), Mode: uint32(p.uintMax(0o7777)), UID: uint32(p.uintMax(1<<32 - 1)),
		GID: uint32(p.uintMax(1<<32 - 1)), User: p.text(MaxName), Group: p.text(MaxName), Modified: p.time(),
		Metadata: p.metadata(),
	}
	if i.Kind < KindFile || i.Kind > KindOther {
		p.fail()
	}
	if kind&withEnd != 0 {
		i.End = &LinkEnd{Path: p.utf8(2 * MaxPath), Kind: FileKind(p.u8()), Mode: uint32(p.uintMax(0o7777))}
		if i.Kind != KindSymlink || i.End.Kind > KindOther || i.End.Kind == KindSymlink {
			p.fail()
		}
	}
	return i
}

// ParseFileInfo decodes one file that AppendFileInfo encoded.
func ParseFileInfo(b []byte) (FileInfo, error) {
	p := parser{b: b}
	i := p.fileInfo()
	if err := p.end(); err != nil {
		return FileInfo{}, err
	}
	return i, nil
}

// ParseFileInfos decodes a sequence of files that AppendFileInfo encoded, at most limit.
//
// pay is called with the memory that each file takes, in bytes; its first error ends the decoding.
func ParseFileInfos(b []byte, limit int, pay func(bytes int64) error) ([]FileInfo, error) {
	p := parser{b: b}
	var all []FileInfo
	for len(p.b) > 0 {
		if len(all) == limit {
			return nil, ErrFormat
		}
		i := p.fileInfo()
		if err := pay(i.Bytes()); err != nil {
			return nil, err
		}
		all = append(all, i)
	}
	return all, p.end()
}

// listItemBytes is more than a FileInfo or ProcessInfo takes in a slice that grows, besides its text.
const listItemBytes = 512

// Bytes returns about how much memory i takes in a list, rather too much than too little.
func (i *FileInfo) Bytes() int64 {
	n := listItemBytes + len(i.Path) + len(i.Name) + len(i.Target) + len(i.User) + len(i.Group)
	if i.End != nil {
		n += 64 + len(i.End.Path)
	}
	return int64(n) + mapBytes(i.Metadata)
}

// mapBytes returns about how much memory a map takes.
func mapBytes(m map[string]string) int64 {
	if m == nil {
		return 0
	}
	n := 512
	for k, v := range m {
		n += 96 + len(k) + len(v)
	}
	return int64(n)
}

// AppendFileEvent encodes e.
func AppendFileEvent(b []byte, e *FileEvent) []byte {
	w := buffer(b)
	w.u8(uint8(e.Op))
	w.str(e.Path)
	return w
}

// ParseFileEvent decodes an event that AppendFileEvent encoded.
func ParseFileEvent(b []byte) (FileEvent, error) {
	p := parser{b: b}
	e := FileEvent{Op: FileOp(p.u8()), Path: p.utf8(2 * MaxPath)}
	if e.Op < OpCreate || e.Op > OpOverflow {
		p.fail()
	}
	return e, p.end()
}
