package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// claim is what belay alone writes on a record.
type claim struct{ digest, epoch, owner, revision string }

func claimOf(r revision) claim {
	a := r.secret.Annotations
	const prefix = "belay.helm.fluxcd.io/"
	return claim{a[prefix+"digest"], a[prefix+"epoch"], a[prefix+"owner"], a[prefix+"revision"]}
}

// The claim stands on a record from its first moment, pending, and on each record its own.
func TestPendingRecordsCarryTheClaim(t *testing.T) {
	for _, major := range []string{"helm3", "helm4"} {
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			ns, dir := newNamespace(t)
			repo := startRepo(t, dir)
			repo.pack("slow", "0.1.0")
			startBelay(t, "a", belayOptions{ns: ns, dir: dir, helm: major})
			s := spec(repo, "slow", "0.1.0", object{"hold": true, "value": "r1"})
			s["releaseName"] = "x"
			hr := createHR(t, ns, "x", s)
			check := func(r revision) claim {
				t.Helper()
				u := getHR(t, ns, "x")
				c := claimOf(r)
				if !strings.HasPrefix(c.digest, "1:") || c.owner != string(hr.GetUID()) || c.revision != strconv.Itoa(r.n) {
					t.Errorf("revision %d, %s: %+v, want the owner %s", r.n, r.status, c, hr.GetUID())
				}
				if now := strconv.FormatInt(lockOf(u).epoch, 10); c.epoch != now {
					t.Errorf("revision %d, %s: epoch %s, the lock's is %s", r.n, r.status, c.epoch, now)
				}
				return c
			}
			waitRevision(t, ns, "x", 1, "pending-install")
			first := check(revisions(t, ns, "x")[0])
			stop := letHooksGo(t, ns)
			waitReleased(t, ns, "x", "True", 60*time.Second)
			stop()
			if got := check(revisions(t, ns, "x")[0]); got != first {
				t.Errorf("deployed with %+v, pending with %+v", got, first)
			}
			patchSpec(t, ns, "x", object{"values": object{"value": "r2"}})
			waitRevision(t, ns, "x", 2, "pending-upgrade")
			second := check(revisions(t, ns, "x")[1])
			if second.digest == first.digest || second.epoch == first.epoch {
				t.Errorf("two revisions with other values and epochs claim %+v and %+v", first, second)
			}
			letHooksGo(t, ns)
			waitReleased(t, ns, "x", "True", 60*time.Second)
			all := revisions(t, ns, "x")
			if got := check(all[1]); got != second {
				t.Errorf("deployed with %+v, pending with %+v", got, second)
			}
			if got := claimOf(all[0]); got != first || all[0].status != "superseded" {
				t.Errorf("revision 1 is %s with %+v, it had %+v", all[0].status, got, first)
			}
		})
	}
}

// `--wait` and hooks that take their time: watches and polls pass the gate, and it is Released when the Deployment is ready.
func TestWaitAndHooksThroughTheGate(t *testing.T) {
	for _, major := range []string{"helm3", "helm4"} {
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			ns, dir := newNamespace(t)
			repo := startRepo(t, dir)
			for _, chart := range []string{"podinfo-like", "hook", "slow"} {
				repo.pack(chart, "0.1.0")
			}
			startBelay(t, "a", belayOptions{ns: ns, dir: dir, helm: major, flags: []string{"--lease-timeout", "5s"}})
			s := spec(repo, "podinfo-like", "0.1.0", object{"faults": object{"notReady": true}})
			s["releaseName"], s["wait"] = "waits", true
			createHR(t, ns, "waits", s)
			waitRevision(t, ns, "waits", 1, "pending-install")
			stays(t, 7*time.Second, "helm waits for the Deployment", func() bool { return lockOf(getHR(t, ns, "waits")).held })
			letHooksGo(t, ns)
			waitReleased(t, ns, "waits", "True", 60*time.Second)
			patchSpec(t, ns, "waits", object{"values": object{"replicas": 2, "faults": object{"notReady": false}}})
			waitReleased(t, ns, "waits", "True", 60*time.Second)
			d, err := env.kube.AppsV1().Deployments(ns).Get(context.Background(), "waits", metav1.GetOptions{})
			if err != nil || d.Status.ReadyReplicas < 2 {
				t.Errorf("released with %d of 2 replicas ready: %v", d.Status.ReadyReplicas, err)
			}
			// Hooks that outlast the lease: a Job before the upgrade, a pod before the install.
			for _, row := range []struct{ chart, key string }{{"hook", "hook"}, {"slow", ""}} {
				for i, value := range []string{"r1", "r2"} {
					values := object{"value": value, "runFor": "6s"}
					if row.key != "" {
						values = object{"value": value, row.key: object{"runFor": "6s"}}
					}
					if i == 0 {
						s := spec(repo, row.chart, "0.1.0", values)
						s["releaseName"] = row.chart
						createHR(t, ns, row.chart, s)
					} else {
						patchSpec(t, ns, row.chart, object{"values": values})
					}
					waitReleased(t, ns, row.chart, "True", 60*time.Second)
				}
				if got := newest(t, ns, row.chart); got != 2 {
					t.Errorf("%s: revision %d, want 2", row.chart, got)
				}
			}
		})
	}
}

