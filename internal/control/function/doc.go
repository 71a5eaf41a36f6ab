// Package function keeps functions: code that runs when it is called, in machines that are restored from memory.
//
// A version of a function is a bundle of code with a snapshot of a machine in which the program pandastack-runtime has
// loaded it. An isolated function gets a machine of its own for each invocation, which ends with it; a shared one keeps
// machines that serve one invocation after the other and are hibernated when they are idle.
//
// The machines belong to the function: users do not see them in lists. The program in them is not trusted.
//
// All methods may be called concurrently. All errors of methods that users call are *api.Error.
package function
