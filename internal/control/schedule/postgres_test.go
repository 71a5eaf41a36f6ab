package schedule_test

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
		"runs": TestRuns, "new sandbox": TestNewSandbox, "failures": TestFailures, "overlap": TestOverlap,
		"seconds late": TestSecondsLate, "two processes": TestTwoProcesses, "killed": TestKilled, "update": TestUpdate,
		"delete": TestDelete, "function": TestFunction, "function overlap": TestFunctionOverlap,
		"function gone": TestFunctionGone, "function killed": TestFunctionKilled,
		"queue of runs": TestQueueOfRuns,
	} {
		t.Run(name, f)
	}
}

// TestPostgresAtScale has two control planes over one PostgreSQL, and 1,000 schedules at the same second.
func TestPostgresAtScale(t *testing.T) {
	address, file := storetest.Postgres(t), emptyStore
	emptyStore = address
	defer func() { emptyStore = file }()
	TestSchedulesAtScale(t)
}
