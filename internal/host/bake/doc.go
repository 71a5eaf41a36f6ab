// Package bake makes templates: an image from a recipe, a machine that cold-boots the image, and a snapshot of the
// warmed-up machine, from which every later machine of the template is restored.
//
// A published template begins with a disk instead of a recipe, and with a pre-mount snapshot instead of a boot: a
// machine that booted without a root disk and waits for one, kept for each machine size. Its JIT warm-up runs soon
// after the publication, when no caller waits for it.
//
// The package owns the bake directory with the finished root images, which are kept by digest so that a bake that
// failed later does not build them again, and the areas "templates" and "grounds" of the snapshot store. It must not
// know how images are built, what a monitor is, or who uses a template.
//
// A template has at most one bake at a time; further requests join it. A generation is named by the digest of
// everything that it was made from. A new generation replaces the old one at once, while machines that run on the old
// one keep it. A bake that fails or is killed leaves nothing but finished root images.
//
// All methods may be called at once. Bakes run within Run and end with it; JIT warm-ups run one at a time.
package bake
