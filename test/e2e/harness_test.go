package e2e

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

var helmReleases = schema.GroupVersionResource{Group: "helm.fluxcd.io", Version: "v1", Resource: "helmreleases"}

type object = map[string]any

// ---- namespaces ----

var nameChars = regexp.MustCompile(`[^a-z0-9-]+`)

// newNamespace makes a namespace that only this test uses, and a directory for its files.
func newNamespace(t *testing.T) (ns, dir string) {
	t.Helper()
	base := nameChars.ReplaceAllString(strings.ToLower(strings.TrimPrefix(t.Name(), "Test")), "-")
	if len(base) > 24 {
		base = base[:24]
	}
	ns = fmt.Sprintf("%s-%x", strings.Trim(base, "-"), time.Now().UnixNano()&0xffffff)
	createNamespace(t, ns)
	dir = filepath.Join(env.dir, ns)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return ns, dir
}

func createNamespace(t *testing.T, ns string) {
	t.Helper()
	_, err := env.kube.CoreV1().Namespaces().Create(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// ---- belay ----

// replica is one belay process.
type replica struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	log  string
	port int
	done chan struct{}
	code int
}

type belayOptions struct {
	ns         string // --allow-namespace; "" = all
	dir        string
	helm       string // helm3, helm4 or a path
	kubeconfig string // "" = that of the chart's ServiceAccount
	flags      []string
	env        []string
}

var portLine = regexp.MustCompile(`"port":(\d+)`)

// startBelay starts a replica and waits until its caches are filled.
func startBelay(t *testing.T, name string, o belayOptions) *replica {
	t.Helper()
	r := launchBelay(t, name, o)
	r.waitLog("caches are filled", 30*time.Second)
	text, _ := os.ReadFile(r.log)
	if m := portLine.FindSubmatch(text); m != nil {
		r.port, _ = strconv.Atoi(string(m[1]))
	}
	return r
}

func launchBelay(t *testing.T, name string, o belayOptions) *replica {
	t.Helper()
	if o.helm == "" {
		o.helm = "helm3"
	}
	if o.kubeconfig == "" {
		o.kubeconfig = env.belayConfig
	}
	if !filepath.IsAbs(o.helm) {
		o.helm = tool(o.helm)
	}
	r := &replica{t: t, name: name, log: filepath.Join(o.dir, fmt.Sprintf("%s-%d.log", name, time.Now().UnixNano()%1e9)), done: make(chan struct{})}
	args := []string{"--kubeconfig", o.kubeconfig, "--helm", o.helm, "--cache-dir", filepath.Join(o.dir, "cache-"+name),
		"--listen", "127.0.0.1:0", "--log-format", "json", "--log-level", "debug", "--identity", name}
	if o.ns != "" {
		args = append(args, "--allow-namespace", o.ns)
	}
	r.cmd = exec.Command(env.belay, append(args, o.flags...)...)
	r.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + o.dir}, o.env...)
	out, err := os.Create(r.log)
	if err != nil {
		t.Fatal(err)
	}
	r.cmd.Stdout, r.cmd.Stderr = out, out
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = r.cmd.Wait()
		r.code = r.cmd.ProcessState.ExitCode()
		_ = out.Close()
		close(r.done)
	}()
	t.Cleanup(func() {
		r.kill()
		if t.Failed() {
			t.Logf("log of %s: %s\n%s", name, r.log, tail(r.log, 40))
		}
	})
	return r
}

func tail(file string, n int) string {
	text, _ := os.ReadFile(file)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "\n")
}

func (r *replica) running() bool {
	select {
	case <-r.done:
		return false
	default:
		return true
	}
}

func (r *replica) signal(s syscall.Signal) {
	if r.running() {
		_ = r.cmd.Process.Signal(s)
	}
}

// kill is kill -9 of belay alone; its helm must die with it.
func (r *replica) kill() {
	r.signal(syscall.SIGKILL)
	<-r.done
}

// stop is SIGTERM; it returns the exit code.
func (r *replica) stop(within time.Duration) int {
	r.t.Helper()
	r.signal(syscall.SIGTERM)
	select {
	case <-r.done:
		return r.code
	case <-time.After(within):
		r.t.Fatalf("%s did not end within %v of SIGTERM", r.name, within)
		return -1
	}
}

