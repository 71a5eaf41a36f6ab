package config

// Default returns the configuration without any setting. Packages whose own defaults are those of a setting
// take them from here, so that each stands in one place.
func Default() Node {
	var n Node
	for _, f := range n.Fields() {
		_ = f.set(f.Default) // a tag of Node, which TestDefault checks
	}
	return n
}
