package pager

import (
	"encoding/binary"
	"hash/crc32"
)

// FixChecksum replaces the checksum of an encoded trace with the right one.
func FixChecksum(data []byte) []byte {
	if len(data) < 4 {
		return data
	}
	body := data[: len(data)-4 : len(data)-4]
	return binary.BigEndian.AppendUint32(body, crc32.Checksum(body, castagnoli))
}
