package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"
)

const (
	pageBytes   = 8192
	shortHeader = 24 // of a page
	longHeader  = 40 // of the first page of a segment
	recordHead  = 24

	flagContinued   = 0x0001 // the page begins inside a record
	flagLongHeader  = 0x0002
	flagOverwritten = 0x0008 // the record that reached into this page was given up

	managerLog         = 0 // resource managers
	managerTransaction = 1

	logSwitch        = 0x40 // the rest of the segment is empty
	logRestorePoint  = 0x70
	transactionMask  = 0x70
	commit           = 0x00
	abort            = 0x20
	commitPrepared   = 0x30
	abortPrepared    = 0x40
	restorePointName = 64

	blockOrigin   = 253 // identifiers of the parts of a record
	blockTopLevel = 252
	blockLong     = 254
	blockShort    = 255

	keptBytes = 128 // of a record's content: enough for a restore point
)

// Kind is what a record means to a recovery target.
type Kind int

// Kinds of records.
const (
	Other Kind = iota
	Commit
	Abort
	RestorePoint
)

// Record is one record of the log.
type Record struct {
	Start, End LSN
	Kind       Kind
	XID        uint32    // of a commit or abort; 0 if it was prepared
	Time       time.Time // of a commit, abort or restore point
	Name       string    // of a restore point
}

// ErrCorrupt means that a segment is not part of a log, as opposed to one in which the log ends.
var ErrCorrupt = errors.New("not a segment of the log")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Scanner finds the records in segments that follow each other. The log ends where a record is incomplete, has a wrong
// checksum or does not follow its predecessor, as it does for the server.
type Scanner struct {
	next   LSN  // the position after the last byte that was scanned
	synced bool // the scanner knows where records begin
	ended  bool
	end    LSN // of the last complete record

	system uint64 // system identifier, 0 before the first segment
	magic  uint16

	inRecord  bool
	skip      bool // the record began before the first segment
	start     LSN
	prev      LSN // start of the last complete record
	need, got uint32
	head      [recordHead]byte
	kept      []byte // the first bytes of the content
	crc       uint32
}

// End returns the end of the last complete record, or 0.
func (s *Scanner) End() LSN { return s.end }

// Ended reports whether the log ended in a segment that was scanned.
func (s *Scanner) Ended() bool { return s.ended }

// System returns the identifier of the cluster, or 0 before the first segment.
func (s *Scanner) System() uint64 { return s.system }

// Scan scans a segment, or its first bytes, and calls yield for each record that ends in it. A segment must follow the
// one before, or its timeline's successor must repeat it. An error of yield ends the scan and is returned.
func (s *Scanner) Scan(segment Segment, data []byte, yield func(Record) error) error {
	if len(data) > SegmentBytes {
		return fmt.Errorf("segment %v has %d bytes: %w", segment, len(data), ErrCorrupt)
	}
	if s.next != 0 && segment.Start() != s.next {
		return fmt.Errorf("segment %v does not begin at %v", segment, s.next)
	}
	s.next = segment.Start()
	for !s.ended && len(data) > 0 {
		page := data[:min(pageBytes, len(data))]
		if err := s.page(segment, page, yield); err != nil {
			return err
		}
		if s.next >= segment.End() { // a switch of segments
			break
		}
		s.next += LSN(len(page))
		data = data[len(page):]
	}
	return nil
}

// header checks the header of a page and returns its length, or 0 if the log ends before the page.
func (s *Scanner) header(segment Segment, page []byte) (int, error) {
	first := s.next == segment.Start()
	length := shortHeader
	if first {
		length = longHeader
	}
	if len(page) < length {
		return 0, nil
	}
	magic, info := binary.LittleEndian.Uint16(page), binary.LittleEndian.Uint16(page[2:])
	at := LSN(binary.LittleEndian.Uint64(page[8:]))
	timeline := Timeline(binary.LittleEndian.Uint32(page[4:]))
	valid := magic>>8 == 0xD1 && at == s.next && timeline <= segment.Timeline && (info&flagLongHeader != 0) == first
	if s.magic != 0 && magic != s.magic {
		valid = false
	}
	if !valid {
		return 0, nil
	}
	s.magic = magic
	if first {
		system := binary.LittleEndian.Uint64(page[24:])
		segmentBytes, blockBytes := binary.LittleEndian.Uint32(page[32:]), binary.LittleEndian.Uint32(page[36:])
		if segmentBytes != SegmentBytes || blockBytes != pageBytes {
			return 0, fmt.Errorf("segments of %d bytes, pages of %d bytes: %w", segmentBytes, blockBytes, ErrCorrupt)
		}
		if s.system != 0 && system != s.system {
			return 0, fmt.Errorf("segment %v is of the system %d, not %d: %w", segment, system, s.system, ErrCorrupt)
		}
		s.system = system
	}
	return length, nil
}

