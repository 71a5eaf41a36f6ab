// Package oci pulls images from registries and flattens their layers into one tar stream.
//
// It owns the way from a reference to a stream: the choice of a manifest from an index, credentials, the verification
// of each blob by its digest and each layer by its DiffID, downloads that resume after an interruption, and the
// semantics of layers: whiteouts, opaque directories, replaced files, hard links, owners, extended attributes. It must
// not know how the stream is used. It unpacks nothing to disk: layers are files named by digest in a directory of the
// caller, and no name in an archive becomes a path of the host.
//
// Invariants. No byte of a layer is used before the whole layer is verified. The stream of an image is always the
// same: directories come before their entries, names are sorted, every name is relative, clean and unique, and the
// target of a hard link comes before the link. Registries and images are untrusted: Limits bounds sizes, counts,
// ratios, depths and memory. Every connection, those of redirects and token services included, is encrypted and goes
// to a public address, except as Options.Insecure and Options.Allow say; errors contain nothing that a server sent. A
// cached layer serves images of its own repository only. After an error the directory has only verified layers, within
// CacheBytes.
//
// A Puller may be used by several goroutines.
package oci
