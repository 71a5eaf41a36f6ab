package api_test

import (
	"errors"
	"testing"

	"github.com/pandastack/pandastack/api"
)

func TestReasons(t *testing.T) {
	cause := errors.New("open /var/lib/node/spool:\nno space")
	for _, tt := range []struct {
		err              error
		users, operators string
	}{
		{api.Wrap(api.Unavailable, cause, "it cannot be restored: "+cause.Error()), "it cannot be restored",
			"it cannot be restored: open /var/lib/node/spool: no space"},
		{api.Wrap(api.WrongState, cause, "the target: "+cause.Error()),
			"the target: open /var/lib/node/spool: no space", "the target: open /var/lib/node/spool: no space"},
		{api.Errorf(api.Unavailable, "try again"), "try again", "try again"},
		{cause, "internal error; the server's log has it under this request id",
			"internal error; the server's log has it under this request id"},
	} {
		stored := api.Reason("a reset: ", tt.err)
		if got := api.ShownReason(stored, false); got != "a reset: "+tt.users {
			t.Errorf("%v: users see %q", tt.err, got)
		}
		if got := api.ShownReason(stored, true); got != "a reset: "+tt.operators {
			t.Errorf("%v: operators see %q", tt.err, got)
		}
	}
	if e := api.ForUsers(nil); e != nil {
		t.Errorf("no error: %v", e)
	}
}
