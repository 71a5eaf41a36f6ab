// Package functionstore has the rows of functions, their versions, aliases, machines and invocations.
package functionstore
