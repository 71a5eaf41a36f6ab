package guestapi

import "encoding/binary"

// Op is the number of a request on the wire.
type Op uint8

// The requests, each with its body and its response. A stream carries one request.
const (
	OpStart     Op = 1  // ProcessSpec; a PID, then events; input messages follow the request
	OpAttach    Op = 2  // ProcessRequest; as OpStart
	OpProcesses Op = 3  // no body; messages of ProcessInfos
	OpSignal    Op = 4  // ProcessRequest
	OpResize    Op = 5  // ProcessRequest
	OpStat      Op = 6  // FileRequest; a FileInfo
	OpList      Op = 7  // FileRequest; messages of FileInfos
	OpRead      Op = 8  // FileRequest; a FileInfo, then messages of content
	OpWriteFile Op = 9  // FileRequest, then messages of content; a FileInfo
	OpMove      Op = 10 // FileRequest; a FileInfo
	OpRemoveAll Op = 11 // FileRequest
	OpMakeDir   Op = 12 // FileRequest; a FileInfo
	OpWatch     Op = 13 // FileRequest; success, then FileEvents
	OpPorts     Op = 14 // no body; messages of Ports
	OpDial      Op = 15 // port; success, then messages of bytes in both directions
	OpFreeze    Op = 16 // whether to sync; the channel is quiet after the response
	OpThaw      Op = 17
	OpStats     Op = 18 // no body; Stats
	OpRestore   Op = 19 // Identity
	// OpDialSocket is as OpDial, with the path of a Unix socket.
	OpDialSocket Op = 20
	OpVolume     Op = 21 // VolumeRequest; a VolumeReport
)

// InputKind begins every message from the host to a process.
type InputKind uint8

// The kinds of input.
const (
	InputData InputKind = 1 // bytes follow
	InputEnd  InputKind = 2 // no more input
)

// requestHead is the operation and the length of the body.
const requestHead = 5

// AppendRequest encodes a whole request: operation, length and body.
//
// The request may be longer than one message
// of the channel; the messages after it then continue it.
func AppendRequest(b []byte, op Op, body []byte) []byte {
	b = append(b, byte(op))
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
	return append(b, body...)
}

// ParseRequest splits the first message of a request.
//
// missing is how many bytes of the body follow in further messages.
func ParseRequest(b []byte) (op Op, body []byte, missing int, err error) {
	if len(b) < requestHead {
		return 0, nil, 0, ErrFormat
	}
	op, n := Op(b[0]), binary.BigEndian.Uint32(b[1:])
	body = b[requestHead:]
	if n > MaxRequest || len(body) > int(n) {
		return 0, nil, 0, ErrFormat
	}
	return op, body, int(n) - len(body), nil
}
