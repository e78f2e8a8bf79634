//go:build bench

package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// cost is what one upgrade took.
type cost struct{ wall, helmCPU, belayCPU float64 }

// childSeconds is the user and system time of a process' children that were waited for.
func childSeconds(pid int) float64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	user, _ := strconv.ParseFloat(fields[13], 64)
	system, _ := strconv.ParseFloat(fields[14], 64)
	return (user + system) / 100
}

// bareHelm runs stock helm as a person would, with a discovery cache below home.
func bareHelm(t *testing.T, major, kubeconfig, home string, args ...string) cost {
	t.Helper()
	cmd := exec.Command(tool(major), args...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + home, "KUBECONFIG=" + kubeconfig}
	began := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("helm %v: %v\n%s", args, err, out)
	}
	state := cmd.ProcessState
	return cost{time.Since(began).Seconds(), (state.UserTime() + state.SystemTime()).Seconds(), 0}
}

func forgetDiscovery(dir string) {
	_ = filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && info.IsDir() && info.Name() == ".kube" {
			_ = os.RemoveAll(path)
			return filepath.SkipDir
		}
		return nil
	})
}

// countingProxy stands between a client and the API server.
type countingProxy struct {
	*httptest.Server
	requests, bytes atomic.Int64
}

type countingBody struct {
	io.ReadCloser
	n *atomic.Int64
}

func (b countingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n.Add(int64(n))
	return n, err
}

// startCounting returns a proxy with the credentials of kubeconfig, and a kubeconfig for it.
func startCounting(t *testing.T, kubeconfig, dir string) (*countingProxy, string) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	target, _ := url.Parse(config.Host)
	pool := x509.NewCertPool()
	ca := config.CAData
	if len(ca) == 0 {
		ca, _ = os.ReadFile(config.CAFile)
	}
	pool.AppendCertsFromPEM(ca)
	tlsConfig := &tls.Config{RootCAs: pool}
	if config.CertFile != "" || len(config.CertData) > 0 {
		cert, key := config.CertData, config.KeyData
		if len(cert) == 0 {
			cert, _ = os.ReadFile(config.CertFile)
			key, _ = os.ReadFile(config.KeyFile)
		}
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		tlsConfig.Certificates = []tls.Certificate{pair}
	}
	p := &countingProxy{}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport = &http.Transport{TLSClientConfig: tlsConfig, DisableCompression: true, MaxIdleConnsPerHost: 64}
	proxy.FlushInterval = -1
	direct := proxy.Director
	proxy.Director = func(r *http.Request) {
		direct(r)
		if config.BearerToken != "" {
			r.Header.Set("Authorization", "Bearer "+config.BearerToken)
		}
	}
	proxy.ModifyResponse = func(r *http.Response) error {
		p.requests.Add(1)
		r.Body = countingBody{r.Body, &p.bytes}
		return nil
	}
	p.Server = httptest.NewServer(proxy)
	t.Cleanup(p.Close)
	file := filepath.Join(dir, "counting-"+base64.RawURLEncoding.EncodeToString([]byte(filepath.Base(kubeconfig)))+".json")
	text, _ := json.Marshal(object{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": []any{object{"name": "c", "cluster": object{"server": p.URL}}},
		"users":    []any{object{"name": "c", "user": object{}}},
		"contexts": []any{object{"name": "c", "context": object{"cluster": "c", "user": "c"}}}})
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return p, file
}

// What one upgrade costs through the gate, with the gate off, and as bare helm; in turns, both majors, warm and with no discovery
// cache on disk.
func TestBenchGate(t *testing.T) {
	const rounds = 12
	for _, major := range []string{"helm3", "helm4"} {
		for _, state := range []string{"warm", "cold"} {
			benchGate(t, major, state, rounds)
		}
	}
	saveResults(t)
}

