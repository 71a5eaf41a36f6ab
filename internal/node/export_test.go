package node

import (
	"github.com/pandastack/pandastack/internal/lib/config"
)

// StoreKey returns the key of the database in a data directory.
func StoreKey(dir string) []byte {
	n := &node{Options: Options{Config: &config.Node{DataDir: dir}}}
	secret, err := n.secret()
	if err != nil {
		return nil
	}
	return derive(secret, "store")
}
