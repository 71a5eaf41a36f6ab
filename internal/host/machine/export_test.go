package machine

// WarmMonitors is how many spares wait for a create.
func (m *Manager) WarmMonitors() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.warm)
}
