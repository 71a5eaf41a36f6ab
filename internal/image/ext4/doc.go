// Package ext4 writes the files of a tar stream into an ext4 image.
//
// It owns the way from a stranger's stream to an image: mke2fs makes an empty file system with a journal in the
// caller's file, and this package puts the files into it by itself, without mounting anything. It must not know
// what the image is for.
//
// Invariants. No name, link or device of the stream is ever given to the kernel of the host: names are strings in
// directory blocks, targets are bytes in inodes, devices are numbers. The only file that is touched is the one
// that was given. The image is clean for e2fsck, mountable for reading and writing, and can be grown by resize2fs.
// Blocks of zeros are holes, in files and in the image. The stream is bounded by Options; what does not fit is an
// error. After an error the file is empty.
//
// The format is that of the kernel's Documentation/filesystems/ext4. mke2fs is told to leave out checksums of
// metadata, so no block depends on another but through the counts in its group and in the superblock.
//
// Functions may be called at once, for different files.
package ext4
