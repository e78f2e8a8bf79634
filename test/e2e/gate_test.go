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

// spyHelm is a helm that leaves its arguments and its stderr in files beside what it does: DIR/PID.args, DIR/PID.err.
func spyHelm(t *testing.T, dir, major string) (path, notes string) {
	t.Helper()
	notes = filepath.Join(dir, "helm-runs")
	if err := os.MkdirAll(notes, 0o755); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "spy-"+major)
	script := fmt.Sprintf("#!/bin/bash\necho \"$@\" >%[1]s/$$.args\nexec %[2]s \"$@\" 2> >(exec /usr/bin/tee %[1]s/$$.err >&2)\n", notes, tool(major))
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path, notes
}

// spied returns the stderr of each run of `helm upgrade NAME`.
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

var stamps = regexp.MustCompile(`(?m)^([WIE])\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ |\btime=\S+ |^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d `)

// What helm says through the gate is, byte for byte but for times, what helm says without it: errors of the client's own checks, of
// the API server, of discovery, and warnings.
func TestHelmSaysTheSameThroughTheGate(t *testing.T) {
	pod := func(env ...any) object {
		return object{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": object{"name": "d"}, "spec": object{
			"selector": object{"matchLabels": object{"a": "b"}}, "template": object{"metadata": object{"labels": object{"a": "b"}},
				"spec": object{"containers": []any{object{"name": "c", "image": "example.test/c", "env": env}}}}}}
	}
	configMap := func(fields object) object {
		o := object{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": "c"}, "data": object{"a": "b"}}
		merge(o, fields)
		return o
	}
	rows := []struct {
		name, says string
		released   string
		objects    []any
	}{
		{"unknown-field", "nonsense", "False", []any{configMap(object{"nonsense": "1"})}},
		{"unknown-deep-field", "imagine", "False", []any{pod(object{"name": "A", "imagine": "1"})}},
		{"wrong-type", "data", "False", []any{configMap(object{"data": "not a map"})}},
		{"wrong-number", "env", "False", []any{pod(object{"name": "A", "value": int64(7)})}},
		{"refused", "c_d", "False", []any{configMap(object{"metadata": object{"name": "c_d"}})}},
		{"unknown-kind", "Nothing", "False", []any{object{"apiVersion": "none.example.test/v1", "kind": "Nothing", "metadata": object{"name": "n"}}}},
		{"unknown-version", "v9", "False", []any{object{"apiVersion": "apps/v9", "kind": "Deployment", "metadata": object{"name": "n"}}}},
		{"two-errors", "x_y", "False", []any{configMap(object{"metadata": object{"name": "ok"}}), configMap(object{"metadata": object{"name": "x_y"}})}},
		{"warning", "hides previous definition", "True", []any{pod(object{"name": "A", "value": "1"}, object{"name": "A", "value": "2"})}},
		{"in-order", "", "True", []any{configMap(object{"metadata": object{"name": "in-order"}})}},
	}
	for _, major := range []string{"helm3", "helm4"} {
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			ns, dir := newNamespace(t)
			bare := ns + "-bare"
			createNamespace(t, bare)
			repo := startRepo(t, dir)
			repo.pack("verbatim", "0.1.0")
			path, notes := spyHelm(t, dir, major)
			startBelay(t, "a", belayOptions{ns: ns, dir: dir, helm: path})
			for _, row := range rows {
				s := spec(repo, "verbatim", "0.1.0", object{"objects": row.objects})
				s["releaseName"] = row.name
				createHR(t, ns, row.name, s)
			}
			for _, row := range rows {
				u := waitReleased(t, ns, row.name, row.released, 90*time.Second)
				values, _ := json.Marshal(object{"objects": row.objects})
				cmd := exec.Command(tool(major), "--kubeconfig", env.admin, "upgrade", row.name, filepath.Join(repo.dir, "verbatim-0.1.0.tgz"),
					"--install", "-n", bare, "-f", "-")
				if major == "helm4" {
					cmd.Args = append(cmd.Args, "--server-side=false") // as belay runs it
				}
				var stderr bytes.Buffer
				cmd.Stdin, cmd.Stderr = bytes.NewReader(values), &stderr
				_ = cmd.Run()
				runs := spied(t, notes, row.name)
				if len(runs) == 0 {
					t.Errorf("%s: belay's helm left no note", row.name)
					continue
				}
				got := stamps.ReplaceAllString(runs[0], "$1 ")
				want := strings.ReplaceAll(stamps.ReplaceAllString(stderr.String(), "$1 "), bare, ns)
				if got != want || !strings.Contains(want, row.says) {
					t.Errorf("%s:\nthrough the gate: %s\nwithout: %s", row.name, got, want)
				}
				// The condition tells it in one line, without helm's own prefixes.
				if row.released == "False" {
					core := want[strings.LastIndex(want, "Error: "):]
					core = strings.Join(strings.Fields(core[strings.LastIndex(core, " FAILED: ")+len(" FAILED: "):]), " ")
					if m := strings.Join(strings.Fields(conditionOf(u, "Released").message), " "); !strings.Contains(m, core[len(core)-min(len(core), 60):]) {
						t.Errorf("%s: the condition says %q, helm %q", row.name, m, core)
					}
				}
			}
		})
	}
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
	files, threads := b.descriptors(), b.procStatus("Threads:")
	killed := 0
	for i := 0; i < rounds(8); i++ {
		mark, gen := edit(fmt.Sprintf("r%d", i))
		helm := 0
		eventually(t, 20*time.Second, "helm runs", func() bool {
			if all := b.descendants(); len(all) > 0 {
				helm = all[0]
			}
			return helm != 0 || observed(getHR(t, ns, "x")) == gen && conditionOf(getHR(t, ns, "x"), "Released").status == "True"
		})
		time.Sleep(time.Duration(random.Int63n(int64(usual))))
		if helm != 0 && syscall.Kill(helm, syscall.SIGKILL) == nil {
			killed++
		}
		seen.await(t, mark, "x", 60*time.Second, "the lock is free again", func(u *unstructured.Unstructured) bool {
			return observed(u) == gen && !lockOf(u).held && conditionOf(u, "Released").status != "Unknown"
		})
	}
	if killed == 0 {
		t.Error("no helm was killed in time: the test shows nothing")
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
		return len(after) <= len(files)+2 && b.procStatus("Threads:") <= threads
	})
	t.Logf("%d of %d helms killed; descriptors %d, then %d; threads %d, then %d", killed, rounds(8), len(files), len(after), threads, b.procStatus("Threads:"))
	seen.checkTruth(t)
}
