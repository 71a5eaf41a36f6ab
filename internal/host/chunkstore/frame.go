package chunkstore

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

	nonceBytes  = 12
	gcmTagBytes = 16 // added by the cipher
	// overhead is the size of a stored frame without its content.
	overhead = nonceBytes + 1 + gcmTagBytes
	// slack is the room after the content that lets the decompressor skip its check of the length of each
	// copy (zstd's compressedBlockOverAlloc): a tenth of its time, measured with programs.
	slack = 16
)

// Encodings of a frame's content.
const (
	plainFrame = 0
	zstdFrame  = 1
)

// codec compresses and decompresses. Its methods may be called concurrently.
type codec struct {
	enc  *zstd.Encoder
	high *zstd.Encoder
	dec  *zstd.Decoder
}

func newCodec() (codec, error) {
	enc, err1 := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false))
	dense, err2 := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithEncoderCRC(false))
	// The bound is that of manifests. The size of a frame is checked afterwards.
	dec, err3 := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(maxManifest), zstd.WithDecoderConcurrency(0))
	return codec{enc, dense, dec}, errors.Join(err1, err2, err3)
}

// level returns the codec with high or fast compression.
func (c codec) level(dense bool) codec {
	if dense {
		c.enc = c.high
	}
	return c
}

func (c codec) close() {
	_, _ = c.enc.Close(), c.high.Close() // they write to nothing
	c.dec.Close()
}

// pack encodes the content of a frame, compressed if that saves anything.
func (c codec) pack(data []byte) []byte {
	out := c.enc.EncodeAll(data, append(make([]byte, 0, len(data)+64), zstdFrame))
	if len(out) <= len(data) {
		return out
	}
	return append(append(out[:0], plainFrame), data...)
}

// unpack appends the decoded content of a frame of size bytes to out. It is fastest if out has room for slack
// bytes more.
func (c codec) unpack(out, packed []byte, size int) ([]byte, error) {
	if len(packed) == 0 {
		return nil, errors.New("frame is empty")
	}
	before := len(out)
	switch data := packed[1:]; packed[0] {
	case plainFrame:
		out = append(out, data...)
	case zstdFrame:
		var err error
		if out, err = c.dec.DecodeAll(data, out); err != nil {
			return nil, fmt.Errorf("decompress frame: %w", err)
		}
	default:
		return nil, fmt.Errorf("frame has the unknown encoding %d", packed[0])
	}
	if len(out)-before != size {
		return nil, fmt.Errorf("frame has %d bytes, want %d", len(out)-before, size)
	}
	return out, nil
}

// frameBytes returns the size of a frame before compression.
func (c Chunk) frameBytes(i int) int {
	return min(FrameSize, c.Pages*PageSize-i*FrameSize)
}

// pagesBytes returns the size of several frames before compression.
func (c Chunk) pagesBytes(first, count int) int {
	return min(count*FrameSize, c.Pages*PageSize-first*FrameSize)
}

// span returns the position of frames in the stored object.
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

// additionalData returns the data that a frame is authenticated with, so that no frame passes for another.
func additionalData(n Name, frame, pages int) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(n[:], uint32(frame)), uint32(pages))
}

// seal makes the object of a chunk from its pages, of which there is at least one.
func seal(c codec, r *tenantKeys, pages []byte) (Chunk, []byte, error) {
	out := Chunk{Pages: len(pages) / PageSize}
	var packed [][]byte
	for at := 0; at < len(pages); at += FrameSize {
		p := c.pack(pages[at:min(at+FrameSize, len(pages))])
		packed = append(packed, p)
		out.Frames = append(out.Frames, len(p)+nonceBytes+gcmTagBytes)
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
		object = gcm.Seal(append(object, nonce...), nonce, p, additionalData(out.Name, i, out.Pages))
	}
	return out, object, nil
}

// open decrypts and decompresses frames. It overwrites stored. The pages are in out if that has room for them
// and slack.
func open(c codec, r *tenantKeys, ch Chunk, first, count int, stored, out []byte) ([]byte, error) {
	gcm, err := r.aead(ch.Name)
	if err != nil {
		return nil, err
	}
	if pages := ch.pagesBytes(first, count); cap(out) < pages+slack {
		out = make([]byte, 0, pages+slack)
	}
	out = out[:0]
	for i := first; i < first+count; i++ {
		if len(stored) < ch.Frames[i] {
			return nil, errors.New("frame is truncated")
		}
		nonce, sealed := stored[:nonceBytes], stored[nonceBytes:ch.Frames[i]]
		stored = stored[ch.Frames[i]:]
		packed, err := gcm.Open(sealed[:0], nonce, sealed, additionalData(ch.Name, i, ch.Pages))
		if err != nil {
			return nil, fmt.Errorf("frame %d of %d fails authentication", i, len(ch.Frames))
		}
		if out, err = c.unpack(out, packed, ch.frameBytes(i)); err != nil {
			return nil, err
		}
	}
	if len(stored) != 0 {
		return nil, fmt.Errorf("%d bytes too many", len(stored))
	}
	return out, nil
}
