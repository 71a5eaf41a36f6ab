// Package dockerfile turns the text of a Dockerfile and its build arguments into a plan, and a build
// context into the files that a step of the plan copies.
//
// It owns the meaning of the text: BuildKit's own parser reads it, variables are expanded as BuildKit
// expands them, stages that the target does not need are dropped, and every step carries all it needs to
// run: program, environment, user, directory. It must not know how a step is run, where a base comes
// from, or what a layer is. The base of a stage is asked for through Options.Base, because the
// environment of a base decides what $PATH means in the first ENV.
//
// Invariants. What is not supported is refused with an Error that names line and instruction, never
// passed over. The same text, arguments and bases give the same plan, and Step.Key of equal steps is
// equal. The text is a stranger's: its size, the number of stages, steps and variables and the size of
// whatever expansion makes of them are bounded. Nothing here touches a disk but through the fs.FS or the
// io.ReaderAt of a context.
//
// How a step is run in a guest:
//
//   - KindRun: write Run.Script to Run.ScriptPath (mode 0755) when it is not empty, then start Run.Argv
//     with Step.Env and Run.Proxy as environment in Step.Workdir as Step.User.
//   - KindDir: make Step.Dir with its parents, owned by Step.User, and leave it alone if it is there.
//   - KindCopy with Copy.From < 0: Context.Select answers a Selection, and Selection.WriteTar the tar stream
//     to unpack. Its names are relative to Copy.Dest when Selection.Directory, and otherwise it
//     holds one file: Dest itself, or a file below Dest if Dest is a directory.
//   - KindCopy with Copy.From >= 0: the same from the finished file system of Plan.Stages[Copy.From].
//
// A Plan is a value and may be read by many goroutines. A Context may be used by many goroutines.
package dockerfile
