package httpapi_test

import (
	"bytes"
	"io"
	"net/http"
	"testing"
)

// BenchmarkExec measures a round trip of `true` over HTTP, with only maps behind it.
func BenchmarkExec(b *testing.B) {
	w := newFixture(b)
	_, path := w.create()
	for b.Loop() {
		if a := w.do("POST", path+"/exec", `{"cmd":"true"}`); a.status != http.StatusOK {
			b.Fatal(a.body)
		}
	}
}

// BenchmarkFile measures writing and reading a file of 16 MiB over HTTP.
func BenchmarkFile(b *testing.B) {
	w := newFixture(b)
	_, path := w.create()
	data := bytes.Repeat([]byte("x"), 16<<20)
	b.SetBytes(int64(2 * len(data)))
	for b.Loop() {
		w.do("PUT", path+"/fs?path=/f", string(data))
		res, err := http.DefaultClient.Do(w.request("GET", path+"/fs?path=/f", ""))
		if err != nil {
			b.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, res.Body); err != nil || n != int64(len(data)) {
			b.Fatalf("%d bytes, %v", n, err)
		}
		res.Body.Close()
	}
}
