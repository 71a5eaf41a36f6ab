// Package nft describes netfilter tables as plain values, prints them, and loads them into the kernel.
//
// A Table holds Sets and Chains, a Chain holds Rules, and a Rule is a list of Terms. Every Term carries both its text
// and its kernel expressions, so what String prints, in the syntax of nft(8), is what Replace and Update load. All
// tables are of family inet.
//
// The package does not know what the rules are for. It holds no state of its own.
//
// Except for the methods of Conn, Replace, Update, Delete and the readers work on the network namespace of the
// calling thread: callers that mean another namespace lock their goroutine to a thread in it first. Each call is one
// netlink batch, which the kernel accepts or refuses as a whole; packets see the old rules or the new, never a mix.
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
	Prefixes []netip.Prefix // IPv4, sorted, not overlapping (see Merge)
	Names    []string       // interface names; then Prefixes is empty and IsNames is true
	IsNames  bool
	Timeout  time.Duration // above zero: single addresses, which expire after this time
	Addrs    []netip.Addr  // of a set with Timeout
}

// Chain is a list of rules. With Base it is attached to a hook of the kernel; without, rules jump to it.
type Chain struct {
	Name  string
	Base  *Base
	Rules []Rule
}

// Base describes where a chain is attached in the kernel.
type Base struct {
	Type     string // "filter" or "nat"
	Hook     string // "prerouting", "input", "forward", "output" or "postrouting"
	Priority int
	Drop     bool // policy: packets that no rule decides are dropped, otherwise accepted
}

// Rule is a list of terms. If all matches hold, the last term, the verdict, applies.
type Rule []Term

// String returns the table in the syntax of nft(8).
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

// String returns the set in the syntax of nft(8).
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

// String returns the chain in the syntax of nft(8).
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

// String returns the rule in the syntax of nft(8).
func (r Rule) String() string {
	words := make([]string, len(r))
	for i, t := range r {
		words[i] = t.text
	}
	return strings.Join(words, " ")
}
