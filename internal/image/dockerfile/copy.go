package dockerfile

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/patternmatcher"
)

// copy executes COPY.
func (st *stageBuilder) copy(c *instructions.CopyCommand) error {
	cp := Copy{From: -1, Chown: c.Chown, Chmod: c.Chmod, Parents: c.Parents, Exclude: slices.Clone(c.ExcludePatterns)}
	if from, ok := st.d.from[c]; ok {
		cp.From = st.p.drafts[from].index
	}
	for _, src := range c.SourcePaths {
		if remote(src) {
			return fmt.Errorf("%s: COPY takes files: fetch it with RUN", truncate(src, 200))
		}
	}
	return st.addCopy(cp, c.SourcesAndDest)
}

// add executes ADD.
func (st *stageBuilder) add(c *instructions.AddCommand) error {
	cp := Copy{
		Add:     true,
		From:    -1,
		Unpack:  true,
		Chown:   c.Chown,
		Chmod:   c.Chmod,
		Exclude: slices.Clone(c.ExcludePatterns),
	}
	if c.Unpack != nil {
		cp.Unpack = *c.Unpack
	}
	for _, src := range c.SourcePaths {
		if remote(src) {
			return st.unsupported(
				"ADD",
				"%s is remote: fetch it with RUN, which follows the network policy of the build",
				truncate(src, 200),
			)
		}
	}
	switch {
	case c.Checksum != "":
		return errors.New("--checksum needs a remote source")
	case c.KeepGitDir != nil:
		return errors.New("--keep-git-dir needs a remote source")
	}
	return st.addCopy(cp, c.SourcesAndDest)
}

func remote(src string) bool {
	for _, scheme := range []string{"http://", "https://", "git://", "ssh://", "git@"} {
		if len(src) >= len(scheme) && strings.EqualFold(src[:len(scheme)], scheme) {
			return true
		}
	}
	return false
}

// addCopy checks the common arguments of COPY and ADD and adds the step.
func (st *stageBuilder) addCopy(cp Copy, names instructions.SourcesAndDest) error {
	dest, err := st.absolute(names.DestPath)
	if err != nil {
		return err
	}
	cp.Dest = dest
	if err := cp.setFiles(names.SourceContents); err != nil {
		return err
	}
	for _, src := range names.SourcePaths {
		if err := checkSource(src); err != nil {
			return err
		}
		cp.Sources = append(cp.Sources, src)
	}
	switch {
	case len(cp.Sources)+len(cp.Files) == 0:
		return errors.New("a source is required")
	case len(cp.Sources)+len(cp.Files) > 1 && !strings.HasSuffix(dest, "/"):
		return fmt.Errorf("with more than one source the destination %s must end in /", truncate(dest, 200))
	case cp.Chown != "" && !validUser.MatchString(cp.Chown):
		return fmt.Errorf("--chown=%s is neither user nor user:group", truncate(cp.Chown, 100))
	case cp.Chmod != "" && !validMode.MatchString(cp.Chmod):
		return st.unsupported(
			map[bool]string{true: "ADD", false: "COPY"}[cp.Add],
			"--chmod=%s: use octal digits",
			truncate(cp.Chmod, 100),
		)
	}
	if _, err := patternmatcher.New(cp.Exclude); err != nil {
		return fmt.Errorf("--exclude: %w", err)
	}
	return st.step(Step{Kind: KindCopy, Copy: &cp})
}

func (cp *Copy) setFiles(contents []instructions.SourceContent) error {
	for _, f := range contents {
		if f.Path == "" || f.Path == "." || f.Path == ".." || strings.ContainsAny(f.Path, "/\x00") ||
			len(f.Path) > 255 {
			return fmt.Errorf("%q is not a file name", truncate(f.Path, 100))
		}
		cp.Files = append(cp.Files, File{Name: f.Path, Data: f.Data})
	}
	return nil
}

// checkSource refuses sources above the root of the context or stage, and malformed patterns.
func checkSource(src string) error {
	switch {
	case src == "":
		return errors.New("source is empty after variable expansion")
	case strings.Contains(src, "\x00") || len(src) > 4096:
		return errors.New("source has a zero byte or is longer than 4096 bytes")
	}
	depth := 0
	for _, part := range strings.Split(src, "/") {
		switch part {
		case "", ".":
		case "..":
			if depth--; depth < 0 {
				return fmt.Errorf("%s is outside of the context", truncate(src, 200))
			}
		default:
			depth++
		}
	}
	if _, err := path.Match(src, ""); err != nil {
		return fmt.Errorf("%s: %w", truncate(src, 200), err)
	}
	return nil
}
