package apt

import (
	"reflect"
	"testing"
)

func TestParseMadison(t *testing.T) {
	out := `
linux-image-cloud-amd64 | 6.12.95-1~bpo12+1 | http://one.example/debian bookworm-backports/main amd64 Packages
linux-image-cloud-amd64 |  6.1.192-2 | http://one.example/security bookworm-security/main amd64 Packages
linux-signed | 6.1.192+2 | http://one.example/debian bookworm/main Sources
`
	want := []Version{
		{"linux-image-cloud-amd64", "6.12.95-1~bpo12+1", "bookworm-backports"},
		{"linux-image-cloud-amd64", "6.1.192-2", "bookworm-security"},
	}
	if got := parseMadison(out); !reflect.DeepEqual(got, want) {
		t.Errorf("parseMadison: got %v, want %v", got, want)
	}
}
