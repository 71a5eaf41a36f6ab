package control

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/control/sandbox/activity"
)

// TestLogsAreSelected checks that entries are sorted by time, and that queries select by time, level and text from
// either end.
func TestLogsAreSelected(t *testing.T) {
	at := func(second int) time.Time { return time.Unix(1000+int64(second), 0) }
	all := newLogEntries(sandbox.Logs{Console: "boot\n", Processes: []sandbox.ProcessEnd{
		{
			Started:  at(1),
			Stdout:   "a1\na5\n",
			StdoutAt: activity.LineTimes{{Lines: 1, At: at(1)}, {Lines: 1, At: at(5)}},
		},
		{Started: at(1), Tag: "repl-bash-shdefault", Stdout: "talk\n"},
		{Started: at(2), Exited: true, Ended: at(4), Stdout: "b4\n", Stderr: "e4"},
	}}, at(0))
	for query, want := range map[string]string{
		"":                                  "boot a1 b4 e4 a5",
		"limit=2":                           "boot a1",
		"limit=0":                           "",
		"direction=backward&limit=2":        "a5 e4",
		"cursor=1004000":                    "b4 e4 a5",
		"start=1004000&limit=1":             "b4",
		"cursor=1001000&direction=backward": "a1 boot",
		"level=info":                        "a1 b4 e4 a5",
		"level=error":                       "e4",
		"search=4":                          "b4 e4",
	} {
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		q, err := parseLogQuery(values)
		if err != nil {
			t.Errorf("parseLogQuery(%s) = %v, want no error", query, err)
			continue
		}
		var got []string
		for _, e := range q.apply(all) {
			got = append(got, e.Message)
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%s selects %q, want %q", query, s, want)
		}
	}
	for _, query := range []string{
		"level=loud", "direction=up", "limit=-1", "limit=x", "cursor=x", "cursor=999999999999999999", "start=-1",
	} {
		values, _ := url.ParseQuery(query)
		if q, err := parseLogQuery(values); err == nil {
			t.Errorf("parseLogQuery(%s) = %+v, want an error", query, q)
		}
	}
}
