package execstream

import "testing"

// A text message of a terminal is input or a size, never both, and text that is no known object is input unchanged.
func FuzzControl(f *testing.F) {
	f.Add([]byte(`{"resize":{"rows":1,"cols":2}}`))
	f.Add([]byte(`{"type":"stdin","data":"x"}`))
	f.Add([]byte("ls -l\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		input, size := parse(data)
		if size != nil && len(input) > 0 {
			t.Errorf("parse(%q) returns input and a size, want one", data)
		}
		if len(data) > 0 && data[0] != '{' && data[0] > ' ' && string(input) != string(data) {
			t.Errorf("parse(%q) = %q, want it unchanged", data, input)
		}
	})
}
