// Package checkpointstore keeps images of monitors as processes beside the images of their machines, and takes them to other hosts.
//
// It owns the directory process in an image's directory (a description, and the content of memory or what differs from
// that of another image), the program of vehicles, contents that came from other hosts, and the format of parcels. It
// must not know what a monitor is, what its descriptors stand for, or where parcels travel.
//
// What lies in an image's directory is of this host and of this boot of it, and is never written again once its
// description is there. A parcel is of every host that is the same in all that the process depends on; it comes from another
// host, was made by a monitor that ran a guest, and is checked as such.
package checkpointstore
