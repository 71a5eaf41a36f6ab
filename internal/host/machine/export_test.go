package machine

import "slices"

// WarmMonitors returns how many warm monitors wait for a create.
func (m *Manager) WarmMonitors() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.warm)
}

// StartSteps returns the names of all steps of all starts, sorted.
func StartSteps() []string {
	var all []string
	for s := range stepFuncs {
		all = append(all, string(s))
	}
	slices.Sort(all)
	return all
}
