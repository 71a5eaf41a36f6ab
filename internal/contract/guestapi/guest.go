package guestapi

import (
	"context"
	"io"
	"net"
	"time"
)

// WaitForRootArgument on the kernel's command line makes the guest agent wait for its root.
//
// The agent then boots as far as it can without a root file system. A machine restored from a capture of it mounts
// the root that its own disk holds at the first Restore after a Freeze. Until then the agent serves only Freeze,
// Thaw and Restore.
const WaitForRootArgument = "pandastack.wait"

// Guest is the inside of a machine as the host sees it.
//
// Package guestlink implements it over the guest channel, and the guest of the fake driver in memory. All methods
// may be called at once. Each returns early with the context's cause when ctx ends. What a guest sends is checked
// and bounded before it is returned, but nothing guarantees that it is true.
type Guest interface {
	ProcessManager
	FileSystem
	PortDialer

	// Freeze stops the workload, syncs the file systems if sync is set, and quiesces the channel: after it has
	// returned neither side writes until Thaw, or until a restored copy is greeted.
	Freeze(ctx context.Context, sync bool) error
	Thaw(ctx context.Context) error
	Stats(ctx context.Context) (Stats, error)
}

// ProcessManager is the part of a Guest that runs processes. Package guestexec is the client of it.
type ProcessManager interface {
	// Start runs a program. The process continues when the returned stream is closed.
	Start(ctx context.Context, spec ProcessSpec) (Process, error)
	// Attach follows a process that runs or has exited lately, from the given offsets of its output. Output that
	// the guest no longer keeps is skipped, which Event.Offset shows.
	Attach(ctx context.Context, ref ProcessRef, from Offsets) (Process, error)
	Processes(ctx context.Context) ([]ProcessInfo, error)
	// Signal sends a signal to a process, or to its group if group is set. It returns ErrNotFound if the process
	// has exited. For SIGKILL it waits until the process has exited, for at most 20 seconds.
	Signal(ctx context.Context, ref ProcessRef, signal int, group bool) error
}

// FileSystem is the part of a Guest that works on files. Paths are absolute, or relative to the user's home.
type FileSystem interface {
	Stat(ctx context.Context, path, user string) (FileInfo, error)
	List(ctx context.Context, path, user string, depth int) ([]FileInfo, error) // depth 1: the directory itself
	// Read streams a file from offset; length < 0 is all of it. The reader must be closed.
	Read(ctx context.Context, path, user string, offset, length int64) (FileInfo, io.ReadCloser, error)
	// Write replaces the file at path with a stream, wholly or not at all, and makes missing parents.
	Write(ctx context.Context, path string, opt WriteOptions, r io.Reader) (FileInfo, error)
	Move(ctx context.Context, from, to, user string) (FileInfo, error)
	Remove(ctx context.Context, path, user string, recursive bool) error
	MakeDir(ctx context.Context, path, user string) (FileInfo, error) // with parents; ErrExists if it exists
	Watch(ctx context.Context, path, user string, recursive bool) (Watcher, error)
}

// PortDialer is the part of a Guest that reaches the servers in it.
type PortDialer interface {
	Ports(ctx context.Context) ([]Port, error) // listening TCP ports
	// DialPort connects to a TCP port of the guest, on loopback or whatever address it listens on.
	DialPort(ctx context.Context, port uint16) (net.Conn, error)
	// DialSocket connects to the Unix stream socket at an absolute path of the guest, as root: a server that asks for
	// the credentials of its peer sees user 0.
	DialSocket(ctx context.Context, path string) (net.Conn, error)
}

// ProcessSpec is a program to run. Exactly one of Argv and Shell is set.
type ProcessSpec struct {
	Argv    []string // program and arguments; the program is looked up in PATH
	Shell   string   // run by the user's shell contract: /bin/sh -c (or Login: /bin/bash -l -c)
	Login   bool
	Env     map[string]string // on top of the sandbox's own
	Dir     string            // "": the user's home; relative: below it
	User    string            // "": the sandbox's default user; name or uid
	Tag     string            // a name to find it by; unique among running processes
	Stdin   bool              // false: /dev/null
	PTY     *Size             // one terminal instead of three pipes
	Timeout time.Duration     // 0: none; else the whole group is killed and Exit.TimedOut set
}

// Size is the size of a terminal in characters.
type Size struct{ Rows, Cols uint16 }

// ProcessRef names a process: by pid, or if Tag is set by tag.
type ProcessRef struct {
	PID uint32
	Tag string
}

// ProcessInfo describes a process that the guest agent started.
type ProcessInfo struct {
	PID     uint32
	Tag     string
	Argv    []string
	Shell   string
	Env     map[string]string
	Dir     string
	User    string
	PTY     bool
	Started time.Time
	Exit    *Exit // nil: running
}

// Stream is an output of a process.
type Stream uint8

// The streams of a process; with a terminal all output is StreamPTY.
const (
	StreamStdout Stream = 1
	StreamStderr Stream = 2
	StreamPTY    Stream = 3
)

// Offsets count bytes of output since the start of a process.
type Offsets struct{ Stdout, Stderr, PTY int64 }

// Of returns the offset of a stream, to read or to set; nil if there is no such stream.
func (o *Offsets) Of(s Stream) *int64 {
	switch s {
	case StreamStdout:
		return &o.Stdout
	case StreamStderr:
		return &o.Stderr
	case StreamPTY:
		return &o.PTY
	}
	return nil
}