// copyChart copies a chart of test/charts into dir, with texts replaced, so that a test can make it its own.
func copyChart(t *testing.T, dir, chart string, replace ...string) string {
	t.Helper()
	to := filepath.Join(dir, "charts", chart)
	from := filepath.Join(env.root, "test/charts", chart)
	err := filepath.Walk(from, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(to, strings.TrimPrefix(path, from))
		if info.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(target, []byte(strings.NewReplacer(replace...).Replace(string(text))), 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// A record near the limit of a Secret passes, as helm's own, annotated.
func TestLargeRecordPassesTheGate(t *testing.T) {
	for _, major := range []string{"helm3", "helm4"} {
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			ns, dir := newNamespace(t)
			repo := startRepo(t, dir)
			chart := copyChart(t, dir, "one")
			// Random bytes cannot be packed; helm keeps the chart's files in the record, in base64 twice over.
			blob := make([]byte, 665<<10)
			rand.New(rand.NewSource(1)).Read(blob)
			if err := os.WriteFile(filepath.Join(chart, "blob.bin"), blob, 0o644); err != nil {
				t.Fatal(err)
			}
			repo.packDir(chart, "0.1.0")
			b := startBelay(t, "a", belayOptions{ns: ns, dir: dir, helm: major})
			s := spec(repo, "one", "0.1.0", object{"round": "0"})
			s["releaseName"] = "x"
			createHR(t, ns, "x", s)
			waitReleased(t, ns, "x", "True", 60*time.Second)
			for i := 1; i <= 3; i++ {
				patchSpec(t, ns, "x", object{"values": object{"round": strconv.Itoa(i)}})
				waitReleased(t, ns, "x", "True", 60*time.Second)
			}
			if got := newest(t, ns, "x"); got != 4 {
				t.Errorf("revision %d, want 4", got)
			}
			for _, r := range revisions(t, ns, "x") {
				size := len(r.secret.Data["release"])
				if size < 880<<10 {
					t.Errorf("revision %d: the record has %d KiB only", r.n, size>>10)
				}
				if c := claimOf(r); c.revision != strconv.Itoa(r.n) {
					t.Errorf("revision %d claims %+v", r.n, c)
				}
				if got := r.payload(t).Config["round"]; got != strconv.Itoa(r.n-1) {
					t.Errorf("revision %d holds round %v", r.n, got)
				}
			}
			t.Logf("belay's peak memory: %d MiB", b.procStatus("VmHWM:")>>10)
		})
	}
}

// A chart that brings its CRD: the kind is known to helm in the same run; a CRD that stands already is no conflict.
func TestChartWithCRDsThroughTheGate(t *testing.T) {
	for _, major := range []string{"helm3", "helm4"} {
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			ns, dir := newNamespace(t)
			repo := startRepo(t, dir)
			group := ns + ".example.test"
			repo.packDir(copyChart(t, dir, "gadget", "example.test", group), "0.1.0")
			t.Cleanup(func() {
				_ = exec.Command(tool("kubectl"), "--kubeconfig", env.admin, "delete", "crd", "gadgets."+group, "--wait=false").Run()
			})
			startBelay(t, "a", belayOptions{ns: ns, dir: dir, helm: major})
			gadgets := env.dyn.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: "gadgets"}).Namespace(ns)
			// The second one finds the CRD of the first.
			for _, name := range []string{"x", "y"} {
				s := spec(repo, "gadget", "0.1.0", object{"size": int64(1)})
				s["releaseName"] = name
				createHR(t, ns, name, s)
				waitReleased(t, ns, name, "True", 90*time.Second)
				patchSpec(t, ns, name, object{"values": object{"size": int64(2)}})
				waitReleased(t, ns, name, "True", 60*time.Second)
				if got := newest(t, ns, name); got != 2 {
					t.Errorf("%s: revision %d, want 2", name, got)
				}
				g, err := gadgets.Get(context.Background(), name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if size, _, _ := unstructured.NestedInt64(g.Object, "spec", "size"); size != 2 {
					t.Errorf("%s: size %d after the upgrade, want 2", name, size)
				}
			}
		})
	}
}

