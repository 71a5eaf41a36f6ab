// Package bake makes templates: from a recipe an image, from the image a machine that boots cold, and
// from the warm machine a snapshot that every later machine of the template is restored from.
//
// What is published begins with a disk instead of a recipe, and on a ground instead of a boot: a machine that booted
// without a disk and waits for one, kept for each size. It is rehearsed soon after, when nobody waits for it.
//
// It owns the bake directory with the finished root images, which are kept by digest so that a bake that
// failed later does not build them again, and the areas "templates" and "grounds" of the snapshot store. It must not
// know how images are built, what a monitor is, or who uses a template.
//
// A template has at most one bake at a time; whoever asks meanwhile joins it. A generation is named by
// the digest of all that went into it. A new one takes the place of the old at once, while machines that
// run on the old keep it. A bake that fails or is killed leaves nothing but finished root images.
//
// All methods may be called at once. Bakes run within Run and end with it; templates are rehearsed one at a time.
package bake
