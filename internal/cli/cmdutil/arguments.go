// Package cmdutil has what the commands of the command line have in common: groups, arguments, and output.
package cmdutil

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/client"
)

// Group returns a command that only contains others.
func Group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  OnlyCommands,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(commands...)
	return c
}

// WithClient sets what a command does with a client of the API, and returns the command.
func WithClient(
	f *Factory,
	c *cobra.Command,
	do func(ctx context.Context, cl *client.Client, args []string) error,
) *cobra.Command {
	c.RunE = func(c *cobra.Command, args []string) error {
		cl, err := f.Dial()
		if err != nil {
			return err
		}
		return do(c.Context(), cl, args)
	}
	return c
}

// OnlyCommands refuses an argument that is not a command of the group c, and suggests similar ones.
func OnlyCommands(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if c.SuggestionsMinimumDistance <= 0 {
		c.SuggestionsMinimumDistance = 2
	}
	hint := fmt.Sprintf("%s --help lists them", c.CommandPath())
	near := within(c, args[0])
	if len(near) == 0 {
		near = c.SuggestionsFor(args[0])
	}
	if len(near) > 0 {
		hint = "did you mean " + strings.Join(near, " or ") + "?"
	}
	return fmt.Errorf("unknown command %q in %q; %s", args[0], c.CommandPath(), hint)
}

// within returns the commands of a name in the groups below c.
func within(c *cobra.Command, name string) (found []string) {
	for _, group := range c.Commands() {
		for _, sub := range group.Commands() {
			if sub.Name() == name && !sub.Hidden {
				found = append(found, group.Name()+" "+name)
			}
		}
	}
	return found
}

// ExplainArguments makes every command below c return its usage for wrong arguments.
func ExplainArguments(c *cobra.Command) {
	for _, sub := range c.Commands() {
		ExplainArguments(sub)
	}
	check := c.Args
	if check == nil || c.HasSubCommands() {
		return
	}
	c.Args = func(c *cobra.Command, args []string) error {
		if check(c, args) == nil {
			return nil
		}
		return fmt.Errorf("wrong number or kind of arguments (%d given); usage: %s", len(args), c.UseLine())
	}
}

// Confirm asks a question on out and reports whether the next line of in says yes.
func Confirm(in io.Reader, out io.Writer, question string) bool {
	fmt.Fprint(out, question+" [y/N] ")
	line, _ := bufio.NewReader(in).ReadString('\n') // no line is no
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return true
	}
	return false
}

// CommandLine returns the line for the sandbox's shell: a single argument unchanged, several arguments quoted.
func CommandLine(args []string) string {
	if len(args) == 1 {
		return args[0]
	}
	quoted := make([]string, len(args))
	for i, arg := range args {
		quoted[i] = Quote(arg)
	}
	return strings.Join(quoted, " ")
}

// Quote returns text as one word of a POSIX shell.
func Quote(text string) string {
	if text != "" && strings.IndexFunc(text, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
			strings.ContainsRune("_-./=:,+@%", r))
	}) < 0 {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
