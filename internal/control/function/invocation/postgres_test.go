package invocation_test

import (
	"testing"

	"github.com/pandastack/pandastack/internal/control/store/storetest"
)

// TestPostgres runs the suite over PostgreSQL, where transactions of several processes run at the same time.
func TestPostgres(t *testing.T) {
	address, file := storetest.Postgres(t), emptyStore
	emptyStore = address
	defer func() { emptyStore = file }()
	for name, f := range map[string]func(*testing.T){
		"submit": TestSubmit, "delay": TestDelay, "retries": TestRetries, "busy": TestBusy, "too old": TestTooOld,
		"idempotency key": TestIdempotencyKey, "destinations": TestDestinations, "cancel": TestCancel,
		"forget": TestForget, "retention": TestRetention, "too many wait": TestTooManyWait, "fair": TestFair,
		"map": TestMap, "visibility": TestVisibility, "send": TestSend, "attached": TestAttached,
		"bad queues": TestBadQueues, "two": TestTwo, "two queues": TestTwoQueues, "store away": TestStoreAway,
		"clock": TestClock, "shutdown": TestShutdown,
	} {
		t.Run(name, f)
	}
}
