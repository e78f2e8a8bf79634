package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Certificates are valid from a day ago: tests run clients with clocks that are wrong by minutes.
const (
	certBackdate = 24 * time.Hour
	certLifetime = 365 * 24 * time.Hour
)

type identity struct {
	name   string // file name under pki, and user name unless commonName says otherwise
	cn     string
	groups []string
	server bool
}

// The parts are all-powerful like the admin, but each under its own name, so that the audit log
// tells them apart.
var identities = []identity{
	{name: "apiserver", cn: "kube-apiserver", server: true},
	{name: "admin", cn: "admin", groups: []string{"system:masters"}},
	{name: partManager, cn: "system:kube-controller-manager", groups: []string{"system:masters"}},
	{name: partScheduler, cn: "system:kube-scheduler", groups: []string{"system:masters"}},
	{name: partKwok, cn: "kwok", groups: []string{"system:masters"}},
}

// writePKI makes the CA, all certificates of identities, and the key that signs ServiceAccount
// tokens in dir/pki.
func writePKI(dir string, now time.Time) error {
	pki := filepath.Join(dir, "pki")
	if err := os.MkdirAll(pki, 0o700); err != nil {
		return err
	}
	caKey, err := newKey(filepath.Join(pki, "ca.key"))
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(now.UnixNano()),
		Subject:               pkix.Name{CommonName: "devcluster-ca"},
		NotBefore:             now.Add(-certBackdate),
		NotAfter:              now.Add(certLifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &caKey.PublicKey, caKey)
	if err != nil {
		return fmt.Errorf("make the CA: %w", err)
	}
	ca, err := x509.ParseCertificate(der)
	if err != nil {
		return fmt.Errorf("make the CA: %w", err)
	}
	if err := writePEM(filepath.Join(pki, "ca.crt"), "CERTIFICATE", der); err != nil {
		return err
	}
	for i, id := range identities {
		if err := writeCert(pki, ca, caKey, id, now, int64(i)+1); err != nil {
			return fmt.Errorf("make the certificate of %s: %w", id.name, err)
		}
	}
	_, err = newKey(filepath.Join(pki, "sa.key"))
	return err
}

func writeCert(pki string, ca *x509.Certificate, caKey *ecdsa.PrivateKey, id identity, now time.Time, n int64) error {
	key, err := newKey(filepath.Join(pki, id.name+".key"))
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano() + n),
		Subject:      pkix.Name{CommonName: id.cn, Organization: id.groups},
		NotBefore:    now.Add(-certBackdate),
		NotAfter:     now.Add(certLifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if id.server {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		template.DNSNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
		template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback, net.IPv4(10, 96, 0, 1)}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, &key.PublicKey, caKey)
	if err != nil {
		return err
	}
	return writePEM(filepath.Join(pki, id.name+".crt"), "CERTIFICATE", der)
}

// newKey makes a P-256 key (RSA would take most of a second for all of them) and writes it to path.
func newKey(path string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, writePEM(path, "EC PRIVATE KEY", der)
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// writeKubeconfig writes a kubeconfig for one of identities that needs no other file, so that it
// can be copied.
func writeKubeconfig(path, dir, id string, port int) error {
	var data [3]string
	for i, file := range []string{"ca.crt", id + ".crt", id + ".key"} {
		text, err := os.ReadFile(filepath.Join(dir, "pki", file))
		if err != nil {
			return err
		}
		data[i] = base64.StdEncoding.EncodeToString(text)
	}
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: dev
clusters:
- name: dev
  cluster:
    server: https://127.0.0.1:%d
    certificate-authority-data: %s
users:
- name: %s
  user:
    client-certificate-data: %s
    client-key-data: %s
contexts:
- name: dev
  context:
    cluster: dev
    user: %s
`, port, data[0], id, data[1], data[2], id)
	return writeFileAtomic(path, []byte(text))
}

// writeFileAtomic replaces path in one step; only the owner can read the new file.
func writeFileAtomic(path string, data []byte) error {
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
