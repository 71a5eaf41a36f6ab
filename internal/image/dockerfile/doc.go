// Package dockerfile turns a Dockerfile and its build arguments into a plan, and a build context into the files that a
// step of the plan copies.
//
// It owns the meaning of the text: BuildKit's own parser reads it, variables are expanded as BuildKit expands them,
// stages that the target does not need are left out, and every step has all that it needs to run: program, environment,
// user, directory. It must not know how a step is run, where a base comes from, or what a layer is. Options.Base
// returns the base of a stage, because the environment of the base decides what $PATH means in the first ENV.
//
// Invariants. Unsupported instructions and flags are refused with an Error that names line and instruction, never
// ignored. The same text, arguments and bases give the same plan, and equal steps have equal keys. The text is
// untrusted: its size, the number of stages, steps and variables, and the size of everything that expansion makes of
// them are bounded. The package reads disks only through the fs.FS or the io.ReaderAt of a context.
//
// How to run a step in a guest:
//
//   - KindRun: write Run.Script to Run.ScriptPath (mode 0755) if it is not empty, then start Run.Argv
//     with Step.Env and Run.Proxy as environment in Step.Workdir as Step.User.
//   - KindDir: make Step.Dir with its parents, owned by Step.User, unless it exists.
//   - KindCopy with Copy.From < 0: Context.Select returns a Selection, and Selection.WriteTar writes the tar stream
//     to unpack. If Selection.Directory is set its names are relative to Copy.Dest. Otherwise it has
//     one file: Dest itself, or a file below Dest if Dest is a directory.
//   - KindCopy with Copy.From >= 0: the same from the finished file system of Plan.Stages[Copy.From].
//
// A Plan may be read, and a Context may be used, by several goroutines.
package dockerfile
