// Package ext4 writes the files of a tar stream into an ext4 image.
//
// It owns the conversion of an untrusted stream into an image: mke2fs makes an empty file system with a journal in
// the caller's file, and this package writes the files into it itself, without mounting anything. It does not know
// what the image is for.
//
// Invariants. No name, link or device of the stream is ever passed to the kernel of the host: names are strings in
// directory blocks, targets are bytes in inodes, devices are numbers. The only file that is touched is the caller's.
// The image is clean for e2fsck, mountable for reading and writing, and can be grown by resize2fs. Blocks of zeros
// are holes, in files and in the image. Options limit the stream; a stream that exceeds them is an error. After an
// error the file is empty.
//
// The format is described in the kernel's Documentation/filesystems/ext4. mke2fs omits metadata checksums, so no
// block depends on another except through the counts in its group and in the superblock.
//
// Functions are safe for concurrent use with different files.
package ext4
