package ext4

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/lib/command"
)

// Errors of a stream. Errors that are not caused by the stream wrap none of them.
var (
	ErrStream   = errors.New("bad root file system")          // malformed, or with invalid names
	ErrTooLarge = errors.New("root file system is too large") // exceeds Options
	ErrFull     = errors.New("image is full")                 // exceeds SizeMiB or its inodes
)

// File is a file or directory to write after those of the stream. It replaces an existing one.
type File struct {
	Path     string
	Dir      bool // a directory; an existing one is kept
	Data     []byte
	Mode     uint32 // permission bits, setuid, setgid, sticky
	UID, GID uint32
}

// Options are the options of Write.
type Options struct {
	SizeMiB  int    // of the image, at least 32
	MaxBytes int64  // content of all files; 0: 4 times the size of the image
	MaxFiles int    // number of names; 0: 1,000,000
	Inodes   int    // maximum number of files, ever; 0: as by mke2fs, one per 4 or 16 KiB
	Seed     string // source of the file system's identifiers; "": random ones
	Label    string // name of the file system; "": "root"
	Extra    []File
	Log      command.Log // receives the output of mke2fs
}

// Report describes the written files.
type Report struct {
	Files   int   // files and links
	Dirs    int   // directories
	Bytes   int64 // content of files, as it is read
	Used    int64 // bytes of blocks in use, metadata included
	Free    int64 // bytes left
	Dropped int   // extended attributes whose names ext4 does not support
}

// minMiB leaves room for the journal.
const minMiB = 32

// Write makes out an image of SizeMiB with the files of the uncompressed tar stream r.
//
// It discards the previous content of out; after an error the file is empty. It reads the stream up to its end mark,
// not beyond.
func Write(ctx context.Context, r io.Reader, out *os.File, opt Options) (report Report, err error) {
	opt = opt.withDefaults()
	if opt.SizeMiB < minMiB {
		return report, fmt.Errorf("write ext4 image: size of %d MiB is too small", opt.SizeMiB)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, out.Truncate(0))
		}
	}()
	if err := format(ctx, out, opt); err != nil {
		return report, fmt.Errorf("write ext4 image: %w", err)
	}
	fs, err := open(out)
	if err == nil {
		err = punchTables(out, fs)
	}
	if err == nil {
		report, err = fs.fill(ctx, r, opt)
	}
	if err == nil {
		err = out.Sync()
	}
	if err != nil {
		return Report{}, fmt.Errorf("write ext4 image of %d MiB: %w", opt.SizeMiB, err)
	}
	return report, nil
}

func (o Options) withDefaults() Options {
	if o.MaxBytes == 0 {
		o.MaxBytes = int64(o.SizeMiB) << 22
	}
	if o.MaxFiles == 0 {
		o.MaxFiles = 1_000_000
	}
	if o.Label == "" {
		o.Label = "root"
	}
	return o
}

// format makes an empty file system, with the same properties as other images.
func format(ctx context.Context, out *os.File, opt Options) error {
	if err := errors.Join(out.Truncate(0), out.Truncate(int64(opt.SizeMiB)<<20)); err != nil {
		return err
	}
	extended := "root_owner=0:0,lazy_itable_init=0,lazy_journal_init=0,nodiscard"
	args := []string{
		"-q",
		"-F",
		"-t",
		"ext4",
		"-b",
		"4096",
		"-I",
		"256",
		"-L",
		opt.Label,
		"-m",
		"0",
		"-J",
		"size=8",
		"-G",
		"64",
		"-O",
		"extent,64bit,filetype,dir_index,flex_bg,huge_file,dir_nlink,extra_isize,resize_inode," +
			"^metadata_csum,^uninit_bg,^bigalloc,^inline_data,^encrypt,^quota,^project,^meta_bg",
	}
	if opt.Seed != "" {
		id := uuid(opt.Seed)
		args = append(args, "-U", id)
		extended = "hash_seed=" + id + "," + extended
	}
	if opt.Inodes > 0 {
		args = append(args, "-N", strconv.Itoa(opt.Inodes))
	}
	// The path of the open descriptor works whatever the file's path, and if it has none.
	self := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), out.Fd())
	return command.Run(ctx, command.Options{Log: opt.Log}, "mke2fs", append(args, "-E", extended, self)...)
}

