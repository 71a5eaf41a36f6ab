package mux

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// Limits of the protocol, in bytes unless stated otherwise.
const (
	MaxMessage = 1<<16 - 1 // length of one message
	Window     = 256 << 10 // credit of one direction of a stream
	MaxStreams = 512       // number of streams open at once
	MaxQueue   = 512 << 10 // bytes that may wait to be written before senders wait
	MaxText    = 1024      // text of a reset

	headerSize   = 8
	overhead     = 32 // cost of a message beyond its length
	greetingSize = 32
	resyncZeros  = MaxMessage + 4*headerSize + greetingSize
)

// Version is the version of the protocol that a hello carries.
const Version = 1

// Types of frames. The types and stream numbers of hello and ack make their headers unmistakable.
const (
	typeNoop   = 0
	typeOpen   = 1
	typeData   = 2
	typeCredit = 3
	typeReset  = 4
	typeHello  = 0xA9
	typeAck    = 0xAA

	flagFin = 1
)

var (
	helloMagic = [headerSize]byte{typeHello, 0xF1, 0, greetingSize, 0x9B, 0xE4, 0x83, 0xD7}
	ackMagic   = [headerSize]byte{typeAck, 0xF1, 0, greetingSize, 0x9B, 0xE4, 0x83, 0xD7}
)

var (
	// ErrLost means that the session ended: the channel was closed, broke, or carried a new hello.
	ErrLost = errors.New("session was lost")
	// ErrClosed means that this end has dropped the stream.
	ErrClosed = errors.New("stream is closed")
	// ErrTooMany means that MaxStreams streams are open.
	ErrTooMany = errors.New("too many streams")
	errTooLong = fmt.Errorf("message is longer than %d bytes", MaxMessage)
)

// ResetError reports that the peer ended a stream early.
type ResetError struct {
	Code uint16
	Text string // the peer's text, not validated
}

// Error implements error.
func (e *ResetError) Error() string {
	return fmt.Sprintf("stream was reset: code %d: %s", e.Code, e.Text)
}

// Hello begins a session.
type Hello struct {
	Version    uint16
	Generation uint64   // of the machine, for the guest end to compare
	Nonce      [16]byte // random; the ack repeats it
}

type header struct {
	kind, flags byte
	length      int
	stream      uint32
}

func parseHeader(b []byte) header {
	return header{b[0], b[1], int(binary.BigEndian.Uint16(b[2:])), binary.BigEndian.Uint32(b[4:])}
}

func appendHeader(b []byte, kind, flags byte, length int, stream uint32) []byte {
	b = append(b, kind, flags, byte(length>>8), byte(length))
	return binary.BigEndian.AppendUint32(b, stream)
}

func appendGreeting(b []byte, magic [headerSize]byte, h Hello) []byte {
	b = append(b, magic[:]...)
	start := len(b)
	b = binary.BigEndian.AppendUint16(b, h.Version)
	b = append(b, 0, 0)
	b = binary.BigEndian.AppendUint64(b, h.Generation)
	b = append(b, h.Nonce[:]...)
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b[start:]))
}

// parseGreeting parses a whole greeting; ok is false if b is not one.
func parseGreeting(b []byte, magic [headerSize]byte) (h Hello, ok bool) {
	if len(b) < headerSize+greetingSize || !bytes.Equal(b[:headerSize], magic[:]) {
		return h, false
	}
	b = b[headerSize : headerSize+greetingSize]
	if crc32.ChecksumIEEE(b[:greetingSize-4]) != binary.BigEndian.Uint32(b[greetingSize-4:]) {
		return h, false
	}
	h.Version = binary.BigEndian.Uint16(b)
	h.Generation = binary.BigEndian.Uint64(b[4:])
	copy(h.Nonce[:], b[12:28])
	return h, true
}
