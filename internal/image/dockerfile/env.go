package dockerfile

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/shell"
)

// The bounds of expansion. A value fits an argument of a Linux program; the product of a replacement
// within a word stays below 16 MiB.
const (
	maxValue     = 128 << 10 // bytes of one variable, or of one expanded word that is not a here-document
	maxVars      = 1000
	maxSubstOne  = 1 << 20 // bytes that variables may add to one word
	maxSubstWord = 4 << 10 // likewise, and bytes of the word, where ${name/pattern/text} is used
	// maxWork bounds the expansions of a text together, in bytes that variables add; for matched patterns, in bytes
	// times bytes of the pattern. It takes less than a second.
	maxWork = 64 << 20
)

var replacement = regexp.MustCompile(`\$\{[A-Za-z0-9_]*/`)

// vars is a set of variables. It never changes a map that snapshot has returned.
type vars struct {
	m      map[string]string
	shared bool
}

func copyVars(m map[string]string) vars { return vars{m: maps.Clone(m)} }

// snapshot returns a map of all variables, which the caller must not change.
func (v *vars) snapshot() map[string]string {
	v.shared = true
	return v.m
}

func (v *vars) set(name, value string) error {
	switch {
	case name == "" || strings.ContainsAny(name, "=\x00"):
		return fmt.Errorf("%q is not a variable name", name)
	case strings.Contains(value, "\x00"):
		return fmt.Errorf("the value of %s has a zero byte", name)
	case len(name)+len(value) > maxValue:
		return fmt.Errorf("the value of %s is larger than %d bytes", name, maxValue)
	}
	if v.shared || v.m == nil {
		v.m, v.shared = maps.Clone(v.m), false
		if v.m == nil {
			v.m = make(map[string]string)
		}
	}
	v.m[name] = value
	if len(v.m) > maxVars {
		return fmt.Errorf("more than %d variables", maxVars)
	}
	return nil
}

// meteredEnv limits the bytes that the lexer takes from variables, so that no word grows without bound and all of them
// together take a bounded time.
type meteredEnv struct {
	m       map[string]string
	left    int  // bytes that this word may still take; -1: it needed more
	pattern int  // bytes of the word if it has patterns, else 0
	taken   int  // bytes that this word has taken
	work    *int // remaining work of the whole text
}

// Get implements shell.EnvGetter.
func (g *meteredEnv) Get(name string) (string, bool) {
	value, ok := g.m[name]
	cost := len(value)
	if g.pattern > 0 {
		cost *= 1 + g.pattern + g.taken // an earlier value may be the pattern
	}
	if len(value) > g.left || cost > *g.work {
		g.left = -1
		return "", ok
	}
	g.left -= len(value)
	g.taken += len(value)
	*g.work -= cost
	return value, ok
}

// Keys implements shell.EnvGetter.
func (g *meteredEnv) Keys() []string { return slices.Sorted(maps.Keys(g.m)) }

var errExpansionTooLarge = errors.New("the text is too large after variable expansion")

// expander expands words with variables.
type expander struct {
	lex  *shell.Lex
	work *int
}

func newExpander(escape rune) expander {
	work := maxWork
	return expander{shell.NewLex(escape), &work}
}

// meter returns a meteredEnv for word, or an error if word could expand without bound.
func (e expander) meter(word string, m map[string]string) (*meteredEnv, error) {
	g := &meteredEnv{m: m, left: maxSubstOne, work: e.work}
	if len(word) > MaxText {
		return nil, errExpansionTooLarge
	}
	if strings.Contains(word, "${") && strings.ContainsAny(word, "#%/") {
		g.pattern = len(word)
	}
	if n := len(replacement.FindAllStringIndex(word, 2)); n > 0 {
		if n > 1 || len(word) > maxSubstWord {
			return nil, errors.New("a word can have only one ${name/pattern/text} and at most 4 KiB then")
		}
		g.left = maxSubstWord
	}
	return g, nil
}

// word expands one word.
func (e expander) word(word string, m map[string]string) (string, error) {
	g, err := e.meter(word, m)
	if err != nil {
		return "", err
	}
	s, _, err := e.lex.ProcessWord(word, g)
	return checked(s, g, err)
}

// words expands a text and splits it at spaces.
func (e expander) words(word string, m map[string]string) ([]string, error) {
	g, err := e.meter(word, m)
	if err != nil {
		return nil, err
	}
	all, err := e.lex.ProcessWords(word, g)
	if _, err := checked(strings.Join(all, " "), g, err); err != nil {
		return nil, err
	}
	return all, nil
}

// document expands a here-document, in which quotes mean nothing.
func (e expander) document(text string, m map[string]string) (string, error) {
	g, err := e.meter(text, m)
	if err != nil {
		return "", err
	}
	lex := shell.NewLex('\\')
	lex.SkipProcessQuotes = true
	s, _, err := lex.ProcessWord(text, g)
	if err == nil && g.left < 0 {
		err = errExpansionTooLarge
	}
	return s, err
}

func checked(s string, g *meteredEnv, err error) (string, error) {
	if err == nil && (g.left < 0 || len(s) > maxValue) {
		err = errExpansionTooLarge
	}
	return s, err
}
