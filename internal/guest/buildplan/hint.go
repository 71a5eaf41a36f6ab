package buildplan

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"syscall"

	"github.com/pandastack/pandastack/internal/contract/buildevent"
)

// hints recognize what commonly goes wrong by what commands print. The first that matches counts.
var hints = []struct {
	text *regexp.Regexp
	buildevent.Failure
}{
	{regexp.MustCompile(`No space left on device|ENOSPC`), *noSpace()},
	{regexp.MustCompile(`heap out of memory|MemoryError|Cannot allocate memory|signal: killed|ENOMEM`),
		buildevent.Failure{Code: buildevent.CodeBuildFailed, Field: "memory_mb", Hint: "set memory_mb to more"}},
	{regexp.MustCompile("npm ci.{0,80}(can only install|package-lock)|EUSAGE|package.json and package-lock.json" +
		".{0,40}not in sync"), buildevent.Failure{Code: buildevent.CodeBuildFailed,
		Hint: "run npm install and commit package-lock.json"}},
	{regexp.MustCompile(`ERR_PNPM_OUTDATED_LOCKFILE|frozen-lockfile|lockfile (would have been|needs to be)`),
		buildevent.Failure{Code: buildevent.CodeBuildFailed,
			Hint: "bring the lock file up to date with the package manager, and commit it"}},
	{regexp.MustCompile(`EBADENGINE|engine "?node"? is incompatible|Unsupported engine|requires a different Python`),
		buildevent.Failure{Code: buildevent.CodeBuildFailed,
			Hint: "name the version that the app needs in .nvmrc, .python-version, or engines of package.json"}},
	{regexp.MustCompile(`Missing script: "?'?build|Missing script: "?'?start`),
		buildevent.Failure{Code: buildevent.CodeBuildFailed, Field: "build_command",
			Hint: "set build_command or start_command, or add the script to package.json"}},
	{regexp.MustCompile(`SELF_SIGNED_CERT|unable to get local issuer|self.signed certificate|` +
		`CERTIFICATE_VERIFY_FAILED|certificate signed by unknown authority|x509: `),
		buildevent.Failure{Code: buildevent.CodeUnavailable,
			Hint: "the certificate of a registry is not trusted: " +
				"the server's setting apps.mirrors.certificates adds one"}},
	{regexp.MustCompile(`ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT|Could not resolve|Temporary failure|` +
		`Failed to establish a new connection|no such host|Network is unreachable`),
		buildevent.Failure{Code: buildevent.CodeUnavailable,
			Hint: "a registry cannot be reached from the build: " +
				"see the server's settings apps.mirrors and network.allow"}},
	{regexp.MustCompile(`[a-z0-9_.-]+: not found|command not found`),
		buildevent.Failure{Code: buildevent.CodeBuildFailed,
			Hint: "a program is missing: add it to the dependencies, or to packages of railpack.json"}},
}

// hint returns the failure that the output of a command points to, without a message; nil if it points to none.
func hint(output string) *buildevent.Failure {
	for i := range hints {
		if hints[i].text.MatchString(output) {
			f := hints[i].Failure
			return &f
		}
	}
	return nil
}

// commandFailed returns the failure of a command.
func (r *run) commandFailed(ctx context.Context, title string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return fmt.Errorf("%s: %w", title, err)
	}
	said := strings.Join(r.out.lastLines(), "\n")
	if status,
		ok := exit.Sys().(syscall.WaitStatus); ok && status.Signal() == syscall.SIGKILL || exit.ExitCode() == 137 {
		said += "\nsignal: killed"
	}
	f := hint(said)
	if f == nil {
		f = &buildevent.Failure{Code: buildevent.CodeBuildFailed, Hint: "see the end of the log"}
	}
	if f.Message == "" || f.Code != buildevent.CodeNoSpace {
		f.Message = fmt.Sprintf("%s failed: %s", title, exit)
	}
	return f
}
