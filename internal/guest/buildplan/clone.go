package buildplan

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/pandastack/pandastack/internal/contract/buildevent"
	"github.com/pandastack/pandastack/internal/lib/knownhosts"
)

// askpassVariable has the token for the run of this program that git asks for a password.
const askpassVariable = "PANDASTACK_BUILD_ASKPASS"

var commitForm = regexp.MustCompile(`^[0-9a-f]{7,64}$`)

// clone brings in a repository at one commit, without its history.
func (r *run) clone(ctx context.Context) error {
	g := r.req.Git
	if g == nil || g.URL == "" {
		return invalid("git_url", "set git_url", "the app has no repository")
	}
	r.out.begin("source")
	to := r.source()
	if err := errors.Join(os.RemoveAll(to), os.MkdirAll(to, 0o755)); err != nil {
		return err
	}
	env := r.gitEnv()
	hosts, err := r.knownHosts(env)
	if err != nil {
		return err
	}
	if g.Key != "" {
		end, err := r.sshKey(env, g.Key)
		if err != nil {
			return err
		}
		defer end()
	}
	git := func(args ...string) error {
		return r.exec(ctx, command{argv: append([]string{"git"}, args...), dir: to, env: env})
	}
	ref := g.Ref
	if ref == "" {
		ref = "HEAD"
	}
	r.out.info("cloning %s at %s", g.URL, ref)
	if err := git("init", "--quiet", "--template="); err != nil {
		return err
	}
	if err := git("remote", "add", "--", "origin", g.URL); err != nil {
		return err
	}
	if err := r.checkout(g, ref, git); err != nil {
		return r.cloneFailed(ctx, err, ref)
	}
	if err := r.cloneRest(g, git); err != nil {
		return r.cloneFailed(ctx, err, ref)
	}
	if err := r.checkSize(to); err != nil {
		return err
	}
	source, err := r.describe(ctx, to, env)
	if err != nil {
		return err
	}
	if g.HostKeys == "" {
		if source.HostKeys, err = readKnownHosts(hosts); err != nil {
			return err
		}
	}
	r.out.event(buildevent.Event{Kind: buildevent.KindSource, Source: source})
	r.out.info("at commit %s", source.Commit)
	return nil
}

// checkout fetches a commit and checks it out. Some servers do not give single commits, but branches with them.
func (r *run) checkout(g *buildevent.Git, ref string, git func(...string) error) error {
	wanted := cmp.Or(g.Commit, ref)
	if err := git("fetch", "--quiet", "--depth=1", "--no-tags", "--", "origin", wanted); err == nil {
		return git("checkout", "--quiet", "--detach", "FETCH_HEAD", "--")
	} else if !commitForm.MatchString(wanted) {
		return err
	}
	branches := []string{"+refs/heads/*:refs/remotes/origin/*"}
	if g.Commit != "" && g.Ref != "" {
		branches = append(branches, g.Ref)
	}
	if err := git(append([]string{"fetch", "--quiet", "--tags", "--", "origin"}, branches...)...); err != nil {
		return err
	}
	return git("checkout", "--quiet", "--detach", wanted, "--")
}

// cloneRest brings in what the repository does not hold itself.
func (r *run) cloneRest(g *buildevent.Git, git func(...string) error) error {
	if g.Submodules {
		if err := git("submodule", "update", "--init", "--recursive", "--depth=1"); err != nil {
			return err
		}
	}
	if !g.LFS {
		return nil
	}
	if _, err := exec.LookPath("git-lfs"); err != nil {
		return invalid("lfs", "use a template that has git-lfs", "the template of the build has no git-lfs")
	}
	return git("lfs", "pull")
}

// gitEnv returns the environment of git: it reads no configuration but that of the system, never prompts, and
// knows no transports by which a URL or a submodule could name a program or a file of the machine.
func (r *run) gitEnv() map[string]string {
	env := map[string]string{
		"PATH": defaultPath, "HOME": r.Dir, "GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_NOSYSTEM": "1",
		"GIT_ALLOW_PROTOCOL": "https:http:ssh", "GIT_LFS_SKIP_SMUDGE": "1", "LC_ALL": "C.UTF-8",
		"GIT_CONFIG_COUNT": "3", "GIT_CONFIG_KEY_0": "core.hooksPath", "GIT_CONFIG_VALUE_0": "/dev/null",
		"GIT_CONFIG_KEY_1": "credential.helper", "GIT_CONFIG_VALUE_1": "",
		"GIT_CONFIG_KEY_2": "transfer.fsckObjects", "GIT_CONFIG_VALUE_2": "true",
	}
	if strings.HasPrefix(r.req.Git.URL, "/") { // a volume of this machine; the service sets it, no user
		env["GIT_ALLOW_PROTOCOL"] = "file"
		env["GIT_CONFIG_COUNT"], env["GIT_CONFIG_KEY_3"], env["GIT_CONFIG_VALUE_3"] = "4", "safe.directory", "*"
	}
	maps.Copy(env, r.req.Env)
	if r.req.Git.Token != "" {
		env["GIT_ASKPASS"], env[askpassVariable] = r.Program, r.req.Git.Token
	}
	return env
}

