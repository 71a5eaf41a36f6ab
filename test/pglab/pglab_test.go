//go:build e2e

package pglab_test

import (
	"testing"

	"github.com/pandastack/pandastack/test/pglab"
)

// The server responds, survives a kill with what was committed, and says why it does not start.
func TestServer(t *testing.T) {
	s := pglab.New(t, "max_connections=20")
	s.Exec("create table a (b int)")
	s.Exec("insert into a select generate_series(1, 10)")
	s.Kill()
	s.Start()
	if got := s.Value("select count(*) from a"); got != "10" {
		t.Errorf("count after a kill = %s, want 10", got)
	}
	s.Stop()
	s.Settings = []string{"max_connections=nonsense"}
	if err := s.TryStart(); err == nil {
		t.Error("start with a bad setting: got nil, want an error")
	}
}