// spyHelm is a helm that leaves its arguments and its stderr in files beside what it does: DIR/TIME.args, DIR/TIME.err.
func spyHelm(t *testing.T, dir, major string) (path, notes string) {
	t.Helper()
	notes = filepath.Join(dir, "helm-runs")
	if err := os.MkdirAll(notes, 0o755); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "spy-"+major)
	// Not by a pipe to tee: belay kills whatever of helm's group is left when helm has ended.
	script := fmt.Sprintf("#!/bin/bash\nnote=%[1]s/${EPOCHREALTIME/[.,]/}\necho \"$@\" >$note.args\n%[2]s \"$@\" 2>$note.err\nrc=$?\n/bin/cat $note.err >&2\nexit $rc\n", notes, tool(major))
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path, notes
}

// spied returns the stderr of each run of `helm upgrade NAME`, in order.
func spied(t *testing.T, notes, name string) []string {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(notes, "*.args"))
	var all []string
	for _, f := range files {
		args, _ := os.ReadFile(f)
		if !bytes.HasPrefix(args, []byte("upgrade ")) || !strings.Contains(" "+strings.TrimSpace(string(args))+" ", " "+name+" ") {
			continue
		}
		text, _ := os.ReadFile(strings.TrimSuffix(f, ".args") + ".err")
		all = append(all, string(text))
	}
	return all
}

