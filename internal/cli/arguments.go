package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// group returns a command that only contains others.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  onlyCommands,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(commands...)
	return c
}

// onlyCommands refuses an argument that is not a command of the group c, and suggests similar commands.
func onlyCommands(c *cobra.Command, args []string) error {
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

// explainArguments makes every command below c return its usage for wrong arguments.
func explainArguments(c *cobra.Command) {
	for _, sub := range c.Commands() {
		explainArguments(sub)
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
