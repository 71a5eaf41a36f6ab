// Package checkpoint dumps a running process and restores it into new processes, as CRIU does.
//
// It exists for QEMU without KVM. QEMU translates guest code, and a restored guest spends nearly
// all of its first moments waiting for translations that every guest before it needed as well. A
// process restored from a checkpoint of a monitor starts with that monitor's translations.
//
// A Checkpoint describes the state of the process in the kernel: the threads with their registers,
// the virtual memory areas, the signal actions, the seccomp filters, and the role of each file
// descriptor. The content of memory is in a file beside it, the pages file. Each restored process
// maps the pages file privately, so a page is read when it is first touched and shared until it is
// written. The program and its libraries are mapped from their own files. Open files are not part
// of a checkpoint: the caller of Restore passes other files for the same roles.
//
// A process is restored into a Stub, a program of a few hundred bytes that waits. A stub is started
// like any other program, in the namespaces, user, group and jail that its owner chooses, so a
// restored process has no more rights than its stub. This package then attaches to the stub with
// ptrace(2), makes it replace its own address space by running a table of system calls, and starts
// the threads.
//
// The process that dumps or restores may die at any time. The dump of a process that was itself restored only reads,
// because what only the process itself could read is taken over from its checkpoint: the process continues as if it had
// never been stopped. Another process has to run system calls for its dump, with other registers than its own, and is
// killed if the dumper dies meanwhile. A stub is killed if the restorer dies between the first step and the last.
//
// A checkpoint can be used on hosts with the same Fingerprint, because the kernel's own pages (the
// vDSO) are part of the address space, and because programs choose code by the features of the
// processor. The mapped files are described as they are on one host; a caller that takes a
// checkpoint to another host makes sure that the files there have the same content. Clocks must not
// go back: a process waits for points in time on the clock since boot, so after a restore that
// clock must show at least the time that it showed at the dump. A checkpoint is a cache and never
// the only copy of anything.
//
// The dumped process is not trusted. Everything that is read from it is bounded and checked, and is
// used only inside the processes restored from it. Only Linux on amd64 is supported; on other
// architectures Dump returns ErrUnsupported.
//
// The kernel chose the addresses of the dumped process at random (ASLR). All processes restored
// from one checkpoint have the same addresses.
package checkpoint
