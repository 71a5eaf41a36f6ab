package chunk

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/klauspost/compress/zstd"
)

const (
	framePages  = FrameSize / PageSize
	chunkPages  = ChunkSize / PageSize
	chunkFrames = ChunkSize / FrameSize

	nonceBytes = 12
	tailBytes  = 16 // that the cipher adds
	// overhead is what a frame takes beside its content, compressed or not.
	overhead = nonceBytes + 1 + tailBytes
)

// How the content of a frame is written.
const (
	plainFrame = 0
	zstdFrame  = 1
)

// codec compresses. Both halves may be used by many goroutines at once.
type codec struct {
	enc *zstd.Encoder
	dec *zstd.Decoder
}

func newCodec() (codec, error) {
	enc, err1 := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false))
	// The bound holds for manifests, too; frames are held to their own size afterwards.
	dec, err2 := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(maxManifest), zstd.WithDecoderConcurrency(0))
	return codec{enc, dec}, errors.Join(err1, err2)
}

func (c codec) close() {
	_ = c.enc.Close() // it writes to nothing
	c.dec.Close()
}

// pack gives the content of a frame: compressed if that saves anything.
func (c codec) pack(data []byte) []byte {
	out := c.enc.EncodeAll(data, append(make([]byte, 0, len(data)+64), zstdFrame))
	if len(out) <= len(data) {
		return out
	}
	return append(append(out[:0], plainFrame), data...)
}

// unpack is the reverse, for a frame of size bytes.
func (c codec) unpack(packed []byte, size int) ([]byte, error) {
	if len(packed) == 0 {
		return nil, errors.New("a frame is empty")
	}
	data := packed[1:]
	switch packed[0] {
	case plainFrame:
	case zstdFrame:
		var err error
		if data, err = c.dec.DecodeAll(data, make([]byte, 0, size)); err != nil {
			return nil, fmt.Errorf("a frame cannot be decompressed: %w", err)
		}
	default:
		return nil, fmt.Errorf("a frame is of the unknown kind %d", packed[0])
	}
	if len(data) != size {
		return nil, fmt.Errorf("a frame has %d bytes, not %d", len(data), size)
	}
	return data, nil
}

// frameBytes is the size of a frame before compression.
func (c Chunk) frameBytes(i int) int {
	return min(FrameSize, c.Pages*PageSize-i*FrameSize)
}

// span is where frames lie in the stored object.
func (c Chunk) span(first, count int) (offset, length int64) {
	for i, n := range c.Frames[:first+count] {
		if i < first {
			offset += int64(n)
		} else {
			length += int64(n)
		}
	}
	return offset, length
}

// bound says what a frame is sealed as, so that none passes for another.
func bound(n Name, frame, pages int) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(n[:], uint32(frame)), uint32(pages))
}

// seal makes the object of a chunk from its pages, of which there is at least one.
func seal(c codec, r *realm, pages []byte) (Chunk, []byte, error) {
	out := Chunk{Pages: len(pages) / PageSize}
	var packed [][]byte
	for at := 0; at < len(pages); at += FrameSize {
		p := c.pack(pages[at:min(at+FrameSize, len(pages))])
		packed = append(packed, p)
		out.Frames = append(out.Frames, len(p)+nonceBytes+tailBytes)
	}
	out.Name = r.name(pages, out.Frames)
	gcm, err := r.aead(out.Name)
	if err != nil {
		return Chunk{}, nil, err
	}
	object := make([]byte, 0, out.Stored())
	for i, p := range packed {
		nonce := make([]byte, nonceBytes)
		_, _ = rand.Read(nonce) // never fails: it ends the program instead
		object = gcm.Seal(append(object, nonce...), nonce, p, bound(out.Name, i, out.Pages))
	}
	return out, object, nil
}

// open gives the pages of frames from what the store gave for them.
func open(c codec, r *realm, ch Chunk, first, count int, stored []byte) ([]byte, error) {
	gcm, err := r.aead(ch.Name)
	if err != nil {
		return nil, err
	}
	var out []byte
	for i := first; i < first+count; i++ {
		if len(stored) < ch.Frames[i] {
			return nil, errors.New("a frame is cut short")
		}
		frame := stored[:ch.Frames[i]]
		stored = stored[ch.Frames[i]:]
		packed, err := gcm.Open(nil, frame[:nonceBytes], frame[nonceBytes:], bound(ch.Name, i, ch.Pages))
		if err != nil {
			return nil, fmt.Errorf("frame %d of %d is not what was sealed", i, len(ch.Frames))
		}
		data, err := c.unpack(packed, ch.frameBytes(i))
		if err != nil {
			return nil, err
		}
		if out == nil {
			out = make([]byte, 0, min(count*FrameSize, ch.Pages*PageSize-first*FrameSize))
		}
		out = append(out, data...)
	}
	if len(stored) != 0 {
		return nil, fmt.Errorf("there are %d bytes too many", len(stored))
	}
	return out, nil
}