func (r *replica) waitLog(text string, within time.Duration) {
	r.t.Helper()
	eventually(r.t, within, fmt.Sprintf("%s logs %q", r.name, text), func() bool {
		content, _ := os.ReadFile(r.log)
		if !r.running() && !bytes.Contains(content, []byte(text)) {
			r.t.Fatalf("%s ended (exit %d) before it logged %q:\n%s", r.name, r.code, text, tail(r.log, 20))
		}
		return bytes.Contains(content, []byte(text))
	})
}

func (r *replica) logged(text string) bool {
	content, _ := os.ReadFile(r.log)
	return bytes.Contains(content, []byte(text))
}

// rss is the resident set in KiB.
func (r *replica) rss() int { return r.procStatus("VmRSS:") }

// procStatus is a number from /proc/PID/status: VmHWM: (KiB), Threads: ...
func (r *replica) procStatus(field string) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.cmd.Process.Pid))
	for _, line := range strings.Split(string(text), "\n") {
		if strings.HasPrefix(line, field) {
			n, _ := strconv.Atoi(strings.Fields(line)[1])
			return n
		}
	}
	return 0
}

// descriptors are the open files of the process, as links of /proc show them.
func (r *replica) descriptors() []string {
	dir := fmt.Sprintf("/proc/%d/fd", r.cmd.Process.Pid)
	entries, _ := os.ReadDir(dir)
	var all []string
	for _, e := range entries {
		target, _ := os.Readlink(filepath.Join(dir, e.Name()))
		all = append(all, target)
	}
	sort.Strings(all)
	return all
}

// descendants are the living processes below this one; its helm is among them.
func (r *replica) descendants() []int {
	children := map[int][]int{}
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, f := range files {
		text, _ := os.ReadFile(f)
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if len(fields) < 2 || fields[0] == "Z" {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		parent, _ := strconv.Atoi(fields[1])
		children[parent] = append(children[parent], pid)
	}
	var all []int
	for next := children[r.cmd.Process.Pid]; len(next) > 0; {
		all = append(all, next...)
		var below []int
		for _, pid := range next {
			below = append(below, children[pid]...)
		}
		next = below
	}
	return all
}

func (r *replica) get(path string) (int, string) {
	r.t.Helper()
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", r.port, path))
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body)
}

// metric is the value of a series without labels.
func (r *replica) metric(name string) float64 {
	_, body := r.get("/metrics")
	for _, line := range strings.Split(body, "\n") {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			v, _ := strconv.ParseFloat(rest, 64)
			return v
		}
	}
	r.t.Fatalf("no metric %s", name)
	return 0
}

// ---- chart repository ----

type chartRepo struct {
	t   *testing.T
	dir string
	url string
	log string
}

// startRepo serves a repository with the named charts of test/charts.
func startRepo(t *testing.T, dir string, flags ...string) *chartRepo {
	t.Helper()
	repo := &chartRepo{t: t, dir: filepath.Join(dir, "repo"), log: filepath.Join(dir, "chartserver.log")}
	addrFile := filepath.Join(dir, "addr")
	_ = os.Remove(addrFile)
	if err := os.MkdirAll(repo.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(repo.log)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(tool("chartserver"), append([]string{"--listen", "127.0.0.1:0", "--dir", repo.dir, "--addr-file", addrFile}, flags...)...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait(); _ = out.Close() })
	eventually(t, 10*time.Second, "the chart server listens", func() bool {
		text, err := os.ReadFile(addrFile)
		repo.url = "http://" + strings.TrimSpace(string(text)) + "/"
		return err == nil && len(bytes.TrimSpace(text)) > 0
	})
	return repo
}

func (r *chartRepo) pack(chart, version string) {
	r.t.Helper()
	r.packDir(filepath.Join(env.root, "test/charts", chart), version)
}

func (r *chartRepo) packDir(chart, version string) {
	r.t.Helper()
	args := []string{"pack", "--dir", r.dir}
	if version != "" {
		args = append(args, "--version", version)
	}
	args = append(args, chart)
	if out, err := exec.Command(tool("chartserver"), args...).CombinedOutput(); err != nil {
		r.t.Fatalf("pack %s: %v\n%s", chart, err, out)
	}
}

func (r *chartRepo) post(path string) {
	r.t.Helper()
	resp, err := http.Post(strings.TrimSuffix(r.url, "/")+path, "text/plain", nil)
	if err != nil {
		r.t.Fatal(err)
	}
	_ = resp.Body.Close()
}

