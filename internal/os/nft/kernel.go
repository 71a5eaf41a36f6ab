package nft

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

var (
	// ErrNoTable means that the table does not exist.
	ErrNoTable = errors.New("no such nft table")
	// ErrNoSet means that the table has no such set.
	ErrNoSet = errors.New("no such nft set")
)

var hooks = map[string]*nftables.ChainHook{
	"prerouting":  nftables.ChainHookPrerouting,
	"input":       nftables.ChainHookInput,
	"forward":     nftables.ChainHookForward,
	"output":      nftables.ChainHookOutput,
	"postrouting": nftables.ChainHookPostrouting,
}

func kernelTable(name string) *nftables.Table {
	return &nftables.Table{Name: name, Family: nftables.TableFamilyINet}
}

// Conn is a long-lived netlink connection to the rules of one network namespace.
//
// The namespace is that of the thread that opened it, whichever thread uses it later. A Conn avoids closing a socket
// after each change, for which the kernel waits until no packet uses the old rules. Its methods are safe for
// concurrent use. After an error a Conn can only be closed.
type Conn struct {
	mu sync.Mutex
	c  *nftables.Conn // +checklocks:mu
}

// Open opens a Conn for the namespace of the calling thread. The caller closes it.
func Open() (*Conn, error) {
	c, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, fmt.Errorf("open netfilter: %w", err)
	}
	return &Conn{c: c}, nil
}

// Close closes the connection.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.c.CloseLasting()
}

// Replace creates table t, or replaces the table of its name, in one batch.
func (c *Conn) Replace(t Table) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return replace(c.c, t)
}

// Update replaces the content of sets and chains of an existing table, in one batch. It creates sets and chains that
// the table does not have.
func (c *Conn) Update(table string, sets []Set, chains []Chain) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return update(c.c, table, sets, chains)
}

// Counted returns the packets counted by all counters of a chain.
func (c *Conn) Counted(table, chain string) (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := kernelTable(table)
	rules, err := c.c.GetRules(t, &nftables.Chain{Name: chain, Table: t})
	if err != nil {
		return 0, fmt.Errorf("read chain %s of nft table %s: %w", chain, table, err)
	}
	var n uint64
	for _, r := range rules {
		for _, e := range r.Exprs {
			if counter, ok := e.(*expr.Counter); ok {
				n += counter.Packets
			}
		}
	}
	return n, nil
}

// AddAddresses adds IPv4 addresses to a set with Timeout, each for the given time. The time of an address that is in
// the set already starts again.
func (c *Conn) AddAddresses(table, set string, addrs []netip.Addr, stay time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return addAddresses(c.c, table, set, addrs, stay)
}

// Replace is Conn.Replace in the namespace of the calling thread.
func Replace(t Table) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open netfilter: %w", err)
	}
	return replace(c, t)
}

// Update is Conn.Update in the namespace of the calling thread.
func Update(table string, sets []Set, chains []Chain) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open netfilter: %w", err)
	}
	return update(c, table, sets, chains)
}

func replace(c *nftables.Conn, t Table) error {
	kt := kernelTable(t.Name)
	c.AddTable(kt) // so that the deletion succeeds
	c.DelTable(kt)
	c.AddTable(kt)
	for i, s := range t.Sets {
		ks := s.kernel(kt)
		ks.ID = uint32(i + 1)
		if err := c.AddSet(ks, s.elements()); err != nil {
			return fmt.Errorf("nft set %s: %w", s.Name, err)
		}
	}
	for _, ch := range t.Chains { // all chains before the rules, which may jump forward
		c.AddChain(ch.kernel(kt))
	}
	for _, ch := range t.Chains {
		ch.addRules(c, kt)
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("load nft table %s: %w", t.Name, err)
	}
	return nil
}

func update(c *nftables.Conn, table string, sets []Set, chains []Chain) error {
	kt := kernelTable(table)
	for i, s := range sets {
		ks := s.kernel(kt)
		ks.ID = uint32(i + 1)
		if err := c.AddSet(ks, nil); err != nil {
			return fmt.Errorf("nft set %s: %w", s.Name, err)
		}
		c.FlushSet(ks)
		if elements := s.elements(); len(elements) > 0 {
			if err := c.SetAddElements(ks, elements); err != nil {
				return fmt.Errorf("nft set %s: %w", s.Name, err)
			}
		}
	}
	for _, ch := range chains {
		c.AddChain(ch.kernel(kt))
	}
	for _, ch := range chains {
		c.FlushChain(ch.kernel(kt))
		ch.addRules(c, kt)
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("update nft table %s: %w", table, err)
	}
	return nil
}

