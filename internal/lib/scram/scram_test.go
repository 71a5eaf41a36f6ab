package scram_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"math/big"
	"strings"
	"testing"

	xdg "github.com/xdg-go/scram"

	"github.com/pandastack/pandastack/internal/lib/scram"
)

var salt = []byte("0123456789abcdef")

func verifier(t *testing.T, password string) (scram.Verifier, scram.Keys) {
	t.Helper()
	v, keys, err := scram.NewVerifier(password, salt, scram.DefaultIterations)
	if err != nil {
		t.Fatal(err)
	}
	return v, keys
}

// login is an exchange of another implementation's client with ours.
func login(t *testing.T, x *scram.Exchange, password string, binding []byte) (scram.Keys, error) {
	t.Helper()
	client, err := xdg.SHA256.NewClientUnprepped("", password, "")
	if err != nil {
		t.Fatal(err)
	}
	mechanism, conversation := scram.Mechanism, client.NewConversation()
	if binding != nil {
		mechanism = scram.MechanismPlus
		conversation = client.NewConversationWithChannelBinding(xdg.ChannelBinding{
			Type: xdg.ChannelBindingTLSServerEndpoint, Data: binding,
		})
	}
	first, err := conversation.Step("")
	if err != nil {
		t.Fatal(err)
	}
	challenge, err := x.First(mechanism, []byte(first))
	if err != nil {
		return scram.Keys{}, err
	}
	proof, err := conversation.Step(string(challenge))
	if err != nil {
		t.Fatal(err)
	}
	final, keys, err := x.Final([]byte(proof))
	if err != nil {
		return scram.Keys{}, err
	}
	if _, err := conversation.Step(string(final)); err != nil || !conversation.Valid() {
		t.Errorf("the client does not accept %q: %v", final, err)
	}
	return keys, nil
}

// An exchange recovers the key with which another exchange, as a database has it, accepts a Client.
func TestExchangeRecoversKeys(t *testing.T) {
	v, want := verifier(t, "pässword ®")
	for name, binding := range map[string][]byte{"plain": nil, "bound": []byte("digest of a certificate")} {
		t.Run(name, func(t *testing.T) {
			x, err := scram.NewExchange(v, binding)
			if err != nil {
				t.Fatal(err)
			}
			keys, err := login(t, x, "pässword ®", binding)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(keys.Client, want.Client) || !bytes.Equal(keys.Server, want.Server) {
				t.Errorf("recovered keys %x, want %x", keys, want)
			}
			database, err := scram.NewExchange(v, nil)
			if err != nil {
				t.Fatal(err)
			}
			client := scram.NewClient(keys)
			challenge, err := database.First(scram.Mechanism, client.First())
			if err != nil {
				t.Fatal(err)
			}
			proof, err := client.Final(challenge)
			if err != nil {
				t.Fatal(err)
			}
			final, _, err := database.Final(proof)
			if err != nil {
				t.Fatal(err)
			}
			if err := client.Verify(final); err != nil {
				t.Error(err)
			}
			if client.Verify([]byte("v="+strings.Repeat("A", 43)+"=")) == nil {
				t.Error("a wrong signature of the server was accepted")
			}
		})
	}
}

func TestExchangeRefuses(t *testing.T) {
	v, _ := verifier(t, "right")
	binding := []byte("digest")
	for _, test := range []struct {
		name     string
		verifier scram.Verifier
		binding  []byte // of the server
		client   []byte // binding of the client
		rejected bool
	}{
		{name: "wrong-password", verifier: v, rejected: true},
		{name: "wrong-password-bound", verifier: v, binding: binding, client: binding, rejected: true},
		{name: "mock", verifier: scram.Mock([]byte("secret"), "db", "role"), binding: binding, rejected: true},
		{name: "other-binding", verifier: v, binding: binding, client: []byte("of a man in the middle")},
		{name: "binding-not-offered", verifier: v, client: binding},
	} {
		t.Run(test.name, func(t *testing.T) {
			x, err := scram.NewExchange(test.verifier, test.binding)
			if err != nil {
				t.Fatal(err)
			}
			_, err = login(t, x, "wrong", test.client)
			if err == nil || errors.Is(err, scram.ErrRejected) != test.rejected {
				t.Errorf("login = %v, want an error; rejected: %v", err, test.rejected)
			}
		})
	}
	for _, first := range []struct{ mechanism, message string }{
		{"SCRAM-SHA-1", "n,,n=,r=abc"},
		{scram.MechanismPlus, "n,,n=,r=abc"},
		{scram.Mechanism, "p=tls-server-end-point,,n=,r=abc"},
		{scram.MechanismPlus, "p=tls-unique,,n=,r=abc"},
		{scram.Mechanism, "y,,n=,r=abc"}, // a client that was not shown MechanismPlus
		{scram.Mechanism, ""},
		{scram.Mechanism, "n,,n=,r=" + strings.Repeat("a", scram.MaxMessage)},
	} {
		x, err := scram.NewExchange(v, binding)
		if err != nil {
			t.Fatal(err)
		}
		if reply, err := x.First(first.mechanism, []byte(first.message)); err == nil {
			t.Errorf("First(%q, %.20q) = %q, want an error", first.mechanism, first.message, reply)
		}
	}
}

