// Package nft describes netfilter tables as plain values, prints them, and puts them into the kernel.
//
// It owns the vocabulary: a Table holds Sets and Chains, a Chain holds Rules, a Rule is a list of Terms.
// Every Term carries both its text and its kernel expressions, so what String prints, in the words of
// nft(8), is what Replace and Update load. All tables are of family inet.
//
// It must not know what the rules are for. It holds no state of its own.
//
// Replace, Update, Delete and the readers, other than the methods of Conn, work on the network namespace of the calling thread: callers
// that mean another namespace lock their goroutine to a thread there first. Each of them is one netlink
// batch, which the kernel takes or refuses as a whole; packets see the old rules or the new, never a mix.
package nft

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Table is a netfilter table of family inet.
type Table struct {
	Name   string
	Sets   []Set
	Chains []Chain
}

// Set is a named set of a table: either IPv4 prefixes or interface names.
type Set struct {
	Name     string
	Prefixes []netip.Prefix // IPv4, sorted, apart from each other (see Merge)
	Names    []string       // interface names; then Prefixes is empty and IsNames is true
	IsNames  bool
	Timeout  time.Duration // above zero: single addresses, which leave after this time
	Addrs    []netip.Addr  // of a set with Timeout
}

// Chain is a list of rules; with Base it hangs on a hook of the kernel, without it is jumped to.
type Chain struct {
	Name  string
	Base  *Base
	Rules []Rule
}

// Base says where in the kernel a chain hangs.
type Base struct {
	Type     string // "filter" or "nat"
	Hook     string // "prerouting", "input", "forward", "output" or "postrouting"
	Priority int
	Drop     bool // policy: what no rule decides is dropped, otherwise accepted
}

// Rule is a list of terms; all matches must hold for the last term, the verdict, to be carried out.
type Rule []Term

// String is the table in the words of nft(8).
func (t Table) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "table inet %s {\n", t.Name)
	for _, s := range t.Sets {
		b.WriteString(s.String())
	}
	for _, c := range t.Chains {
		b.WriteString(c.String())
	}
	b.WriteString("}\n")
	return b.String()
}

// String is the set in the words of nft(8).
func (s Set) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\tset %s {\n", s.Name)
	var elements []string
	switch {
	case s.IsNames:
		b.WriteString("\t\ttype ifname\n")
		for _, n := range s.Names {
			elements = append(elements, fmt.Sprintf("%q", n))
		}
	case s.Timeout > 0:
		fmt.Fprintf(&b, "\t\ttype ipv4_addr\n\t\tflags timeout\n\t\ttimeout %s\n", s.Timeout)
		for _, a := range s.Addrs {
			elements = append(elements, a.String())
		}
	default:
		b.WriteString("\t\ttype ipv4_addr\n\t\tflags interval\n")
		for _, p := range s.Prefixes {
			elements = append(elements, p.String())
		}
	}
	for i, e := range elements {
		sep, end := "\t\t             ", ",\n"
		if i == 0 {
			sep = "\t\telements = { "
		}
		if i == len(elements)-1 {
			end = " }\n"
		}
		b.WriteString(sep + e + end)
	}
	b.WriteString("\t}\n")
	return b.String()
}

// String is the chain in the words of nft(8).
func (c Chain) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\tchain %s {\n", c.Name)
	if c.Base != nil {
		policy := "accept"
		if c.Base.Drop {
			policy = "drop"
		}
		fmt.Fprintf(
			&b,
			"\t\ttype %s hook %s priority %d; policy %s;\n",
			c.Base.Type,
			c.Base.Hook,
			c.Base.Priority,
			policy,
		)
	}
	for _, r := range c.Rules {
		b.WriteString("\t\t" + r.String() + "\n")
	}
	b.WriteString("\t}\n")
	return b.String()
}

// String is the rule in the words of nft(8).
func (r Rule) String() string {
	words := make([]string, len(r))
	for i, t := range r {
		words[i] = t.text
	}
	return strings.Join(words, " ")
}
