package netslot

// names is the resolver on the gateway address of one slot.
type names struct{}

func listenNames(*Slot) (*names, error) { return &names{}, nil }

func (n *names) close() error { return nil }
