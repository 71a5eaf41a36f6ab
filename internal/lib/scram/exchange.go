package scram

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	xdg "github.com/xdg-go/scram"
)

// Names of the mechanisms.
const (
	Mechanism     = "SCRAM-SHA-256"
	MechanismPlus = "SCRAM-SHA-256-PLUS"
)

// MaxMessage is the most bytes that a message of an exchange may have.
const MaxMessage = 2048

// ErrRejected is the error of an exchange whose client does not know the password.
var ErrRejected = errors.New("the password is wrong")

// Exchange authenticates one client.
type Exchange struct {
	verifier     Verifier
	binding      []byte
	conversation *xdg.ServerConversation
	bare, first  string // client-first-message-bare and server-first-message
}

// NewExchange returns an exchange with a client.
//
// binding is the data of tls-server-end-point of the client's connection, nil if the connection has none; then the
// client cannot use MechanismPlus.
func NewExchange(v Verifier, binding []byte) (*Exchange, error) {
	server, err := xdg.SHA256.NewServer(func(string) (xdg.StoredCredentials, error) {
		return xdg.StoredCredentials{
			KeyFactors: xdg.KeyFactors{Salt: string(v.Salt), Iters: v.Iterations},
			StoredKey:  v.StoredKey,
			ServerKey:  v.ServerKey,
		}, nil
	})
	if err != nil {
		return nil, err
	}
	e := &Exchange{verifier: v, binding: binding}
	if binding == nil {
		e.conversation = server.NewConversation()
		return e, nil
	}
	e.conversation = server.NewConversationWithChannelBinding(xdg.ChannelBinding{
		Type: xdg.ChannelBindingTLSServerEndpoint, Data: binding,
	})
	return e, nil
}

// Mechanisms returns the mechanisms to offer, the preferred one first.
func (e *Exchange) Mechanisms() []string {
	if e.binding == nil {
		return []string{Mechanism}
	}
	return []string{MechanismPlus, Mechanism}
}

// First takes the client's first message and returns the reply.
func (e *Exchange) First(mechanism string, message []byte) ([]byte, error) {
	if len(message) > MaxMessage {
		return nil, fmt.Errorf("a message of %d bytes, %d at most", len(message), MaxMessage)
	}
	text := string(message)
	bound := strings.HasPrefix(text, "p=")
	switch {
	case mechanism == MechanismPlus && e.binding != nil && bound:
	case mechanism == Mechanism && !bound:
	case mechanism != Mechanism && mechanism != MechanismPlus:
		return nil, errors.New("the client chose an authentication mechanism that was not offered")
	default:
		return nil, errors.New("the channel binding flag of the client does not fit the mechanism it chose")
	}
	reply, err := e.conversation.Step(text)
	if err != nil {
		return nil, err
	}
	e.bare, e.first = text[nthComma(text, 2)+1:], reply
	return []byte(reply), nil
}

// Final takes the client's proof and returns the last reply and the client's keys. A wrong proof is ErrRejected.
func (e *Exchange) Final(message []byte) ([]byte, Keys, error) {
	if len(message) > MaxMessage {
		return nil, Keys{}, fmt.Errorf("a message of %d bytes, %d at most", len(message), MaxMessage)
	}
	text := string(message)
	reply, err := e.conversation.Step(text)
	if err != nil {
		if reply == xdg.ErrInvalidProof {
			return nil, Keys{}, ErrRejected
		}
		return nil, Keys{}, err
	}
	at := strings.LastIndex(text, ",p=")
	if at < 0 {
		return nil, Keys{}, errors.New("the last message of the client has no proof")
	}
	proof, err := base64.StdEncoding.DecodeString(text[at+len(",p="):])
	if err != nil || len(proof) != sha256.Size {
		return nil, Keys{}, errors.New("the client's proof is not the encoding of 32 bytes")
	}
	signature := sum(e.verifier.StoredKey, e.bare+","+e.first+","+text[:at])
	key := make([]byte, sha256.Size)
	subtle.XORBytes(key, proof, signature)
	if stored := sha256.Sum256(key); !hmac.Equal(stored[:], e.verifier.StoredKey) {
		return nil, Keys{}, ErrRejected
	}
	return []byte(reply), Keys{Client: key, Server: e.verifier.ServerKey}, nil
}

// nthComma returns the index of the n-th comma, which the caller knows to exist.
func nthComma(text string, n int) int {
	at := -1
	for range n {
		at += strings.IndexByte(text[at+1:], ',') + 1
	}
	return at
}

// Client authenticates to a database with keys.
type Client struct {
	keys  Keys
	bare  string
	proof string // the authentication message, whose signature the server proves itself with
	nonce string
}

// NewClient returns a client for one exchange.
func NewClient(keys Keys) *Client {
	nonce := rand.Text()
	return &Client{keys: keys, nonce: nonce, bare: "n=,r=" + nonce}
}

// First returns the first message.
func (c *Client) First() []byte { return []byte("n,," + c.bare) }

// Final takes the server's first message and returns the proof.
func (c *Client) Final(message []byte) ([]byte, error) {
	text := string(message)
	fields := strings.Split(text, ",")
	if len(message) > MaxMessage || len(fields) < 3 {
		return nil, errors.New("the first message of the server is malformed")
	}
	nonce, ok := strings.CutPrefix(fields[0], "r=")
	if !ok || !strings.HasPrefix(nonce, c.nonce) || nonce == c.nonce {
		return nil, errors.New("the server's nonce does not begin with the client's")
	}
	if count, ok := strings.CutPrefix(fields[2], "i="); !ok {
		return nil, errors.New("the first message of the server has no iteration count")
	} else if n, err := strconv.Atoi(count); err != nil || n < 1 {
		return nil, errors.New("the iteration count of the server is not a number of at least 1")
	}
	without := "c=biws,r=" + nonce
	c.proof = c.bare + "," + text + "," + without
	stored := sha256.Sum256(c.keys.Client)
	proof := make([]byte, sha256.Size)
	if subtle.XORBytes(proof, c.keys.Client, sum(stored[:], c.proof)) != sha256.Size {
		return nil, errors.New("a client's key has 32 bytes")
	}
	return []byte(without + ",p=" + base64.StdEncoding.EncodeToString(proof)), nil
}

// Verify checks the server's last message.
func (c *Client) Verify(message []byte) error {
	text, ok := strings.CutPrefix(string(message), "v=")
	got, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil || !hmac.Equal(got, sum(c.keys.Server, c.proof)) {
		return errors.New("the server does not know the role's password verifier")
	}
	return nil
}

// EndpointBinding returns the data of the channel binding tls-server-end-point (RFC 5929).
//
// cert is the server's certificate. The result is nil for one whose signature has no hash of its own, such as Ed25519.
func EndpointBinding(cert *x509.Certificate) []byte {
	switch cert.SignatureAlgorithm {
	case x509.MD5WithRSA, x509.SHA1WithRSA, x509.ECDSAWithSHA1,
		x509.SHA256WithRSA, x509.SHA256WithRSAPSS, x509.ECDSAWithSHA256:
		d := sha256.Sum256(cert.Raw)
		return d[:]
	case x509.SHA384WithRSA, x509.SHA384WithRSAPSS, x509.ECDSAWithSHA384:
		d := sha512.Sum384(cert.Raw)
		return d[:]
	case x509.SHA512WithRSA, x509.SHA512WithRSAPSS, x509.ECDSAWithSHA512:
		d := sha512.Sum512(cert.Raw)
		return d[:]
	default:
		return nil
	}
}
