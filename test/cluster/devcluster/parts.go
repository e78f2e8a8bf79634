package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
)

const (
	partEtcd      = "etcd"
	partAPIServer = "kube-apiserver"
	partManager   = "kube-controller-manager"
	partScheduler = "kube-scheduler"
	partKwok      = "kwok"
)

// part is one process of a control plane.
type part struct {
	name    string
	program string // file in the binaries' directory
	args    func(c *cluster) []string
	ready   func(ctx context.Context, c *cluster) error
}

// parts in the order in which they start.
var parts = []part{
	{partEtcd, "controlplane", etcdArgs, func(ctx context.Context, c *cluster) error {
		body, err := c.get(ctx, c.etcdURL()+"/health")
		if err == nil && !strings.Contains(string(body), `"health":"true"`) {
			err = fmt.Errorf("%s", body)
		}
		return err
	}},
	{partAPIServer, "controlplane", apiServerArgs, func(ctx context.Context, c *cluster) error {
		_, err := c.get(ctx, c.apiURL()+"/readyz")
		return err
	}},
	{partManager, "controlplane", managerArgs, func(ctx context.Context, c *cluster) error {
		_, err := c.get(ctx, fmt.Sprintf("https://127.0.0.1:%d/healthz", c.ports[partManager]))
		return err
	}},
	{partScheduler, "controlplane", schedulerArgs, func(ctx context.Context, c *cluster) error {
		_, err := c.get(ctx, fmt.Sprintf("https://127.0.0.1:%d/readyz", c.ports[partScheduler]))
		return err
	}},
	{partKwok, "kwok", kwokArgs, func(ctx context.Context, c *cluster) error {
		_, err := c.get(ctx, fmt.Sprintf("http://127.0.0.1:%d/readyz", c.ports[partKwok]))
		return err
	}},
}

// partsNamed resolves names from the command line; the usual short names are good too.
func partsNamed(names []string) ([]part, error) {
	short := map[string]string{"apiserver": partAPIServer, "controller-manager": partManager, "kcm": partManager,
		"scheduler": partScheduler}
	var found []part
next:
	for _, name := range names {
		for _, p := range parts {
			if p.name == name || p.name == short[name] {
				found = append(found, p)
				continue next
			}
		}
		return nil, fmt.Errorf("%w: no part is called %q", errUsage, name)
	}
	return found, nil
}

func etcdArgs(c *cluster) []string {
	peer := fmt.Sprintf("http://127.0.0.1:%d", c.ports["etcd-peer"])
	return []string{"etcd", "--name=dev", "--data-dir=" + filepath.Join(c.dir, "etcd"),
		"--listen-client-urls=" + c.etcdURL(), "--advertise-client-urls=" + c.etcdURL(),
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=dev=" + peer,
		// A crash of the machine may lose data here; a crash of the process does not.
		"--unsafe-no-fsync", "--log-level=error"}
}

func apiServerArgs(c *cluster) []string {
	pki := func(file string) string { return filepath.Join(c.dir, "pki", file) }
	args := []string{"kube-apiserver", "--etcd-servers=" + c.etcdURL(),
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.ports[partAPIServer]),
		"--tls-cert-file=" + pki("apiserver.crt"), "--tls-private-key-file=" + pki("apiserver.key"),
		"--client-ca-file=" + pki("ca.crt"),
		"--service-account-key-file=" + pki("sa.key"), "--service-account-signing-key-file=" + pki("sa.key"),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.96.0.0/16",
		"--authorization-mode=RBAC", "--allow-privileged", "--endpoint-reconciler-type=none",
		// No node-lifecycle-controller runs that would take the taint of a new node off again.
		"--disable-admission-plugins=TaintNodesByCondition",
		// Else a stop waits a minute for every open watch.
		"--shutdown-watch-termination-grace-period=1s"}
	if c.Audit {
		// One file, unrotated: tests count its lines.
		args = append(args, "--audit-policy-file="+filepath.Join(c.dir, "audit-policy.yaml"),
			"--audit-log-path="+filepath.Join(c.dir, "audit.log"), "--audit-log-maxsize=0")
	}
	for _, arg := range c.APIServerArgs {
		args = append(args, "--"+strings.TrimLeft(arg, "-"))
	}
	return args
}

const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
`

// clientArgs are what the controller manager and the scheduler share.
func clientArgs(c *cluster, name string) []string {
	kubeconfig := c.kubeconfigOf(name)
	return []string{name, "--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig, "--leader-elect=false", "--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", c.ports[name]), "--cert-dir=" + filepath.Join(c.dir, "certs-"+name),
		// The built-in limit of 20 requests a second would make tests with hundreds of releases
		// measure it.
		"--kube-api-qps=500", "--kube-api-burst=1000"}
}

func managerArgs(c *cluster) []string {
	// What Deployments, Jobs, deletion and RBAC need; the others would only cost memory.
	controllers := []string{"clusterrole-aggregation-controller", "cronjob-controller", "daemonset-controller",
		"deployment-controller", "disruption-controller", "endpointslice-controller", "garbage-collector-controller",
		"job-controller", "namespace-controller", "replicaset-controller", "root-ca-certificate-publisher-controller",
		"serviceaccount-controller", "statefulset-controller", "ttl-after-finished-controller"}
	return append(clientArgs(c, partManager), "--service-account-private-key-file="+filepath.Join(c.dir, "pki", "sa.key"),
		"--root-ca-file="+filepath.Join(c.dir, "pki", "ca.crt"), "--controllers="+strings.Join(controllers, ","))
}

func schedulerArgs(c *cluster) []string { return clientArgs(c, partScheduler) }

func kwokArgs(c *cluster) []string {
	return []string{"--kubeconfig=" + c.kubeconfigOf(partKwok), "--config=" + filepath.Join(c.dir, "stages.yaml"),
		"--manage-all-nodes=true", "--node-lease-duration-seconds=40",
		fmt.Sprintf("--server-address=127.0.0.1:%d", c.ports[partKwok])}
}