// uuid derives an identifier from a seed.
func uuid(seed string) string {
	h := sha256.Sum256([]byte("rootfs " + seed))
	h[6], h[8] = h[6]&0x0f|0x80, h[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", h[:4], h[4:6], h[6:8], h[8:10], h[10:16])
}

// fill writes the files of the stream and the extra ones into the file system.
func (f *fsys) fill(ctx context.Context, r io.Reader, opt Options) (Report, error) {
	in := tar.NewReader(bufio.NewReaderSize(withContext{ctx, r}, 1<<20))
	w := &filler{fs: f, opt: opt}
	for {
		if err := context.Cause(ctx); err != nil {
			return Report{}, err
		}
		h, err := in.Next()
		if err == io.EOF {
			break
		} else if err != nil {
			return Report{}, streamError(err)
		}
		if err := w.entry(h, in); err != nil {
			return Report{}, fmt.Errorf("%.200q: %w", h.Name, err)
		}
	}
	for _, file := range opt.Extra {
		if err := w.extra(file); err != nil {
			return Report{}, fmt.Errorf("%.200q: %w", file.Path, err)
		}
	}
	if err := f.finish(ctx, &w.report); err != nil {
		return Report{}, err
	}
	return w.report, nil
}

// withContext ends a reader with its context.
type withContext struct {
	ctx context.Context //nolint:containedctx // a reader lives as long as the call that made it
	r   io.Reader
}

func (c withContext) Read(p []byte) (int, error) {
	if err := context.Cause(c.ctx); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// streamError wraps err in ErrStream, unless the reader below the tar reader caused it.
func streamError(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, tar.ErrFieldTooLong) {
		return fmt.Errorf("%w: %w", ErrStream, err)
	}
	return fmt.Errorf("read tar stream: %w", err)
}

// filler turns entries of a stream into files.
type filler struct {
	fs     *fsys
	opt    Options
	names  int
	bytes  int64
	report Report
}

// splitName cleans and splits a name; the root has no parts.
func splitName(name string) ([]string, error) {
	if strings.Contains(name, "\x00") || len(name) > 4096 {
		return nil, fmt.Errorf("%w: not a valid path", ErrStream)
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return nil, fmt.Errorf("%w: the name leaves the root", ErrStream)
		}
		if len(part) > 255 {
			return nil, fmt.Errorf("%w: an element of the name is longer than 255 bytes", ErrStream)
		}
	}
	clean := path.Clean("/" + name)
	if clean == "/" {
		return nil, nil
	}
	all := strings.Split(clean[1:], "/")
	if len(all) > maxDepth {
		return nil, fmt.Errorf("%w: deeper than %d directories", ErrStream, maxDepth)
	}
	return all, nil
}

// maxDepth limits recursion over directories; a path of 4096 bytes has fewer than 2048 elements.
const maxDepth = 1024

// entry writes one entry of the stream into the file system.
func (w *filler) entry(h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if w.names++; w.names > w.opt.MaxFiles {
		return fmt.Errorf("%w: more than %d files", ErrTooLarge, w.opt.MaxFiles)
	}
	name, err := splitName(h.Name)
	if err != nil {
		return err
	}
	if h.Typeflag == tar.TypeLink {
		return w.hardLink(name, h.Linkname)
	}
	ino, err := w.inode(h)
	if err != nil {
		return err
	}
	if len(name) == 0 {
		if !ino.isDir() {
			return fmt.Errorf("%w: the root is not a directory", ErrStream)
		}
		return w.fs.setRoot(ino)
	}
	n, err := w.fs.place(name, ino)
	if err != nil || n == nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeSymlink:
		return w.fs.setTarget(n.ino, h.Linkname)
	case tar.TypeReg, tar.TypeGNUSparse:
		w.bytes += h.Size
		if w.bytes > w.opt.MaxBytes || h.Size > w.opt.MaxBytes {
			return fmt.Errorf("%w: more than %d bytes", ErrTooLarge, w.opt.MaxBytes)
		}
		return w.fs.writeContent(n.ino, content, h.Size)
	}
	return nil
}

// inode makes an inode of a header, without content.
func (w *filler) inode(h *tar.Header) (*inode, error) {
	if h.Uid < 0 || h.Uid > 1<<32-2 || h.Gid < 0 || h.Gid > 1<<32-2 {
		return nil, fmt.Errorf("%w: invalid owner %d:%d", ErrStream, h.Uid, h.Gid)
	}
	ino := &inode{uid: uint32(h.Uid), gid: uint32(h.Gid), mtime: h.ModTime, mode: uint16(h.Mode & 0o7777)}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		ino.mode |= modeFile
	case tar.TypeDir:
		ino.mode |= modeDir
	case tar.TypeSymlink:
		ino.mode = modeLink | 0o777
	case tar.TypeChar, tar.TypeBlock:
		ino.mode |= map[byte]uint16{tar.TypeChar: modeChar, tar.TypeBlock: modeBlock}[h.Typeflag]
		if h.Devmajor < 0 || h.Devmajor > 0xfff || h.Devminor < 0 || h.Devminor > 0xfffff {
			return nil, fmt.Errorf("%w: invalid device number %d:%d", ErrStream, h.Devmajor, h.Devminor)
		}
		ino.setDevice(uint32(h.Devmajor), uint32(h.Devminor))
	case tar.TypeFifo:
		ino.mode |= modeFifo
	default:
		return nil, fmt.Errorf("%w: unknown entry type %q", ErrStream, h.Typeflag)
	}
	dropped, err := w.fs.setXattrs(ino, h.PAXRecords)
	w.report.Dropped += dropped
	return ino, err
}

func (w *filler) hardLink(name []string, target string) error {
	to, err := splitName(target)
	if err != nil {
		return fmt.Errorf("hard link to %.200q: %w", target, err)
	}
	n, err := w.fs.find(to)
	if err != nil {
		return fmt.Errorf("hard link to %.200q: %w", target, err)
	}
	if len(name) == 0 || n == nil || n.ino.isDir() {
		return fmt.Errorf("%w: hard link to %.200q, which is not an earlier file", ErrStream, target)
	}
	return w.fs.link(name, n)
}

// extra writes a file of the options.
func (w *filler) extra(file File) error {
	name, err := splitName(file.Path)
	if err != nil {
		return err
	}
	ino := &inode{uid: file.UID, gid: file.GID, mode: uint16(file.Mode & 0o7777), mtime: time.Unix(0, 0)}
	if file.Dir {
		if n, err := w.fs.find(name); err != nil || n != nil && n.ino.isDir() {
			return err
		}
		ino.mode |= modeDir
		_, err := w.fs.place(name, ino)
		return err
	}
	ino.mode |= modeFile
	n, err := w.fs.place(name, ino)
	if err != nil {
		return err
	}
	return w.fs.writeContent(n.ino, strings.NewReader(string(file.Data)), int64(len(file.Data)))
}