// waitDownload waits until a chart is being downloaded.
func (r *chartRepo) waitDownload() {
	r.t.Helper()
	resp, err := http.Get(strings.TrimSuffix(r.url, "/") + "/-/downloads?n=1&wait=20s")
	if err != nil {
		r.t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != 200 {
		r.t.Fatalf("no download has begun: %s", resp.Status)
	}
}

// requests counts log lines that hold all the given texts.
func (r *chartRepo) requests(texts ...string) int {
	file, err := os.Open(r.log)
	if err != nil {
		r.t.Fatal(err)
	}
	defer file.Close()
	n := 0
	for s := bufio.NewScanner(file); s.Scan(); {
		ok := true
		for _, text := range texts {
			ok = ok && strings.Contains(s.Text(), text)
		}
		if ok {
			n++
		}
	}
	return n
}

// ---- HelmReleases ----

func spec(repo *chartRepo, chart, version string, values object) object {
	return object{"chart": object{"repository": repo.url, "name": chart, "version": version}, "values": values}
}

func createHR(t *testing.T, ns, name string, spec object) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{Object: object{"apiVersion": "helm.fluxcd.io/v1", "kind": "HelmRelease",
		"metadata": object{"namespace": ns, "name": name}, "spec": spec}}
	out, err := env.dyn.Resource(helmReleases).Namespace(ns).Create(context.Background(), u, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func getHR(t *testing.T, ns, name string) *unstructured.Unstructured {
	t.Helper()
	u, err := env.dyn.Resource(helmReleases).Namespace(ns).Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// patchSpec merges into the spec and returns the new generation.
func patchSpec(t *testing.T, ns, name string, spec object) int64 {
	t.Helper()
	body, _ := json.Marshal(object{"spec": spec})
	u, err := env.dyn.Resource(helmReleases).Namespace(ns).Patch(context.Background(), name, types.MergePatchType, body, metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return u.GetGeneration()
}

func deleteHR(t *testing.T, ns, name string) {
	t.Helper()
	if err := env.dyn.Resource(helmReleases).Namespace(ns).Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

type condition struct{ status, reason, message string }

func conditionOf(u *unstructured.Unstructured, kind string) condition {
	list, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, item := range list {
		c, _ := item.(object)
		if c["type"] == kind {
			text := func(name string) string { s, _ := c[name].(string); return s }
			return condition{text("status"), text("reason"), text("message")}
		}
	}
	return condition{}
}

func observed(u *unstructured.Unstructured) int64 {
	n, _, _ := unstructured.NestedInt64(u.Object, "status", "observedGeneration")
	return n
}

func statusText(u *unstructured.Unstructured, path ...string) string {
	s, _, _ := unstructured.NestedString(u.Object, append([]string{"status"}, path...)...)
	return s
}

// waitReleased waits for Released=want at the object's own generation.
func waitReleased(t *testing.T, ns, name, want string, within time.Duration) *unstructured.Unstructured {
	t.Helper()
	var last *unstructured.Unstructured
	describe := func() string {
		if last == nil {
			return "no object"
		}
		text, _ := json.Marshal(last.Object["status"])
		return string(text)
	}
	eventuallyf(t, within, func() string { return fmt.Sprintf("%s/%s Released=%s; its status: %s", ns, name, want, describe()) }, func() bool {
		last = getHR(t, ns, name)
		return observed(last) == last.GetGeneration() && conditionOf(last, "Released").status == want
	})
	return last
}

// ---- Helm's history ----

type revision struct {
	n      int
	status string
	secret corev1.Secret
}

// payload is what Helm stored: the truth of which the labels are a copy.
type payload struct {
	Info     struct{ Status, Description string }
	Config   object
	Manifest string
}

func (r revision) payload(t *testing.T) payload {
	t.Helper()
	var p payload
	packed, err := base64.StdEncoding.DecodeString(string(r.secret.Data["release"]))
	if err != nil {
		t.Fatalf("%s: %v", r.secret.Name, err)
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatalf("%s: %v", r.secret.Name, err)
	}
	if err := json.NewDecoder(unpacked).Decode(&p); err != nil {
		t.Fatalf("%s: %v", r.secret.Name, err)
	}
	return p
}

func revisions(t *testing.T, ns, release string) []revision {
	t.Helper()
	list, err := env.kube.CoreV1().Secrets(ns).List(context.Background(), metav1.ListOptions{LabelSelector: "owner=helm,name=" + release})
	if err != nil {
		t.Fatal(err)
	}
	var all []revision
	for _, s := range list.Items {
		n, _ := strconv.Atoi(s.Labels["version"])
		all = append(all, revision{n, s.Labels["status"], s})
	}
	sort.Slice(all, func(i, j int) bool { return all[i].n < all[j].n })
	return all
}

// deployments remembers which revisions were ever seen as deployed. What stands as superseded says less: helm also supersedes a failed
// revision, if it finds no deployed one when it upgrades.
type deployments struct {
	mu   sync.Mutex
	seen map[string]bool // Secrets
}

func recordDeployments(t *testing.T, ns string) *deployments {
	t.Helper()
	w, err := env.kube.CoreV1().Secrets(ns).Watch(context.Background(), metav1.ListOptions{LabelSelector: "owner=helm,status=deployed"})
	if err != nil {
		t.Fatal(err)
	}
	d := &deployments{seen: map[string]bool{}}
	go func() {
		for ev := range w.ResultChan() {
			if s, ok := ev.Object.(*corev1.Secret); ok {
				d.mu.Lock()
				d.seen[s.Name] = true
				d.mu.Unlock()
			}
		}
	}()
	t.Cleanup(w.Stop)
	return d
}

// of returns the revisions with this value under the key that were ever deployed.
func (d *deployments) of(t *testing.T, all []revision, key, value string) (numbers []int) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range all {
		if (r.status == "deployed" || d.seen[r.secret.Name]) && r.payload(t).Config[key] == value {
			numbers = append(numbers, r.n)
		}
	}
	return numbers
}

// newest is the number of the newest revision; it must be deployed.
func newest(t *testing.T, ns, release string) int {
	t.Helper()
	all := revisions(t, ns, release)
	if len(all) == 0 {
		return 0
	}
	last := all[len(all)-1]
	if last.status != "deployed" {
		t.Errorf("%s/%s: newest revision %d is %s, not deployed", ns, release, last.n, last.status)
	}
	deployed := 0
	for _, r := range all {
		if r.status == "deployed" {
			deployed++
		}
	}
	if deployed != 1 {
		t.Errorf("%s/%s: %d deployed revisions, want 1", ns, release, deployed)
	}
	return last.n
}

// helm runs helm as a person would, with the admin's rights.
func helm(t *testing.T, major string, args ...string) string {
	t.Helper()
	cmd := exec.Command(tool(major), append([]string{"--kubeconfig", env.admin}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", major, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// ---- watching ----

// recorder keeps every version of the HelmReleases of a namespace, in the order in which a watcher sees them.
type recorder struct {
	mu     sync.Mutex
	events []*unstructured.Unstructured
	at     []time.Time // when each was seen
	stop   func()
}

func record(t *testing.T, ns string) *recorder {
	t.Helper()
	w, err := env.dyn.Resource(helmReleases).Namespace(ns).Watch(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{stop: w.Stop}
	go func() {
		for ev := range w.ResultChan() {
			if u, ok := ev.Object.(*unstructured.Unstructured); ok && ev.Type != watch.Bookmark {
				r.mu.Lock()
				r.events, r.at = append(r.events, u), append(r.at, time.Now())
				r.mu.Unlock()
			}
		}
	}()
	t.Cleanup(w.Stop)
	return r
}

func (r *recorder) all() []*unstructured.Unstructured {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*unstructured.Unstructured(nil), r.events...)
}

// mark is a place in the record: await looks only at what came after it.
func (r *recorder) mark() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.events)
}

// await returns the first version of the named object after the mark that fulfils ok, and when it was seen.
func (r *recorder) await(t *testing.T, mark int, name string, within time.Duration, what string, ok func(u *unstructured.Unstructured) bool) (*unstructured.Unstructured, time.Time) {
	t.Helper()
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		r.mu.Lock()
		events, at := r.events[mark:], r.at[mark:]
		r.mu.Unlock()
		for i, u := range events {
			if u.GetName() == name && ok(u) {
				return u, at[i]
			}
		}
		mark += len(events)
	}
	t.Fatalf("not within %v: %s; the status: %v", within, what, r.lastStatus(name))
	return nil, time.Time{}
}

func (r *recorder) lastStatus(name string) string {
	text := "none was seen"
	for _, u := range r.all() {
		if u.GetName() == name {
			status, _ := json.Marshal(u.Object["status"])
			text = string(status)
		}
	}
	return text
}

// lockView is what a HelmRelease says about its lock.
type lockView struct {
	holder string // pod/uid/incarnation
	epoch  int64
	held   bool
}

func (l lockView) replica() string { name, _, _ := strings.Cut(l.holder, "/"); return name }

func lockOf(u *unstructured.Unstructured) lockView {
	epoch, _, _ := unstructured.NestedInt64(u.Object, "status", "lease", "leaseTransitions")
	holder := statusText(u, "lease", "holderIdentity")
	return lockView{holder, epoch, conditionOf(u, "Released").status == "Unknown" && holder != ""}
}

func releasedTrue(gen int64) func(u *unstructured.Unstructured) bool {
	return func(u *unstructured.Unstructured) bool {
		return observed(u) == gen && conditionOf(u, "Released").status == "True"
	}
}

func heldAt(gen int64) func(u *unstructured.Unstructured) bool {
	return func(u *unstructured.Unstructured) bool { return observed(u) == gen && lockOf(u).held }
}

// checkTruth judges every version that a watcher could see (cases 13, 19; kstatus; P5, P6 of docs/lock.md).
func (r *recorder) checkTruth(t *testing.T) {
	t.Helper()
	type state struct{ epoch, observed, syncedAt int64 }
	last := map[string]*state{}
	for _, u := range r.all() {
		key := u.GetName()
		s := last[key]
		if s == nil {
			s = &state{observed: -1, syncedAt: -1}
			last[key] = s
		}
		released := conditionOf(u, "Released")
		epoch, _, _ := unstructured.NestedInt64(u.Object, "status", "lease", "leaseTransitions")
		gen := observed(u)
		where := fmt.Sprintf("%s at resourceVersion %s", key, u.GetResourceVersion())
		if gen > u.GetGeneration() {
			t.Errorf("%s: observedGeneration %d passed generation %d", where, gen, u.GetGeneration())
		}
		if gen < s.observed {
			t.Errorf("%s: observedGeneration went back from %d to %d", where, s.observed, gen)
		}
		if epoch < s.epoch {
			t.Errorf("%s: the epoch fell from %d to %d", where, s.epoch, epoch)
		}
		if gen > s.observed && released.status == "True" {
			t.Errorf("%s: the new observedGeneration %d came together with Released=True", where, gen)
		}
		if k := kstatus(u); released.status == "Unknown" && k == "Current" {
			t.Errorf("%s: kstatus reads Current during the sync", where)
		}
		s.observed, s.epoch = gen, epoch
	}
}

// kstatus computes what sigs.k8s.io/cli-utils' kstatus says, by its rules for custom resources.
func kstatus(u *unstructured.Unstructured) string {
	if u.GetDeletionTimestamp() != nil {
		return "Terminating"
	}
	if gen, found, _ := unstructured.NestedInt64(u.Object, "status", "observedGeneration"); found && gen != u.GetGeneration() {
		return "InProgress"
	}
	list, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, item := range list {
		c, _ := item.(object)
		if c["type"] == "Reconciling" && c["status"] == "True" {
			return "InProgress"
		}
		if c["type"] == "Stalled" && c["status"] == "True" {
			return "Failed"
		}
	}
	switch conditionOf(u, "Ready").status {
	case "True":
		return "Current"
	case "False", "Unknown":
		return "InProgress"
	}
	return "Current"
}

// ---- waiting ----

// eventually polls a condition; the deadline is a bound on hangs, not a measurement.
func eventually(t *testing.T, within time.Duration, what string, ok func() bool) {
	t.Helper()
	eventuallyf(t, within, func() string { return what }, ok)
}

func eventuallyf(t *testing.T, within time.Duration, what func() string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", within, what())
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// rounds is how often a test repeats what it proves: BELAY_ROUNDS, or what a run of the whole suite can afford.
func rounds(fallback int) int {
	if n, err := strconv.Atoi(os.Getenv("BELAY_ROUNDS")); err == nil && n > 0 {
		return n
	}
	return fallback
}

// letHooksGo takes belay.test/hold off every pod of the namespace, also off those that come later, until stop is called.
func letHooksGo(t *testing.T, ns string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	body := []byte(`{"metadata":{"annotations":{"belay.test/hold":null}}}`)
	go func() {
		defer close(ended)
		for ; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
			pods, err := env.kube.CoreV1().Pods(ns).List(context.Background(), metav1.ListOptions{})
			if err != nil {
				continue
			}
			for _, pod := range pods.Items {
				if pod.Annotations["belay.test/hold"] == "true" {
					_, _ = env.kube.CoreV1().Pods(ns).Patch(context.Background(), pod.Name, types.MergePatchType, body, metav1.PatchOptions{})
				}
			}
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-ended })
	t.Cleanup(stop)
	return stop
}
