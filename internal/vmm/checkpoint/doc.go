// Package checkpoint takes the image of a process and makes processes of it that go on where it stood.
//
// It exists for one thing: a virtual machine monitor that translates guest code spends nearly all of the first
// moments of a restored guest on translating what it translated for every guest before. A process made from the
// image of a monitor begins with the translations of that one.
//
// An Image is what the kernel would have to be told: threads with their registers, the areas of the address
// space, signal actions, system call filters, and what each descriptor number stands for. The content of memory
// is in a file beside it, of which every process maps its own copy, so it is read when it is touched and shared
// until it is written. Program and libraries are mapped from their own files. What is behind descriptors is not
// in the image: whoever makes a process gives it other files in the same roles.
//
// A process is made in a Vehicle, a program of some hundred bytes that waits. It is started like any program,
// in whatever namespaces, user, group and jail its owner wants; what an image is made into has no more rights
// than its vehicle had. This package then attaches to it, lets it replace its own address space by a table of
// system calls, and starts the threads.
//
// An image fits hosts with the same Fingerprint: the kernel's own pages (vdso) are part of the address space, and
// programs choose code by what the processor can do. The files that it maps are described as they are on one host;
// whoever takes it to another makes sure that theirs have the same content. Clocks go on: a process waits until
// moments of the clock since boot, so that must say as much as it did, or more. An image is a cache, never the only form of anything.
//
// Processes whose image is taken are not trusted. Everything that is read of them is bounded and checked, and
// nothing of it is used but inside of the processes made from it. Only Linux on amd64 is supported; elsewhere
// everything answers ErrUnsupported.
//
// Addresses are chosen by the kernel at random for the process that an image is taken of, and are the same in
// all processes of that image.
package checkpoint