func addAddresses(c *nftables.Conn, table, set string, addrs []netip.Addr, stay time.Duration) error {
	kt := kernelTable(table)
	s := Set{Name: set, Timeout: stay, Addrs: addrs}
	ks, elements := s.kernel(kt), s.elements()
	// An element's time starts again only if it is removed and added, and removing requires that it exists: so it is
	// added first.
	steps := []func(*nftables.Set, []nftables.SetElement) error{c.SetAddElements, c.SetDeleteElements, c.SetAddElements}
	for _, step := range steps {
		if err := step(ks, elements); err != nil {
			return fmt.Errorf("nft set %s: %w", set, err)
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("add to nft set %s: %w", set, err)
	}
	return nil
}

// Delete removes a table with its content. It is not an error if the table does not exist.
func Delete(table string) error {
	if ok, err := Exists(table); err != nil || !ok {
		return err
	}
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open netfilter: %w", err)
	}
	c.DelTable(kernelTable(table))
	if err := c.Flush(); err != nil {
		return fmt.Errorf("delete nft table %s: %w", table, err)
	}
	return nil
}

// Exists reports whether a table of this name exists.
func Exists(table string) (bool, error) {
	all, err := Tables()
	return slices.Contains(all, table), err
}

// Tables lists the names of all tables of family inet.
func Tables() ([]string, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("open netfilter: %w", err)
	}
	all, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("list nft tables: %w", err)
	}
	var names []string
	for _, t := range all {
		names = append(names, t.Name)
	}
	return names, nil
}

// Names returns the interface names in a set. The error is ErrNoTable or ErrNoSet if there is none.
func Names(table, set string) ([]string, error) {
	if ok, err := Exists(table); err != nil {
		return nil, err
	} else if !ok {
		return nil, fmt.Errorf("%s: %w", table, ErrNoTable)
	}
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("open netfilter: %w", err)
	}
	sets, err := c.GetSets(kernelTable(table))
	if err != nil {
		return nil, fmt.Errorf("list sets of nft table %s: %w", table, err)
	}
	if !slices.ContainsFunc(sets, func(s *nftables.Set) bool { return s.Name == set }) {
		return nil, fmt.Errorf("%s of table %s: %w", set, table, ErrNoSet)
	}
	elements, err := c.GetSetElements(Set{Name: set, IsNames: true}.kernel(kernelTable(table)))
	if err != nil {
		return nil, fmt.Errorf("read nft set %s: %w", set, err)
	}
	var names []string
	for _, e := range elements {
		names = append(names, unix.ByteSliceToString(e.Key))
	}
	slices.Sort(names)
	return names, nil
}

// kernel returns the set for the library. The caller that adds it gives it an ID, unique in the batch: the library
// would count in a variable that goroutines share without a lock.
func (s Set) kernel(t *nftables.Table) *nftables.Set {
	ks := &nftables.Set{Table: t, Name: s.Name, KeyType: nftables.TypeIPAddr}
	switch {
	case s.IsNames:
		ks.KeyType = nftables.TypeIFName
	case s.Timeout > 0:
		ks.HasTimeout, ks.Timeout = true, s.Timeout
	default:
		ks.Interval = true
	}
	return ks
}

func (s Set) elements() []nftables.SetElement {
	var all []nftables.SetElement
	for _, n := range s.Names {
		all = append(all, nftables.SetElement{Key: name16(n)})
	}
	for _, a := range s.Addrs {
		key := a.As4()
		all = append(all, nftables.SetElement{Key: key[:], Timeout: s.Timeout})
	}
	for _, p := range s.Prefixes {
		first := p.Masked().Addr().As4()
		all = append(all, nftables.SetElement{Key: first[:]})
		if end := after(p); end.IsValid() { // the last range of all has no end
			e := end.As4()
			all = append(all, nftables.SetElement{Key: e[:], IntervalEnd: true})
		}
	}
	return all
}

func (c Chain) kernel(t *nftables.Table) *nftables.Chain {
	kc := &nftables.Chain{Table: t, Name: c.Name}
	if c.Base == nil {
		return kc
	}
	kc.Hooknum = hooks[c.Base.Hook]
	kc.Priority = nftables.ChainPriorityRef(nftables.ChainPriority(c.Base.Priority))
	kc.Type = nftables.ChainType(c.Base.Type)
	policy := nftables.ChainPolicyAccept
	if c.Base.Drop {
		policy = nftables.ChainPolicyDrop
	}
	kc.Policy = &policy
	return kc
}

func (c Chain) addRules(conn *nftables.Conn, t *nftables.Table) {
	kc := &nftables.Chain{Table: t, Name: c.Name}
	for _, r := range c.Rules {
		kr := &nftables.Rule{Table: t, Chain: kc}
		for _, term := range r {
			kr.Exprs = append(kr.Exprs, term.exprs...)
		}
		conn.AddRule(kr)
	}
}