func (s *Scanner) page(segment Segment, page []byte, yield func(Record) error) error {
	length, err := s.header(segment, page)
	if err != nil || length == 0 {
		s.ended = err == nil
		return err
	}
	info, remaining := binary.LittleEndian.Uint16(page[2:]), binary.LittleEndian.Uint32(page[16:])
	body, at := page[length:], s.next+LSN(length)
	switch continued := info&flagContinued != 0; {
	case !s.synced:
		s.synced = true
		if continued {
			s.inRecord, s.skip, s.need, s.got = true, true, remaining, 0
		}
	case s.inRecord && !continued && info&flagOverwritten != 0:
		s.inRecord = false
	case s.inRecord != continued || continued && remaining != s.need-s.got:
		s.ended = true
		return nil
	}
	for len(body) > 0 {
		if !s.inRecord {
			if len(body) < 4 {
				break // alignment leaves 8 bytes or none
			}
			total := binary.LittleEndian.Uint32(body)
			if total < recordHead {
				s.ended = true
				return nil
			}
			s.inRecord, s.skip, s.start, s.need, s.got, s.crc = true, false, at, total, 0, 0
			s.kept = s.kept[:0]
		}
		n := min(s.need-s.got, uint32(len(body)))
		s.consume(body[:n])
		body, at = body[n:], at+LSN(n)
		if s.got < s.need {
			break
		}
		padding := min(-int(at)&7, len(body))
		body, at = body[padding:], at+LSN(padding)
		s.inRecord = false
		if s.skip {
			continue
		}
		if !s.valid() {
			s.ended = true
			return nil
		}
		record := s.record(at)
		s.prev, s.end = record.Start, at
		if s.head[17] == managerLog && s.head[16]&0xF0 == logSwitch {
			s.end, s.next = segment.End(), segment.End()
			record.End = s.end
			return yield(record)
		}
		if err := yield(record); err != nil {
			return err
		}
	}
	return nil
}

// consume takes bytes of the current record.
func (s *Scanner) consume(data []byte) {
	before := s.got
	s.got += uint32(len(data))
	if s.skip {
		return
	}
	if before < recordHead {
		n := copy(s.head[before:], data)
		data = data[n:]
	}
	s.crc = crc32.Update(s.crc, castagnoli, data)
	s.kept = append(s.kept, data[:min(len(data), keptBytes-len(s.kept))]...)
}

// valid checks the complete current record.
func (s *Scanner) valid() bool {
	prev := LSN(binary.LittleEndian.Uint64(s.head[8:]))
	if s.prev != 0 && prev != s.prev {
		return false
	}
	return crc32.Update(s.crc, castagnoli, s.head[:20]) == binary.LittleEndian.Uint32(s.head[20:])
}

// record describes the complete current record.
func (s *Scanner) record(end LSN) Record {
	r := Record{Start: s.start, End: end}
	info, manager := s.head[16], s.head[17]
	switch op := info & transactionMask; {
	case manager == managerTransaction && (op == commit || op == commitPrepared):
		r.Kind = Commit
	case manager == managerTransaction && (op == abort || op == abortPrepared):
		r.Kind = Abort
	case manager == managerLog && info&0xF0 == logRestorePoint:
		r.Kind = RestorePoint
	}
	data := mainData(s.kept)
	if r.Kind == Other || len(data) < 8 {
		r.Kind = Other
		return r
	}
	r.Time = Time(int64(binary.LittleEndian.Uint64(data)))
	if op := info & transactionMask; r.Kind != RestorePoint && (op == commit || op == abort) {
		r.XID = binary.LittleEndian.Uint32(s.head[4:])
	}
	if r.Kind == RestorePoint {
		name, _, _ := bytes.Cut(data[8:min(len(data), 8+restorePointName)], []byte{0})
		r.Name = string(name)
	}
	return r
}

// mainData returns the main data of a record without blocks, or its first bytes; nil if there are blocks.
func mainData(content []byte) []byte {
	for len(content) > 0 {
		skip := 0
		switch content[0] {
		case blockOrigin:
			skip = 3
		case blockTopLevel:
			skip = 5
		case blockShort:
			return content[min(2, len(content)):]
		case blockLong:
			return content[min(5, len(content)):]
		default:
			return nil
		}
		content = content[min(skip, len(content)):]
	}
	return nil
}

// epochMicros is the origin of the server's times, the year 2000, in microseconds of the Unix era.
const epochMicros = 946_684_800_000_000

// Time converts a time of the server, which is in microseconds. One out of range becomes the nearest that is not.
func Time(micros int64) time.Time {
	const first, last = -60_000_000_000_000_000, 200_000_000_000_000_000 // years 99 to 8337
	return time.UnixMicro(epochMicros + max(min(micros, last), first)).UTC()
}

// Micros is the inverse of Time.
func Micros(t time.Time) int64 { return t.UnixMicro() - epochMicros }