func TestVerifier(t *testing.T) {
	const text = "SCRAM-SHA-256$4096:MDEyMzQ1Njc4OWFiY2RlZg==$"
	v, want := verifier(t, "secret")
	parsed, err := scram.ParseVerifier(v.String())
	if err != nil || parsed.String() != v.String() || !strings.HasPrefix(v.String(), text) {
		t.Errorf("ParseVerifier(%q) = %q, %v", v, parsed, err)
	}
	if keys, ok, err := parsed.Check("secret"); err != nil || !ok || !bytes.Equal(keys.Client, want.Client) {
		t.Errorf("Check of the right password = %v, %v", ok, err)
	}
	if _, ok, err := parsed.Check("Secret"); err != nil || ok {
		t.Errorf("Check of a wrong password = %v, %v", ok, err)
	}
	parsed.Iterations = 1 << 30
	if _, _, err := parsed.Check("secret"); err == nil {
		t.Error("Check computes a billion iterations")
	}
	for _, bad := range []string{
		"", "md5abc", "SCRAM-SHA-256$4096$a:b", "SCRAM-SHA-256$0:AAAA$AAAA:AAAA", "SCRAM-SHA-256$4096:AAAA$AAAA:AAAA",
		"SCRAM-SHA-256$4096:!$AAAA:AAAA", "SCRAM-SHA-256$4096:$AAAA:AAAA", strings.Replace(v.String(), ":", "", 1),
	} {
		if v, err := scram.ParseVerifier(bad); err == nil {
			t.Errorf("ParseVerifier(%q) = %v, want an error", bad, v)
		}
	}
}

// A name that does not exist has the same salt whenever it is asked for, and another than other names.
func TestMock(t *testing.T) {
	a, again := scram.Mock([]byte("s"), "db", "role"), scram.Mock([]byte("s"), "db", "role")
	if a.String() != again.String() {
		t.Error("the verifier of a name changes")
	}
	for _, other := range []scram.Verifier{
		scram.Mock([]byte("s"), "dbr", "ole"), scram.Mock([]byte("t"), "db", "role"),
		scram.Mock([]byte("s"), "db", "r"),
	} {
		if bytes.Equal(a.Salt, other.Salt) {
			t.Errorf("two names have the salt %x", a.Salt)
		}
	}
	v, _ := verifier(t, "x")
	if len(a.Salt) != len(v.Salt) || a.Iterations != v.Iterations {
		t.Errorf("a mock verifier %v does not look like a real one %v", a, v)
	}
}

func TestEndpointBinding(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	make := func(pub, priv any) *x509.Certificate {
		t.Helper()
		template := &x509.Certificate{SerialNumber: big.NewInt(1)}
		raw, err := x509.CreateCertificate(rand.Reader, template, template, pub, priv)
		if err != nil {
			t.Fatal(err)
		}
		c, err := x509.ParseCertificate(raw)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	cert := make(key.Public(), key)
	if want := sha256.Sum256(cert.Raw); !bytes.Equal(scram.EndpointBinding(cert), want[:]) {
		t.Error("the binding of an ECDSA certificate with SHA-256 is not its SHA-256")
	}
	if got := scram.EndpointBinding(make(edKey.Public(), edKey)); got != nil {
		t.Errorf("the binding of an Ed25519 certificate = %x, want none", got)
	}
}

func FuzzExchange(f *testing.F) {
	f.Add(scram.Mechanism, []byte("n,,n=,r=abc"), []byte("c=biws,r=abc,p=AAAA"))
	f.Add(scram.MechanismPlus, []byte("p=tls-server-end-point,,n=,r=abc"), []byte("c=,r=,p="))
	f.Add(scram.Mechanism, []byte("n,a=x,n=y,r=z,e=1"), []byte(",p="))
	v := scram.Mock([]byte("secret"))
	f.Fuzz(func(t *testing.T, mechanism string, first, final []byte) {
		for _, binding := range [][]byte{nil, []byte("digest")} {
			x, err := scram.NewExchange(v, binding)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := x.First(mechanism, first); err != nil {
				continue
			}
			if _, _, err := x.Final(final); err == nil {
				t.Fatal("a client without the password was accepted")
			}
		}
	})
}

func FuzzClient(f *testing.F) {
	f.Add("abc,s=AAAA,i=4096", []byte("v=AAAA"))
	f.Fuzz(func(t *testing.T, rest string, final []byte) {
		c := scram.NewClient(scram.Keys{Client: make([]byte, 32), Server: make([]byte, 32)})
		_, nonce, _ := strings.Cut(string(c.First()), "r=")
		if _, err := c.Final([]byte("r=" + nonce + rest)); err != nil {
			return
		}
		if c.Verify(final) == nil {
			t.Fatal("a server without the verifier was accepted")
		}
	})
}

func FuzzParseVerifier(f *testing.F) {
	f.Add("SCRAM-SHA-256$4096:AAAA$AAAA:AAAA")
	f.Add(scram.Mock(nil).String())
	f.Fuzz(func(t *testing.T, text string) {
		v, err := scram.ParseVerifier(text)
		if err != nil {
			return
		}
		if again, err := scram.ParseVerifier(v.String()); err != nil || again.String() != v.String() {
			t.Fatalf("%q became %q: %v", v, again, err)
		}
	})
}
