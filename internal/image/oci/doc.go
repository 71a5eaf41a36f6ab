// Package oci pulls images from registries and flattens their layers into one tar stream.
//
// It owns the way from a reference to a stream: which manifest of an index is meant, credentials, each
// blob verified by its digest and each layer by its DiffID, downloads that go on where a connection was
// cut, and the meaning of layers: whiteouts, opaque directories, replaced files, hard links, owners, extended
// attributes. It must not know what the stream becomes. It unpacks nothing: layers are kept as files named by
// digest in a directory of the caller, and no name of an archive is ever a path of the host.
//
// Invariants. Nothing of a layer is used before all of it is verified. The stream of an image is the same
// every time: directories stand before what they hold, names are sorted, every name is relative, clean and
// occurs once, and the target of a hard link stands before the link. Registries and images are strangers: sizes,
// counts, ratios and depths are bounded by Limits. After an error nothing is left in the directory but verified
// layers, and those only within CacheBytes.
//
// A Puller may be used by many goroutines.
package oci
