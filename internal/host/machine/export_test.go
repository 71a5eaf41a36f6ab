package machine

// Spares is how many spares wait for a create.
func (m *Manager) Spares() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.spares)
}
