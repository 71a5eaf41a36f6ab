// Package templates tests the built-in templates: it bakes each one, and runs its check in a sandbox restored from it.
//
// The tests take long and need much disk space, so they have the build tag slow; "make test-templates" runs them.
package templates