// stamps are what differs between any two runs: times, process numbers, identities of objects.
var stamps = regexp.MustCompile(`(?m)^[WIE]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ |\btime=\S+ |^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d ` +
	`|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ|resourceVersion[\\":]+\d+|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// remark is what Go's HTTP/1 client logs when helm lets go of a reply before its last chunk; without the gate helm speaks HTTP/2.
var remark = regexp.MustCompile(`(?m)^.*Unsolicited response received on idle HTTP channel.*\n`)

func plain(stderr string) string {
	return stamps.ReplaceAllString(remark.ReplaceAllString(stderr, ""), "~")
}

// What helm says through the gate is, byte for byte but for times, what helm says without it: errors of the client's own checks, of
// the API server, of discovery, and warnings.
func TestHelmSaysTheSameThroughTheGate(t *testing.T) {
	rows := []struct {
		name, says string // "": anything
		objects    string
		once       bool // not as an upgrade
	}{
		{"unknown-field", "nonsense", `[{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "NAME"}, "nonsense": "1"}]`, false},
		{"unknown-deep-field", "imagine", deployment(`{"name": "A", "imagine": "1"}`), false},
		{"wrong-type", "data", `[{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "NAME"}, "data": "not a map"}]`, true}, // an upgrade's error shows the object, to which belay adds an annotation
		{"wrong-number", "value", deployment(`{"name": "A", "value": 7}`), false},
		{"refused", "a_b", `[{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a_b"}}]`, false},
		{"unknown-kind", "Nothing", `[{"apiVersion": "none.example.test/v1", "kind": "Nothing", "metadata": {"name": "NAME"}}]`, false},
		{"unknown-version", "v9", `[{"apiVersion": "apps/v9", "kind": "Deployment", "metadata": {"name": "NAME"}}]`, false},
		{"second-refused", "x_y", `[{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "NAME"}}, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x_y"}}]`, false},
		{"another-release-owns-it", "owned", `[{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owned"}}]`, false},
		{"warning", "hides previous definition", deployment(`{"name": "A", "value": "1"}, {"name": "A", "value": "2"}`), false},
		{"in-order", "", `[{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "NAME"}}]`, true},
	}
	for _, major := range []string{"helm3", "helm4"} {
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			ns, dir := newNamespace(t)
			bare := ns + "-bare"
			createNamespace(t, bare)
			for _, in := range []string{ns, bare} {
				if _, err := env.kube.CoreV1().ConfigMaps(in).Create(context.Background(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owned"}}, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			repo := startRepo(t, dir)
			repo.pack("verbatim", "0.1.0")
			path, notes := spyHelm(t, dir, major)
			startBelay(t, "a", belayOptions{ns: ns, dir: dir, helm: path})
			for _, row := range rows {
				// Twice: as an install, and as an upgrade of a release that stands.
				good := rows[len(rows)-1].objects
				for i, first := range []string{row.objects, good} {
					if i == 1 && row.once {
						continue
					}
					name := fmt.Sprintf("%s-%d", row.name, i)
					steps := []string{first, row.objects}[:i+1]
					for step, text := range steps {
						values := []byte(`{"objects": ` + strings.ReplaceAll(text, "NAME", name) + `}`)
						got, u := sayThroughGate(t, repo, ns, notes, name, step, values)
						want, failed := sayBare(t, repo, major, bare, name, values)
						want = strings.ReplaceAll(want, bare, ns)
						if got != want {
							t.Errorf("%s, run %d:\nthrough the gate: %s\nwithout: %s", name, step, got, want)
						}
						if text == row.objects && !strings.Contains(want, row.says) {
							t.Errorf("%s, run %d: helm does not say %q: %s", name, step, row.says, want)
						}
						if released := conditionOf(u, "Released"); (released.status == "False") != failed {
							t.Errorf("%s, run %d: Released=%s, bare helm failed: %v", name, step, released.status, failed)
						} else if failed && !strings.Contains(released.message, lastWords(want)) && !strings.Contains(released.message, "[redacted]") {
							t.Errorf("%s, run %d: the condition says %q, helm %q", name, step, released.message, lastWords(want))
						}
					}
				}
			}
		})
	}
}

func deployment(env string) string {
	return `[{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "NAME"}, "spec": {"replicas": 0, "selector": {"matchLabels": {"a": "NAME"}},
		"template": {"metadata": {"labels": {"a": "NAME"}}, "spec": {"containers": [{"name": "c", "image": "example.test/c", "env": [` + env + `]}]}}}}]`
}

// lastWords is the end of helm's error: of one line, and without the prefixes and frames that belay takes off.
func lastWords(stderr string) string {
	words := strings.Fields(stderr[strings.LastIndex(stderr, "Error: ")+len("Error: "):])
	return strings.Join(words[max(0, len(words)-6):], " ")
}

// sayThroughGate gives the release these values and returns the stderr of belay's helm and the object when it is done.
func sayThroughGate(t *testing.T, repo *chartRepo, ns, notes, name string, step int, values []byte) (string, *unstructured.Unstructured) {
	t.Helper()
	var v object
	if err := json.Unmarshal(values, &v); err != nil {
		t.Fatal(err)
	}
	before := len(spied(t, notes, name))
	if step == 0 {
		s := spec(repo, "verbatim", "0.1.0", v)
		s["releaseName"] = name
		createHR(t, ns, name, s)
	} else {
		patchSpec(t, ns, name, object{"values": v})
	}
	var u *unstructured.Unstructured
	eventually(t, 60*time.Second, name+" is synced", func() bool {
		u = getHR(t, ns, name)
		status := conditionOf(u, "Released").status
		return observed(u) == u.GetGeneration() && (status == "True" || status == "False")
	})
	runs := spied(t, notes, name)
	if len(runs) != before+1 {
		t.Fatalf("%s: %d runs of helm for one change: %s", name, len(runs)-before, conditionOf(u, "Released").message)
	}
	return plain(runs[len(runs)-1]), u
}

func sayBare(t *testing.T, repo *chartRepo, major, ns, name string, values []byte) (stderr string, failed bool) {
	t.Helper()
	cmd := exec.Command(tool(major), "--kubeconfig", env.admin, "upgrade", name, filepath.Join(repo.dir, "verbatim-0.1.0.tgz"), "--install", "-n", ns, "-f", "-")
	if major == "helm4" {
		cmd.Args = append(cmd.Args, "--server-side=false") // as belay runs it
	}
	var out bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(values), &out
	failed = cmd.Run() != nil
	return plain(out.String()), failed
}

// Thirty-two helms at once through one gate.
func TestManyHelmsAtOnceThroughTheGate(t *testing.T) {
	const objects, limitMiB = 32, 150
	ns, dir := newNamespace(t)
	repo := startRepo(t, dir)
	repo.pack("podinfo-like", "0.1.0")
	b := startBelay(t, "a", belayOptions{ns: ns, dir: dir, flags: []string{"--workers", strconv.Itoa(objects)}})
	for i := 0; i < objects; i++ {
		s := spec(repo, "podinfo-like", "0.1.0", object{"replicas": int64(0)})
		s["releaseName"] = fmt.Sprintf("m%d", i)
		createHR(t, ns, fmt.Sprintf("m%d", i), s)
	}
	began := time.Now()
	waitAll(t, ns, objects, 5*time.Minute)
	installed := time.Since(began)
	for i := 0; i < objects; i++ {
		patchSpec(t, ns, fmt.Sprintf("m%d", i), object{"values": object{"port": int64(9000)}})
	}
	began = time.Now()
	waitAll(t, ns, objects, 5*time.Minute)
	for i := 0; i < objects; i++ {
		if got := newest(t, ns, fmt.Sprintf("m%d", i)); got != 2 {
			t.Errorf("m%d: revision %d, want 2", i, got)
		}
	}
	peak := b.procStatus("VmHWM:") >> 10
	fmt.Printf("e2e: %d helms at once: installs %.1f s, upgrades %.1f s, belay's peak memory %d MiB\n", objects, installed.Seconds(), time.Since(began).Seconds(), peak)
	if peak > limitMiB {
		t.Errorf("belay's peak memory was %d MiB, want at most %d", peak, limitMiB)
	}
}

// A helm that is killed at any moment, also in the middle of a request, harms nobody: belay tells it, goes on, and keeps no
// descriptor and no thread of it.
func TestKilledHelmLeaksNothing(t *testing.T) {
	ns, dir := newNamespace(t)
	random := newRandom(t)
	repo := startRepo(t, dir)
	repo.pack("thirty", "0.1.0")
	seen := record(t, ns)
	b := startBelay(t, "a", belayOptions{ns: ns, dir: dir})
	s := spec(repo, "thirty", "0.1.0", object{"value": "start", "runFor": "0s"})
	s["releaseName"], s["maxHistory"] = "x", int64(5)
	createHR(t, ns, "x", s)
	waitReleased(t, ns, "x", "True", 60*time.Second)
	edit := func(value string) (mark int, gen int64) {
		mark = seen.mark()
		return mark, patchSpec(t, ns, "x", object{"values": object{"value": value}})
	}
	released := func(mark int, gen int64) time.Time {
		_, at := seen.await(t, mark, "x", 60*time.Second, "released", releasedTrue(gen))
		return at
	}
	usual := time.Duration(0)
	for i := 0; i < 3; i++ {
		began := time.Now()
		mark, gen := edit(fmt.Sprintf("warm%d", i))
		usual = max(usual, released(mark, gen).Sub(began))
	}
	// The first kills fill belay's pool of connections, at three descriptors each; from then on one a kill would be twelve.
	const warm, slack = 3, 9
	var files []string
	threads, killed := 0, 0
	for i := 0; killed < warm+max(12, rounds(12)); i++ {
		if i > 500 {
			t.Fatalf("only %d helms could be killed in time", killed)
		}
		if killed == warm && files == nil {
			released(edit("quiet"))
			files, threads = b.descriptors(), b.procStatus("Threads:")
		}
		mark, gen := edit(fmt.Sprintf("r%d", i))
		helm := 0
		eventually(t, 20*time.Second, "helm runs", func() bool {
			if all := b.descendants(); len(all) > 0 {
				helm = all[0]
			}
			u := getHR(t, ns, "x")
			return helm != 0 || observed(u) == gen && !lockOf(u).held
		})
		time.Sleep(time.Duration(random.Int63n(int64(usual))))
		if helm != 0 && syscall.Kill(helm, syscall.SIGKILL) == nil {
			killed++
		}
		seen.await(t, mark, "x", 60*time.Second, "the lock is free again", func(u *unstructured.Unstructured) bool {
			return observed(u) == gen && !lockOf(u).held && conditionOf(u, "Released").status != "Unknown"
		})
	}
	mark, gen := edit("end")
	released(mark, gen)
	newest(t, ns, "x")
	for _, r := range revisions(t, ns, "x") {
		if strings.HasPrefix(r.status, "pending-") {
			t.Errorf("revision %d is %s", r.n, r.status)
		}
	}
	if !b.running() {
		t.Fatal("belay has ended")
	}
	var after []string
	eventuallyf(t, 30*time.Second, func() string {
		return fmt.Sprintf("descriptors as before:\n%s\nnow:\n%s\nthreads %d, now %d", strings.Join(files, " "), strings.Join(after, " "), threads, b.procStatus("Threads:"))
	}, func() bool {
		after = b.descriptors()
		return len(after) <= len(files)+slack && b.procStatus("Threads:") <= threads
	})
	t.Logf("%d helms killed; descriptors %d, then %d; threads %d, then %d", killed, len(files), len(after), threads, b.procStatus("Threads:"))
	seen.checkTruth(t)
}
