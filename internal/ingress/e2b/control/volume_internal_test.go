package control

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

const tokenVolume = api.VolumeID("vol2222222222222222222")

// TestVolumeTokenExpires checks that a token holds until its time and no longer, and only where it was made.
func TestVolumeTokenExpires(t *testing.T) {
	s := &Server{cfg: Config{Secret: []byte(strings.Repeat("k", 32))}}
	other := &Server{cfg: Config{Secret: []byte(strings.Repeat("x", 32))}}
	const key = "pds_12345678"
	for name, tt := range map[string]struct {
		token string
		ok    bool
	}{
		"valid":                      {s.volumeToken(tokenVolume, key, time.Now().Add(time.Hour)), true},
		"expired":                    {s.volumeToken(tokenVolume, key, time.Now().Add(-2*time.Second)), false},
		"of another installation":    {other.volumeToken(tokenVolume, key, time.Now().Add(time.Hour)), false},
		"another use of the secret":  {volumeTokenPrefix + s.ticket("w", "x", time.Now().Add(time.Hour)), false},
		"the traffic of the volume":  {volumeTokenPrefix + s.TrafficToken(api.SandboxID(tokenVolume)), false},
		"a token with one more part": {s.volumeToken(tokenVolume, "pds.1", time.Now().Add(time.Hour)), false},
	} {
		got, err := s.keyOfVolumeToken(tt.token, string(tokenVolume))
		if tt.ok != (err == nil && got == key) || !tt.ok && api.CodeOf(err) != api.Unauthenticated {
			t.Errorf("%s: got key %q, %v; want it valid: %v", name, got, err, tt.ok)
		}
	}
}

// FuzzVolumeToken checks that only tokens of this server open a volume.
func FuzzVolumeToken(f *testing.F) {
	s := &Server{cfg: Config{Secret: []byte(strings.Repeat("k", 32))}}
	good := s.volumeToken(tokenVolume, "pds_12345678", time.Now().Add(time.Hour))
	f.Add(good, string(tokenVolume))
	f.Add(good+"0", string(tokenVolume))
	f.Add("e2bv_....", "")
	f.Add("", "")
	f.Fuzz(func(t *testing.T, token, id string) {
		key, err := s.keyOfVolumeToken(token, id)
		if err == nil && (token != good || id != string(tokenVolume) || key != "pds_12345678") {
			t.Errorf("the token %q of volume %q was accepted for key %q", token, id, key)
		}
	})
}

// TestDownloadEndsEarly checks that a client can tell a file that was cut off from a whole one.
func TestDownloadEndsEarly(t *testing.T) {
	for name, size := range map[string]int64{"whole": 4, "cut off": 5, "grown": 3} {
		ended := make(chan struct{})
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			d := download{info: guestapi.FileInfo{Kind: guestapi.KindFile, Size: size},
				body: io.NopCloser(strings.NewReader("file")), end: func() { close(ended) }}
			d.send(w)
		}))
		resp, err := http.Get(srv.URL)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(resp.Body)
		if (err == nil) != (size <= 4) || err == nil && int64(len(data)) != size {
			t.Errorf("%s: got %d bytes, %v; want %d bytes or an error", name, len(data), err, size)
		}
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
		<-ended // the use of the volume
		srv.Close()
	}
}