// Exit is how a process ended.
type Exit struct {
	Code     int  // 128+signal for a signal, as shells have it
	Signal   int  // 0: it exited
	TimedOut bool // killed because ProcessSpec.Timeout passed
	// OutOfMemory is set if the guest's kernel killed the process because the machine had no memory left. Of a
	// process that another one started, the parent sees only the signal.
	OutOfMemory bool
	Error       string // why it could not be started at all, else ""
	CPU         time.Duration
	Wall        time.Duration
}

// Event is one piece of a process's life: output, or at last its exit.
type Event struct {
	Stream Stream // 0 with Exit
	Offset int64  // of Data[0] in its stream
	Data   []byte // valid until the next call of Next
	Exit   *Exit
}

// Process is a started or attached process.
type Process interface {
	PID() uint32
	// Next waits for the next event. After the exit event it returns io.EOF.
	Next(ctx context.Context) (Event, error)
	Write(p []byte) (int, error) // to stdin or the terminal; blocks while the program does not read
	CloseInput() error
	Resize(ctx context.Context, size Size) error
	Close() error // closes the stream; the process continues
}

// FileKind is the type of a file.
type FileKind uint8

// The kinds of files.
const (
	KindFile    FileKind = 1
	KindDir     FileKind = 2
	KindSymlink FileKind = 3
	KindOther   FileKind = 4
)

// FileInfo describes a file, not following a last symbolic link.
type FileInfo struct {
	Path     string // absolute
	Name     string
	Kind     FileKind
	Target   string // of a symbolic link
	Size     int64
	Mode     uint32 // permission bits and setuid, setgid, sticky
	UID, GID uint32
	User     string // name, or the number as text
	Group    string
	Modified time.Time
	Metadata map[string]string // kept with the file; see WriteOptions

	// End is where a symbolic link leads. It is nil for other files, in responses to reads and writes, and if the agent
	// is of an older snapshot.
	End *LinkEnd
}

// LinkEnd is the end of a symbolic link, through further links.
type LinkEnd struct {
	Path string   // absolute; the path of the link itself if it leads nowhere
	Kind FileKind // never KindSymlink; 0 if the link leads nowhere
	Mode uint32   // as FileInfo.Mode
}

// WriteOptions of a file to write.
type WriteOptions struct {
	User string // owner of the file and of parents that are made
	Mode uint32 // 0: 0644, or what the file has
	Size int64  // bytes to come if known, else -1
	// Atomic replaces the file at once, by a new one, when its content is complete. Otherwise the file is opened,
	// emptied and written: it keeps its identity, so its hard links, watchers and readers see the new content, and what
	// was written so far if the write fails. Agents in older snapshots replace files in any case.
	Atomic bool
	// Metadata is kept with the file, in its extended attributes user.e2b.<name>. A write replaces all of it. It
	// has at most MaxMetadata bytes; a file system without extended attributes keeps none.
	Metadata map[string]string
}

// FileEvent is a change under a watched directory.
type FileEvent struct {
	Op   FileOp
	Path string // relative to the watched directory
}

// FileOp is what happened to a file.
type FileOp uint8

// The changes that a Watcher reports.
const (
	OpCreate FileOp = 1
	OpWrite  FileOp = 2
	OpRemove FileOp = 3
	OpRename FileOp = 4
	OpChmod  FileOp = 5
	// OpOverflow means that changes were lost: look at everything again.
	OpOverflow FileOp = 6
)

// Watcher reports changes below a directory.
type Watcher interface {
	Next(ctx context.Context) (FileEvent, error)
	Close() error
}

// Port is a TCP port that a program in the guest listens on.
type Port struct {
	Port    uint16
	Address string // "0.0.0.0", "::", "127.0.0.1", ...
	PID     uint32 // 0: not known
	Program string
}

// Identity is what a machine becomes after every boot and restore, before its workload continues.
type Identity struct {
	MachineID  string // id of the machine: the guest's /etc/machine-id is derived from it
	Hostname   string
	Generation uint64            // grows with every restore of this machine
	Time       time.Time         // wall clock to set
	Entropy    []byte            // 64 bytes, mixed and reseeded
	Network    *Network          // nil: none
	Env        map[string]string // the sandbox's own environment, for every process started from now on
	User       string            // default user of processes and files; "": root
	DiskGrow   bool              // grow the root file system to its disk
	Files      map[string][]byte // small files to write, by path; every user may read them
	Mounts     []Mount           // disks to mount before the workload continues; only after a boot, not a restore
	Volumes    []VolumeMount     // volumes to mount before the workload continues
}

// Mount is a disk of the machine with an ext4 file system, and where to mount it.
type Mount struct {
	Disk    int      // 1 is the disk behind the root disk, /dev/vdb
	Dir     string   // absolute path; made if it is missing
	Options []string // as of mount(8): "noatime", "nosuid", "commit=30", ...
}

// Network is the guest's end of its network.
type Network struct {
	Address string // "192.168.241.2/29"
	Gateway string
	DNS     []string
	MTU     int
}

// Stats are the guest's own numbers.
type Stats struct {
	MemTotal, MemAvailable, MemCached int64
	DiskTotal, DiskUsed               int64 // of the root file system
	CPUs                              int
	CPUBusy                           time.Duration // since boot, over all processors
	Load1                             float64
	Uptime                            time.Duration
	Processes                         int
	NetRx, NetTx                      int64
	Time                              time.Time
}

// Backend is what the guest's end of the protocol serves: a Guest, and the request to restore it.
type Backend interface {
	Guest
	// Restore makes the machine the one of id: entropy, clock, host name, machine id, network; then its workload
	// continues. The host requests it after every boot and restore. It returns when all of that is done.
	Restore(ctx context.Context, id Identity) error
	// Volume mounts a volume, unmounts one, or does what else the request says.
	Volume(ctx context.Context, req VolumeRequest) (VolumeReport, error)
}
