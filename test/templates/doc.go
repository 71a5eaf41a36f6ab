// Package templates proves the templates that come with the program: each is baked for real, and its check
// runs again in a sandbox that was restored from the bake. It takes a long time and much of the machine's
// disk, so its tests have the build tag slow; "make test-templates" runs them.
package templates
