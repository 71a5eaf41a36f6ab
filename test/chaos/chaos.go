// Package chaos tests what a node loses when it is treated badly: it kills the node under load and in the middle of
// operations, fills its disk, stops monitors, overloads it, and gives it a hostile tenant beside a quiet one.
//
// The tests run with a small number of rounds in every test run, and with many in "make soak". They need root, and the
// data directory that "make prepare" creates.
package chaos
