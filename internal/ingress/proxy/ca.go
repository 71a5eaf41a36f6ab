package proxy

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/pandastack/pandastack/internal/lib/durable"
)

// Lifetimes of the certificates that this program makes. A leaf lives shorter than the 398 days that browsers accept,
// and is replaced in the last third of its life.
const (
	caLifetime   = 10 * 365 * 24 * time.Hour
	leafLifetime = 390 * 24 * time.Hour
)

// Files in the directory of a private authority.
const (
	caCertFile   = "ca.pem"
	caKeyFile    = "ca.key"
	leafCertFile = "server.pem"
	leafKeyFile  = "server.key"
)

// PrivateTLS returns a certificate for the given names, signed by an authority of this installation.
//
// Names are host names, wildcards such as *.example.test, and IP addresses. PrivateTLS makes what is missing or about
// to expire and keeps it in dir, which must exist. caFile is the certificate that clients have to trust.
func PrivateTLS(dir string, names []string, now time.Time) (cert tls.Certificate, caFile string, err error) {
	caFile = filepath.Join(dir, caCertFile)
	ca, caKey, err := loadPair(dir, caCertFile, caKeyFile)
	if errors.Is(err, fs.ErrNotExist) {
		ca, caKey, err = makeCA(dir, now)
	}
	if err != nil {
		return tls.Certificate{}, "", fmt.Errorf("private certificate authority: %w", err)
	}
	leaf, key, err := loadPair(dir, leafCertFile, leafKeyFile)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !isValidFor(leaf, ca, names, now) {
		leaf, key, err = makeLeaf(dir, ca, caKey, names, now)
	}
	if err != nil {
		return tls.Certificate{}, "", fmt.Errorf("private certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{leaf.Raw, ca.Raw}, PrivateKey: key, Leaf: leaf}, caFile, nil
}

// isValidFor reports whether a certificate is valid for names and not about to expire.
func isValidFor(leaf, ca *x509.Certificate, names []string, now time.Time) bool {
	if leaf.CheckSignatureFrom(ca) != nil || now.Before(leaf.NotBefore) ||
		now.After(leaf.NotAfter.Add(-leafLifetime/3)) {
		return false
	}
	have := map[string]bool{}
	for _, n := range leaf.DNSNames {
		have[n] = true
	}
	for _, ip := range leaf.IPAddresses {
		have[ip.String()] = true
	}
	for _, n := range names {
		if !have[n] {
			return false
		}
	}
	return true
}

func makeCA(dir string, now time.Time) (*x509.Certificate, crypto.Signer, error) {
	t := &x509.Certificate{
		Subject:   pkix.Name{CommonName: "PandaStack private authority", Organization: []string{"PandaStack"}},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(caLifetime),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	return issue(dir, caCertFile, caKeyFile, t, nil, nil)
}

func makeLeaf(
	dir string,
	ca *x509.Certificate,
	caKey crypto.Signer,
	names []string,
	now time.Time,
) (*x509.Certificate, crypto.Signer, error) {
	t := &x509.Certificate{
		Subject:   pkix.Name{CommonName: "PandaStack", Organization: []string{"PandaStack"}},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(leafLifetime),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, n)
		}
	}
	return issue(dir, leafCertFile, leafKeyFile, t, ca, caKey)
}

// issue makes and stores a key and a certificate from t, signed by parent or, without one, by itself. The key is
// written first: after a crash in between there is no certificate, and both are made again.
func issue(
	dir, certFile, keyFile string,
	t, parent *x509.Certificate,
	parentKey crypto.Signer,
) (*x509.Certificate, crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if t.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return nil, nil, err
	}
	if parent == nil {
		parent, parentKey = t, key
	}
	raw, err := x509.CreateCertificate(rand.Reader, t, parent, key.Public(), parentKey)
	if err != nil {
		return nil, nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	if err := os.Remove(filepath.Join(dir, certFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	if err := writePEM(dir, keyFile, "PRIVATE KEY", secret, 0o600); err != nil {
		return nil, nil, err
	}
	if err := writePEM(dir, certFile, "CERTIFICATE", raw, 0o644); err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(raw)
	return cert, key, err
}

func writePEM(dir, name, kind string, data []byte, mode fs.FileMode) error {
	return durable.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), mode)
}

func loadPair(dir, certFile, keyFile string) (*x509.Certificate, crypto.Signer, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, certFile), filepath.Join(dir, keyFile))
	if err != nil {
		return nil, nil, err
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, nil, fmt.Errorf("%s holds a key that cannot sign", filepath.Join(dir, keyFile))
	}
	return pair.Leaf, signer, nil
}
