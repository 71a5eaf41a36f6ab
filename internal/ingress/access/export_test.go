package access

// MaxLimiters bounds each table of limiters.
const MaxLimiters = maxLimiters

// Limiters returns the size of the table of addresses.
func (g *Guard) Limiters() int { return len(g.perAddress.entries) }

// Operations returns the table of operations.
func Operations() map[Face]map[string]Need { return operations }
