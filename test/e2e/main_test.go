// Package e2e runs belay against a real kube-apiserver with real helm and judges it by what the API server and Helm's
// history show. belay always runs with the ServiceAccount and RBAC of charts/belay, never as admin.
//
// Environment (set by `make e2e`): BELAY the binary, TOOLS the directory of devcluster, helm3, helm4, kubectl and chartserver,
// E2E_DIR a directory for logs and state, KUBECONFIG a cluster to use instead of starting one.
package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// env is what all tests share: one cluster, one admin client, the rights that belay gets.
var env struct {
	root, tools, dir, belay string
	admin                   string // kubeconfig of the cluster's admin
	belayConfig             string // kubeconfig of the chart's ServiceAccount
	rest                    *rest.Config
	kube                    *kubernetes.Clientset
	dyn                     *dynamic.DynamicClient
	own                     bool // we started the cluster
}

const (
	systemNamespace = "belay-system"
	serviceAccount  = "belay"
)

func fatal(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "e2e: "+format+"\n", args...)
	os.Exit(1)
}

func tool(name string) string { return filepath.Join(env.tools, name) }

func getenv(name, fallback string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return fallback
}

// run runs a command to its end and returns its output; it is for set-up, where any failure ends the whole run.
func run(name string, args ...string) string {
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		fatal("%s %s: %v", name, strings.Join(args, " "), err)
	}
	return string(out)
}

func startCluster() {
	if kubeconfig := os.Getenv("KUBECONFIG"); kubeconfig != "" {
		env.admin = kubeconfig
		return
	}
	dir := filepath.Join(env.dir, "cluster")
	fmt.Println("e2e: starting a control plane")
	_ = exec.Command(tool("devcluster"), "down", "--dir", dir).Run()
	cmd := exec.Command(tool("devcluster"), "up", "--dir", dir, "--bin", env.tools, "--audit")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		fatal("devcluster up: %v", err)
	}
	env.own = true
	env.admin = filepath.Join(dir, "kubeconfig")
}

func connect() {
	cfg, err := clientcmd.BuildConfigFromFlags("", env.admin)
	if err != nil {
		fatal("%v", err)
	}
	cfg.QPS, cfg.Burst = 500, 1000
	env.rest = cfg
	env.kube = kubernetes.NewForConfigOrDie(cfg)
	env.dyn = dynamic.NewForConfigOrDie(cfg)
}

// installChart applies what charts/belay renders for a user, but for the Deployment (no kubelet runs it: the tests do).
func installChart() {
	kubectl := tool("kubectl")
	run(kubectl, "--kubeconfig", env.admin, "apply", "--server-side", "-f", filepath.Join(env.root, "api/crd.yaml"))
	_ = exec.Command(kubectl, "--kubeconfig", env.admin, "create", "namespace", systemNamespace).Run()
	manifest := run(tool("helm3"), "template", "belay", filepath.Join(env.root, "charts/belay"), "--namespace", systemNamespace, "--kube-version", "1.37.2",
		"--set", "serviceAccount.name="+serviceAccount)
	var keep []string
	for _, doc := range strings.Split(manifest, "\n---") {
		for _, kind := range []string{"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"} {
			if strings.Contains(doc, "\nkind: "+kind+"\n") {
				keep = append(keep, doc)
			}
		}
	}
	file := filepath.Join(env.dir, "rbac.yaml")
	if err := os.WriteFile(file, []byte(strings.Join(keep, "\n---\n")), 0o600); err != nil {
		fatal("%v", err)
	}
	run(kubectl, "--kubeconfig", env.admin, "apply", "-n", systemNamespace, "-f", file)
}

// writeBelayConfig writes a kubeconfig with a token of the chart's ServiceAccount, as the kubelet would mount it.
func writeBelayConfig() {
	if err := rest.LoadTLSFiles(env.rest); err != nil {
		fatal("%v", err)
	}
	var err error
	if env.belayConfig, err = accountConfig("belay", serviceAccount, env.rest.Host, env.rest.CAData); err != nil {
		fatal("token of the chart's ServiceAccount: %v", err)
	}
}

// accountConfig writes NAME.kubeconfig with a token of a ServiceAccount of belay's namespace, for the API server at that address.
func accountConfig(name, account, server string, ca []byte) (string, error) {
	hours := int64(12 * 3600)
	req := &authv1.TokenRequest{Spec: authv1.TokenRequestSpec{ExpirationSeconds: &hours}}
	token, err := env.kube.CoreV1().ServiceAccounts(systemNamespace).CreateToken(context.Background(), account, req, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	file := func(kind string) string { return filepath.Join(env.dir, name+"."+kind) }
	config := map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "belay",
		"clusters": []any{map[string]any{"name": "c", "cluster": map[string]any{"server": server, "certificate-authority": file("crt")}}},
		"users":    []any{map[string]any{"name": "u", "user": map[string]any{"tokenFile": file("token")}}},
		"contexts": []any{map[string]any{"name": "belay", "context": map[string]any{"cluster": "c", "user": "u"}}},
	}
	text, _ := json.Marshal(config)
	for kind, content := range map[string][]byte{"token": []byte(token.Status.Token), "crt": ca, "kubeconfig": text} {
		if err := os.WriteFile(file(kind), content, 0o600); err != nil {
			return "", err
		}
	}
	return file("kubeconfig"), nil
}

func TestMain(m *testing.M) {
	flag.Parse()
	wd, _ := os.Getwd()
	env.root = filepath.Join(wd, "..", "..")
	abs := func(path string) string { p, _ := filepath.Abs(path); return p }
	env.tools = abs(getenv("TOOLS", filepath.Join(env.root, "build/bin")))
	env.belay = abs(getenv("BELAY", filepath.Join(env.root, "build/belay")))
	env.dir = abs(getenv("E2E_DIR", filepath.Join(env.root, "build/e2e")))
	if err := os.MkdirAll(env.dir, 0o755); err != nil {
		fatal("%v", err)
	}
	began := time.Now()
	startCluster()
	connect()
	installChart()
	writeBelayConfig()
	fmt.Printf("e2e: the control plane and the chart's rights are ready after %.1f s\n", time.Since(began).Seconds())
	code := m.Run()
	if env.own && os.Getenv("E2E_KEEP") == "" {
		_ = exec.Command(tool("devcluster"), "down", "--dir", filepath.Join(env.dir, "cluster")).Run()
	}
	os.Exit(code)
}