// knownHosts makes ssh check the keys of servers, and returns the file with them. Without any it adds those that
// servers have now.
func (r *run) knownHosts(env map[string]string) (file string, err error) {
	file, check := filepath.Join(r.Dir, "known_hosts"), "yes"
	if r.req.Git.HostKeys == "" {
		check = "accept-new"
	}
	env["GIT_SSH_COMMAND"] = "ssh -F /dev/null -o BatchMode=yes -o StrictHostKeyChecking=" + check +
		" -o UserKnownHostsFile=" + quote(file) + " -o GlobalKnownHostsFile=/dev/null -o HashKnownHosts=no" +
		" -o CheckHostIP=no -o UpdateHostKeys=no"
	return file, writePrivate(file, []byte(knownhosts.Clean(r.req.Git.HostKeys)))
}

// readKnownHosts returns the keys that ssh has added to a file.
func readKnownHosts(file string) (string, error) {
	data, err := readFile(file, knownhosts.MaxBytes)
	if err != nil {
		return "", err
	}
	keys := knownhosts.Clean(string(data))
	if !knownhosts.Valid(keys) {
		return "", invalid("submodules", "use fewer servers", "the repository comes from too many servers")
	}
	return keys, nil
}

// Hosts whose keys ssh refuses, as it names them.
var (
	changedHost = regexp.MustCompile(`Host key for (\S+) has changed`)
	unknownHost = regexp.MustCompile(`No \S+ host key is known for (\S+) and`)
)

// hostKeyFailed explains that a server has another key than the known one; nil if that is not why git failed.
func hostKeyFailed(said string) error {
	const hint = "set git_host_keys to what ssh-keyscan prints for its servers once you have compared it, " +
		"or to nothing, and the next build takes the keys that they have then"
	if m := changedHost.FindStringSubmatch(said); m != nil {
		return invalid("git_host_keys", hint, "the host key of %.200s is not the one that the app knows", m[1])
	}
	if m := unknownHost.FindStringSubmatch(said); m != nil {
		return invalid("git_host_keys", hint, "the app knows no such host key of %.200s", m[1])
	}
	return nil
}

// sshKey puts a private key where only ssh finds it, on a file system in memory, and returns how to remove it.
func (r *run) sshKey(env map[string]string, key string) (end func(), err error) {
	dir, err := os.MkdirTemp("/dev/shm", "key-")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, invalid("template", "use a template with /dev/shm", "the machine has no file system in memory")
	}
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "key")
	if err := os.WriteFile(file, []byte(strings.TrimSpace(key)+"\n"), 0o600); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	env["GIT_SSH_COMMAND"] += " -o IdentitiesOnly=yes -i " + file
	return func() { _ = os.RemoveAll(dir) }, nil // the machine that clones ends before anything is kept of it
}

// cloneFailed explains why git failed by what it printed.
func (r *run) cloneFailed(ctx context.Context, err error, ref string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	said := strings.Join(r.out.lastLines(), "\n")
	has := func(texts ...string) bool {
		for _, t := range texts {
			if strings.Contains(said, t) {
				return true
			}
		}
		return false
	}
	if err := hostKeyFailed(said); err != nil {
		return err
	}
	switch {
	case has("No space left on device"):
		return noSpace()
	case has("couldn't find remote ref", "did not match any file", "not our ref", "unable to read tree"):
		return invalid("git_branch", "name a branch, a tag or a commit of the repository", "the repository has no %q",
			ref)
	case has("Authentication failed", "could not read Username", "could not read Password", "Permission denied",
		"Repository not found", "403", "401"):
		return invalid("git_token", "set git_token, or allow the app's deploy key", "the repository refused the login")
	case has("Could not resolve host", "Connection refused", "Failed to connect", "timed out", "certificate"):
		return &buildevent.Failure{Code: buildevent.CodeUnavailable, Field: "git_url",
			Message: "the server of the repository cannot be reached from the build",
			Hint:    "check the URL, and the server's settings apps.mirrors and network.allow"}
	case has("transport 'file' not allowed", "transport 'ext' not allowed", "is not allowed", "disallowed submodule"):
		return invalid("submodules", "use https or ssh in .gitmodules",
			"the repository names a URL that is not allowed")
	}
	return invalid("git_url", "read the log", "the repository could not be cloned: %s", err)
}

// checkSize refuses a source that is larger than allowed.
func (r *run) checkSize(dir string) error {
	limits := r.limits()
	return filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if d.Name() == ".git" {
				return fs.SkipDir
			}
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if limits.SourceFiles--; limits.SourceFiles < 0 {
			return tooLarge("the source has too many files")
		}
		if limits.SourceBytes -= info.Size(); limits.SourceBytes < 0 {
			return tooLarge("the source is too large")
		}
		return nil
	})
}

// describe returns the commit that was checked out.
func (r *run) describe(ctx context.Context, dir string, env map[string]string) (*buildevent.Source, error) {
	var text bytes.Buffer
	c := command{argv: []string{"git", "log", "-1", "--format=%H%n%s"}, dir: dir, env: env, out: &text}
	if err := r.exec(ctx, c); err != nil {
		return nil, err
	}
	commit, message, _ := strings.Cut(strings.TrimSpace(text.String()), "\n")
	return &buildevent.Source{Commit: commit, Message: message}, nil
}