func benchGate(t *testing.T, major, state string, rounds int) {
	ns, dir := newNamespace(t)
	repo := startRepo(t, dir)
	repo.pack("podinfo-like", "1.0.0")
	chart := filepath.Join(repo.dir, "podinfo-like-1.0.0.tgz")
	home := filepath.Join(dir, "home")
	kinds := []string{"gate", "no gate"}
	replicas := map[string]*replica{}
	for i, kind := range kinds {
		name := fmt.Sprintf("managed%d", i)
		o := belayOptions{ns: ns, dir: dir, helm: major, flags: []string{"--watch-label-selector", "bench=" + name, "--gate=" + strconv.FormatBool(i == 0)}}
		replicas[kind] = startBelay(t, name, o)
		s := spec(repo, "podinfo-like", "1.0.0", object{"podAnnotations": object{"round": "0"}})
		s["releaseName"] = name
		createHR(t, ns, name, s)
		label(t, ns, name, "bench="+name)
		waitReleased(t, ns, name, "True", 60*time.Second)
	}
	args := func(round int) []string {
		return []string{"upgrade", "--install", "bare", chart, "-n", ns, "--set", fmt.Sprintf("podAnnotations.round=r%d", round)}
	}
	admin := env.admin
	bareHelm(t, major, admin, home, args(0)...)
	costs := map[string][]cost{}
	for round := 1; round <= rounds; round++ {
		fmt.Printf("bench: gate, %s, %s, round %d of %d\n", major, state, round, rounds)
		if state == "cold" {
			forgetDiscovery(dir)
		}
		costs["bare"] = append(costs["bare"], bareHelm(t, major, admin, home, args(round)...))
		for i, kind := range kinds {
			pid := replicas[kind].cmd.Process.Pid
			helmCPU, belayCPU := childSeconds(pid), cpuSeconds(pid)
			wall := timeEdit(t, ns, fmt.Sprintf("managed%d", i), round)
			costs[kind] = append(costs[kind], cost{wall, childSeconds(pid) - helmCPU, cpuSeconds(pid) - belayCPU})
		}
	}
	for kind, all := range costs {
		var wall, helmCPU, belayCPU []float64
		for _, c := range all {
			wall, helmCPU, belayCPU = append(wall, c.wall), append(helmCPU, c.helmCPU), append(belayCPU, c.belayCPU)
		}
		prefix := fmt.Sprintf("one upgrade, %s, %s, %s: ", major, state, kind)
		results[prefix+"wall"] = spreadOf(wall, "s")
		results[prefix+"CPU of helm"] = spreadOf(helmCPU, "s")
		if kind != "bare" {
			results[prefix+"CPU of belay"] = spreadOf(belayCPU, "s")
		}
	}
	for _, r := range replicas {
		r.stop(20 * time.Second)
	}
	countRequests(t, major, state, ns, dir, chart, repo)
}

// The same once more through a proxy that counts: what reaches the API server for one upgrade.
func countRequests(t *testing.T, major, state, ns, dir, chart string, repo *chartRepo) {
	count := func(p *countingProxy, kind string, do func()) {
		requests, bytes := p.requests.Load(), p.bytes.Load()
		do()
		results[fmt.Sprintf("one upgrade, %s, %s, %s: at the API server", major, state, kind)] =
			object{"requests": p.requests.Load() - requests, "reply bytes": p.bytes.Load() - bytes}
	}
	bare, bareConfig := startCounting(t, env.admin, dir)
	home := filepath.Join(dir, "home-counting")
	args := []string{"upgrade", "--install", "bare", chart, "-n", ns, "--set", "podAnnotations.round=count"}
	if state == "warm" {
		bareHelm(t, major, bareConfig, home, args...)
	}
	count(bare, "bare", func() { bareHelm(t, major, bareConfig, home, append(args, "--set", "podAnnotations.more=1")...) })
	ours, ourConfig := startCounting(t, env.belayConfig, dir)
	b := startBelay(t, "counted", belayOptions{ns: ns, dir: dir, helm: major, kubeconfig: ourConfig, flags: []string{"--watch-label-selector", "bench=counted"}})
	s := spec(repo, "podinfo-like", "1.0.0", object{"podAnnotations": object{"round": "0"}})
	s["releaseName"] = "counted"
	createHR(t, ns, "counted", s)
	label(t, ns, "counted", "bench=counted")
	waitReleased(t, ns, "counted", "True", 60*time.Second)
	if state == "cold" {
		forgetDiscovery(dir)
	}
	count(ours, "gate, belay's own included", func() { timeEdit(t, ns, "counted", 1) })
	b.stop(20 * time.Second)
}
