package execstream

import "testing"

// FuzzControl: a text message of a terminal is typed or a size, never both, and nothing is lost that is
// no object of a known form.
func FuzzControl(f *testing.F) {
	f.Add([]byte(`{"resize":{"rows":1,"cols":2}}`))
	f.Add([]byte(`{"type":"stdin","data":"x"}`))
	f.Add([]byte("ls -l\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		input, size := parse(data)
		if size != nil && len(input) > 0 {
			t.Errorf("%q is both", data)
		}
		if len(data) > 0 && data[0] != '{' && data[0] > ' ' && string(input) != string(data) {
			t.Errorf("%q was typed as %q", data, input)
		}
	})
}
