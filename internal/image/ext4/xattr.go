package ext4

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// xattr is an extended attribute in ext4's format.
type xattr struct {
	index byte
	name  string // without the prefix that index represents
	value []byte
}

var xattrPrefixes = []struct {
	prefix string
	index  byte
	whole  bool // the prefix is the whole name
}{
	{"user.", 1, false}, {"system.posix_acl_access", 2, true}, {"system.posix_acl_default", 3, true},
	{"trusted.", 4, false}, {"security.", 6, false},
}

const (
	xattrRecord = "SCHILY.xattr."
	xattrMagic  = 0xea020000
	inlineRoom  = inodeSize - 128 - extraSize // magic, entries and values
	blockHeader = 32
)

// setXattrs sets the extended attributes of ino from the records of a header. It returns how many have names that
// ext4 does not support.
func (f *fsys) setXattrs(ino *inode, records map[string]string) (dropped int, err error) {
	var all []xattr
	for key, value := range records {
		name, ok := strings.CutPrefix(key, xattrRecord)
		if !ok {
			continue
		}
		x, ok, err := newXattr(name, value)
		if err != nil {
			return 0, err
		}
		if !ok {
			dropped++
			continue
		}
		all = append(all, x)
	}
	if len(all) == 0 {
		return dropped, nil
	}
	slices.SortFunc(all, func(a, b xattr) int {
		return cmp.Or(cmp.Compare(a.index, b.index), cmp.Compare(len(a.name), len(b.name)), cmp.Compare(a.name, b.name))
	})
	var inside, outside []xattr
	left := inlineRoom - 4 - 4 // magic and the end of the entries
	for _, x := range all {
		if size := x.size(); size <= left {
			inside, left = append(inside, x), left-size
		} else {
			outside = append(outside, x)
		}
	}
	if len(inside) > 0 {
		ino.inline = make([]byte, inlineRoom)
		le.PutUint32(ino.inline, xattrMagic)
		putXattrs(ino.inline[4:], inside, 0, false)
	}
	if len(outside) == 0 {
		return dropped, nil
	}
	return dropped, f.xattrBlock(ino, outside)
}

// xattrBlock writes the attributes that do not fit into the inode.
func (f *fsys) xattrBlock(ino *inode, all []xattr) error {
	total := blockHeader + 4
	for _, x := range all {
		total += x.size()
	}
	if total > blockSize {
		return fmt.Errorf("%w: extended attributes exceed %d bytes", ErrStream, blockSize)
	}
	b := make([]byte, blockSize)
	le.PutUint32(b[0:], xattrMagic)
	le.PutUint32(b[4:], 1) // references
	le.PutUint32(b[8:], 1) // blocks
	putXattrs(b[blockHeader:], all, blockHeader, true)
	block, _, err := f.allocate(1)
	if err != nil {
		return err
	}
	ino.acl = block
	return f.out.write(b, int64(block)*blockSize)
}

func newXattr(name, value string) (x xattr, known bool, err error) {
	for _, p := range xattrPrefixes {
		rest, ok := strings.CutPrefix(name, p.prefix)
		if !ok || p.whole != (rest == "") {
			continue
		}
		if len(rest) > 255 || strings.ContainsFunc(rest, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return x, false, fmt.Errorf("%w: %.100q is not a valid name of an extended attribute", ErrStream, name)
		}
		x = xattr{p.index, rest, []byte(value)}
		if p.whole {
			x.value, err = diskACL(x.value)
		}
		return x, true, err
	}
	return x, false, nil
}

func (x xattr) size() int { return 16 + (len(x.name)+3)&^3 + (len(x.value)+3)&^3 }

// putXattrs writes entries from the front and values from the back. Offsets count from delta bytes before b.
func putXattrs(b []byte, all []xattr, delta int, hashed bool) {
	at, end := 0, len(b)
	for _, x := range all {
		end -= (len(x.value) + 3) &^ 3
		copy(b[end:], x.value)
		e := b[at:]
		e[0], e[1] = byte(len(x.name)), x.index
		if len(x.value) > 0 {
			le.PutUint16(e[2:], uint16(end+delta))
		}
		le.PutUint32(e[8:], uint32(len(x.value)))
		if hashed {
			le.PutUint32(e[12:], x.hash())
		}
		copy(e[16:], x.name)
		at += 16 + (len(x.name)+3)&^3
	}
}

// hash returns the hash by which the kernel distinguishes attributes (fs/ext4/xattr.c, ext4_xattr_hash_entry).
func (x xattr) hash() uint32 {
	var h uint32
	for i := range len(x.name) {
		h = h<<5 ^ h>>27 ^ uint32(x.name[i])
	}
	padded := append(slices.Clone(x.value), make([]byte, (4-len(x.value)%4)%4)...)
	for ; len(padded) > 0; padded = padded[4:] {
		h = h<<16 ^ h>>16 ^ le.Uint32(padded)
	}
	return h
}

// Tags of access control lists that name a user or group.
const aclUser, aclGroup = 0x02, 0x08

// diskACL converts an access control list from the format of the system call into that of the disk, where only
// entries that name a user or group have a number.
func diskACL(v []byte) ([]byte, error) {
	if len(v) < 4 || len(v)%8 != 4 || le.Uint32(v) != 2 {
		return nil, fmt.Errorf("%w: malformed access control list", ErrStream)
	}
	out := le.AppendUint32(nil, 1)
	for e := v[4:]; len(e) > 0; e = e[8:] {
		tag := le.Uint16(e)
		if tag != 0x01 && tag != aclUser && tag != 0x04 && tag != aclGroup && tag != 0x10 && tag != 0x20 ||
			le.Uint16(e[2:]) > 7 {
			return nil, fmt.Errorf("%w: malformed access control list", ErrStream)
		}
		out = append(out, e[:4]...)
		if tag == aclUser || tag == aclGroup {
			out = append(out, e[4:8]...)
		}
	}
	return out, nil
}
