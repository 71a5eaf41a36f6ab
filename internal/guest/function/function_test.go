package function_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/fnruntime"
)

func TestEvent(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]func(testing.TB) *machine{
		"python": func(t testing.TB) *machine {
			return python(t, `
import sys
def handler(event, context):
    print("hello", event["n"])
    print("oops", file=sys.stderr)
    return {"double": event["n"] * 2, "id": context.invocation_id, "attempt": context.attempt,
            "soon": 0 < context.remaining_ms <= 60000, "trace": context.traceparent}
`)
		},
		"nodejs": func(t testing.TB) *machine {
			return node(t, `
export async function handler(event, context) {
  console.log('hello', event.n);
  console.error('oops');
  return { double: event.n * 2, id: context.invocationId, attempt: context.attempt,
    soon: 0 < context.remainingMs && context.remainingMs <= 60000, trace: context.traceparent };
}
`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := m(t)
			if style := m.ready(); style != "event" {
				t.Errorf("style %q, want event", style)
			}
			r := m.event(`{"n":21}`, fnruntime.HeaderInvocation, "ignored", fnruntime.HeaderAttempt, "3",
				fnruntime.HeaderDeadline, "60000", "Traceparent", "00-aa-bb-01")
			want := `{"double":42,"id":"` + r.field(t, "id") + `","attempt":3,"soon":true,"trace":"00-aa-bb-01"}`
			if r.status != http.StatusOK || !sameJSON(r.body, want) || !strings.HasPrefix(r.field(t, "id"), "inv") {
				t.Errorf("status %d with %s, want %s", r.status, r.body, want)
			}
			s := r.summary
			if s.Stdout != "hello 21\n" || s.Stderr != "oops\n" || s.Style != "event" || s.Micros <= 0 ||
				s.Memory <= 0 {
				t.Errorf("summary %+v, want the output of the call and its figures", s)
			}
		})
	}
}

func TestFetch(t *testing.T) {
	t.Parallel()
	m := node(t, `
export default {
  async fetch(request, env, context) {
    const url = new URL(request.url);
    const headers = new Headers({ 'content-type': 'application/octet-stream', 'x-path': url.pathname + url.search });
    headers.append('set-cookie', 'a=1');
    headers.append('set-cookie', 'b=2; Path=/');
    headers.set('x-cookies', request.headers.get('cookie') ?? '');
    const body = new Uint8Array(await request.arrayBuffer());
    return new Response(body.reverse(), { status: 201, headers });
  },
};
`)
	r := m.do(http.MethodPut, "/a%20b/c?x=1&y=%2f", "\x00\x01\xff", "Cookie", "k=v")
	if r.status != 201 || r.body != "\xff\x01\x00" || r.header.Get("X-Path") != "/a%20b/c?x=1&y=%2f" ||
		strings.Join(r.header["Set-Cookie"], "|") != "a=1|b=2; Path=/" || r.header.Get("X-Cookies") != "k=v" {
		t.Errorf("response %+v", r)
	}
}
