// Package mux multiplexes streams of messages over one byte channel. The channel may break off, be copied with a
// machine's memory, or be taken over by another process in the middle of a frame.
//
// The package owns the frames, their flow control and the handshake; it does not know what messages mean. The host
// end (Host) opens streams, the guest end (Guest) accepts them; never the other way round.
//
// # Wire
//
// A frame is a header of 8 bytes, big endian, and at most MaxMessage bytes of payload:
//
//	type:8  flags:8  length:16  stream:32
//
// A noop is 8 zero bytes. After a noop, or after bytes that are not a frame, the guest end ignores everything until
// it finds a hello, whose header is 8 bytes that occur nowhere else. So a host that takes over a channel in an
// unknown state sends more zeros than a frame can be long, then a hello. A hello ends the session before it: all its
// streams fail with ErrLost. The guest end replies with an ack that repeats the hello's nonce; the host end ignores
// all bytes before that ack.
//
// # Flow control
//
// Each direction of a stream starts with Window bytes of credit. A message costs its length and a fixed overhead, so
// that empty messages are limited too. A peer that exceeds its credit, or sends invalid frames, breaks the session. A
// receiving end therefore never holds more than Window bytes a stream and MaxStreams streams, and less if a Meter
// refuses more; a sending end holds MaxQueue bytes more. Credit is sent only while the queue is not longer than that:
// a peer that does not read is soon not read from either.
//
// # Quiet
//
// A message sent by SendLast is the last that end writes until Release, or until a new hello: everything sent in
// between waits. If both ends are quiet, no bytes are in flight, and the guest can be captured.
//
// # Concurrency
//
// All methods are safe for concurrent use; a stream has at most one receiver and one sender at a time. The host end
// runs two goroutines that Close waits for. The guest end writes from the goroutines that send and reads in Serve.
package mux
