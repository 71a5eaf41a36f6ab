package budget

// Owners returns how many owners of the top level are remembered.
func (p *Pool) Owners() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.root.children)
}
