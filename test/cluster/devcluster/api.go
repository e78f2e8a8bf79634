package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	requestTimeout = 3 * time.Second
	replyMax       = 1 << 20
)

// httpStatus is a reply with a status of 300 or more.
type httpStatus struct {
	code int
	text string
}

func (s httpStatus) Error() string { return fmt.Sprintf("HTTP %d: %s", s.code, s.text) }

// newClient speaks as admin. It verifies kube-apiserver only: the other parts make certificates of
// their own at start.
func newClient(dir string) (*http.Client, error) {
	ca, err := os.ReadFile(filepath.Join(dir, "pki", "ca.crt"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, errors.New("pki/ca.crt holds no certificate")
	}
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "pki", "admin.crt"), filepath.Join(dir, "pki", "admin.key"))
	if err != nil {
		return nil, err
	}
	tlsConfig := &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: roots}
	return &http.Client{Timeout: requestTimeout, Transport: &http.Transport{TLSClientConfig: tlsConfig,
		DisableKeepAlives: true}}, nil
}

func (c *cluster) etcdURL() string { return fmt.Sprintf("http://127.0.0.1:%d", c.ports[partEtcd]) }
func (c *cluster) apiURL() string  { return fmt.Sprintf("https://127.0.0.1:%d", c.ports[partAPIServer]) }

func (c *cluster) get(ctx context.Context, url string) ([]byte, error) {
	return c.call(ctx, http.MethodGet, url, nil)
}

func (c *cluster) call(ctx context.Context, method, url string, body []byte) ([]byte, error) {
	return c.callAs(ctx, "application/json", method, url, body)
}

func (c *cluster) callAs(ctx context.Context, contentType, method, url string, body []byte) ([]byte, error) {
	client := c.client
	if strings.HasPrefix(url, "https:") && !strings.HasPrefix(url, c.apiURL()) {
		client = &http.Client{Timeout: requestTimeout, Transport: &http.Transport{
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	}
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", contentType)
	reply, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(io.LimitReader(reply.Body, replyMax))
	if err != nil {
		return nil, err
	}
	if reply.StatusCode >= 300 {
		return nil, httpStatus{reply.StatusCode, strings.TrimSpace(string(text))}
	}
	return text, nil
}

// addNode makes one Node object; kwok gives it its life. An existing one is fine.
func (c *cluster) addNode(ctx context.Context, name string) error {
	node := fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":%q,"labels":{"kubernetes.io/hostname":%q,`+
		`"kubernetes.io/os":"linux","kubernetes.io/arch":"amd64"}}}`, name, name)
	_, err := c.call(ctx, http.MethodPost, c.apiURL()+"/api/v1/nodes", []byte(node))
	var status httpStatus
	if errors.As(err, &status) && status.code == http.StatusConflict {
		return nil
	}
	return err
}

func (c *cluster) nodeReady(ctx context.Context, name string) error {
	text, err := c.get(ctx, c.apiURL()+"/api/v1/nodes/"+name)
	if err != nil {
		return err
	}
	var node struct {
		Status struct {
			Conditions []struct{ Type, Status string }
		}
	}
	if err := json.Unmarshal(text, &node); err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == "Ready" && condition.Status == "True" {
			return nil
		}
	}
	return fmt.Errorf("node %s is not Ready", name)
}

// controllersWork is nil once the controller manager has done something: a ServiceAccount in each
// namespace.
func (c *cluster) controllersWork(ctx context.Context) error {
	_, err := c.get(ctx, c.apiURL()+"/api/v1/namespaces/default/serviceaccounts/default")
	return err
}

// compactEtcd drops all history of etcd up to its present revision, which it returns.
func (c *cluster) compactEtcd(ctx context.Context) (string, error) {
	text, err := c.call(ctx, http.MethodPost, c.etcdURL()+"/v3/kv/range", []byte(`{"key":"AA=="}`))
	if err != nil {
		return "", err
	}
	var reply struct {
		Header struct{ Revision string }
	}
	if err := json.Unmarshal(text, &reply); err != nil || reply.Header.Revision == "" {
		return "", fmt.Errorf("etcd told no revision: %s", text)
	}
	body := fmt.Sprintf(`{"revision":%q,"physical":true}`, reply.Header.Revision)
	_, err = c.call(ctx, http.MethodPost, c.etcdURL()+"/v3/kv/compaction", []byte(body))
	return reply.Header.Revision, err
}
