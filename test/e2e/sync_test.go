package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Install, upgrade, uninstall with both helm majors: the whole life of one object.
func TestLifeOfARelease(t *testing.T) {
	for _, major := range []string{"helm3", "helm4"} {
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			ns, dir := newNamespace(t)
			repo := startRepo(t, dir)
			repo.pack("one", "0.1.0")
			seen := record(t, ns)
			b := startBelay(t, "a", belayOptions{ns: ns, dir: dir, helm: major})
			createHR(t, ns, "x", object{"releaseName": "x", "chart": object{"repository": repo.url, "name": "one", "version": "0.1.0"},
				"values": object{"greeting": "hello", "n": int64(1000000)}})
			u := waitReleased(t, ns, "x", "True", 60*time.Second)
			if got := newest(t, ns, "x"); got != 1 {
				t.Errorf("revision %d after the install, want 1", got)
			}
			if f := u.GetFinalizers(); len(f) != 1 {
				t.Errorf("finalizers %v, want one", f)
			}
			for field, want := range map[string]string{"phase": "Succeeded", "releaseName": "x", "releaseStatus": "deployed", "revision": "0.1.0", "lastAttemptedRevision": "0.1.0"} {
				if got := statusText(u, field); got != want {
					t.Errorf("status.%s = %q, want %q", field, got, want)
				}
			}
			if k := kstatus(u); k != "Current" {
				t.Errorf("kstatus reads %s, want Current", k)
			}
			patchSpec(t, ns, "x", object{"values": object{"greeting": "again"}})
			waitReleased(t, ns, "x", "True", 60*time.Second)
			if got := newest(t, ns, "x"); got != 2 {
				t.Errorf("revision %d after the upgrade, want 2", got)
			}
			if out := helm(t, major, "get", "values", "x", "-n", ns); !strings.Contains(out, "again") {
				t.Errorf("helm get values says:\n%s", out)
			}
			if code, body := b.get("/readyz"); code != 200 {
				t.Errorf("/readyz %d %s", code, body)
			}
			deleteHR(t, ns, "x")
			eventually(t, 60*time.Second, "the object is gone", func() bool {
				_, err := env.dyn.Resource(helmReleases).Namespace(ns).Get(context.Background(), "x", metav1.GetOptions{})
				return err != nil
			})
			if left := revisions(t, ns, "x"); len(left) != 0 {
				t.Errorf("%d release records are left after the deletion", len(left))
			}
			seen.checkTruth(t)
			if code := b.stop(20 * time.Second); code != 0 {
				t.Errorf("exit code %d after SIGTERM, want 0", code)
			}
		})
	}
}

// The fault that belay exists for (case 1): resyncs overlap slow downloads, three replicas, many edits.
func TestReportedFaultDoesNotOccur(t *testing.T) {
	t.Parallel()
	const objects, edits = 5, 20
	ns, dir := newNamespace(t)
	repo := startRepo(t, dir, "--delay", "3s")
	for i := 0; i <= edits; i++ {
		repo.pack("one", fmt.Sprintf("0.1.%d", i))
	}
	seen := record(t, ns)
	var replicas []*replica
	for _, name := range []string{"a", "b", "c"} {
		replicas = append(replicas, startBelay(t, name, belayOptions{ns: ns, dir: dir, flags: []string{"--charts-sync-interval", "1s", "--workers", "5"}}))
	}
	for i := 0; i < objects; i++ {
		s := spec(repo, "one", "0.1.0", object{"edit": int64(0)})
		s["releaseName"], s["maxHistory"] = fmt.Sprintf("r%d", i), int64(50)
		createHR(t, ns, fmt.Sprintf("r%d", i), s)
	}
	var wg sync.WaitGroup
	for i := 0; i < objects; i++ {
		wg.Add(1)
		go func(name string) {
			defer wg.Done()
			waitReleased(t, ns, name, "True", 3*time.Minute)
			for e := 1; e <= edits; e++ {
				patchSpec(t, ns, name, object{"chart": object{"version": fmt.Sprintf("0.1.%d", e)}, "values": object{"edit": int64(e)}})
				waitReleased(t, ns, name, "True", 2*time.Minute)
			}
		}(fmt.Sprintf("r%d", i))
	}
	wg.Wait()
	for i := 0; i < objects; i++ {
		name := fmt.Sprintf("r%d", i)
		if got := newest(t, ns, name); got != edits+1 {
			t.Errorf("%s: revision %d after %d edits, want %d", name, got, edits, edits+1)
		}
	}
	for _, r := range replicas {
		if r.logged("another operation") {
			t.Errorf("%s met another helm", r.name)
		}
	}
	seen.checkTruth(t)
}

// kill -9 of the holder while it downloads the chart: another replica finishes within the lease + 5 s.
func TestHolderKilledDuringDownload(t *testing.T) {
	t.Parallel()
	const lease = 5 * time.Second
	ns, dir := newNamespace(t)
	repo := startRepo(t, dir)
	repo.pack("one", "0.1.0")
	repo.pack("one", "0.2.0")
	seen := record(t, ns)
	flags := []string{"--lease-timeout", lease.String()}
	replicas := map[string]*replica{}
	for _, name := range []string{"a", "b"} {
		replicas[name] = startBelay(t, name, belayOptions{ns: ns, dir: dir, flags: flags})
	}
	s := spec(repo, "one", "0.1.0", object{"a": "1"})
	s["releaseName"] = "x"
	createHR(t, ns, "x", s)
	waitReleased(t, ns, "x", "True", 60*time.Second)

	repo.post("/-/delay?d=60s")
	gen := patchSpec(t, ns, "x", object{"chart": object{"version": "0.2.0"}})
	holder := waitHolder(t, ns, "x", gen)
	repo.waitDownload()
	replicas[holder].kill()
	killed := time.Now()
	repo.post("/-/delay?d=0s")
	u := waitReleased(t, ns, "x", "True", lease+15*time.Second)
	took := time.Since(killed)
	t.Logf("takeover after kill -9: %.1f s", took.Seconds())
	if took > lease+5*time.Second {
		t.Errorf("finished %.1f s after the kill, want at most the lease + 5 s", took.Seconds())
	}
	if got := newest(t, ns, "x"); got != 2 {
		t.Errorf("revision %d, want 2", got)
	}
	if statusText(u, "revision") != "0.2.0" {
		t.Errorf("status.revision = %q", statusText(u, "revision"))
	}
	seen.checkTruth(t)
}

// waitHolder waits until the lock is held for this generation and returns the holder's pod name.
func waitHolder(t *testing.T, ns, name string, gen int64) string {
	t.Helper()
	var holder string
	eventually(t, 30*time.Second, "the lock is taken", func() bool {
		u := getHR(t, ns, name)
		h := statusText(u, "lease", "holderIdentity")
		holder, _, _ = strings.Cut(h, "/")
		return observed(u) == gen && conditionOf(u, "Released").status == "Unknown" && holder != ""
	})
	return holder
}

// SIGTERM of the holder while its helm runs: another replica finishes at once, and the change is deployed once.
func TestHolderTerminatedDuringHelm(t *testing.T) {
	for _, major := range []string{"helm3", "helm4"} {
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			ns, dir := newNamespace(t)
			repo := startRepo(t, dir)
			repo.pack("slow", "0.1.0")
			seen := record(t, ns)
			replicas := map[string]*replica{}
			for _, name := range []string{"a", "b"} {
				replicas[name] = startBelay(t, name, belayOptions{ns: ns, dir: dir, helm: major, flags: []string{"--shutdown-grace", "1s"}})
			}
			s := spec(repo, "slow", "0.1.0", object{"hold": false})
			s["releaseName"] = "x"
			createHR(t, ns, "x", s)
			waitReleased(t, ns, "x", "True", 60*time.Second)
			gen := patchSpec(t, ns, "x", object{"values": object{"hold": true}})
			holder := waitHolder(t, ns, "x", gen)
			eventually(t, 30*time.Second, "helm waits in its hook", func() bool {
				all := revisions(t, ns, "x")
				return len(all) > 1 && all[len(all)-1].status == "pending-upgrade"
			})
			began := time.Now()
			if code := replicas[holder].stop(15 * time.Second); code != 0 {
				t.Errorf("exit code %d, want 0", code)
			}
			stopped := time.Since(began)
			// The other one goes on at once; its helm waits in the same hook until it is let go.
			eventually(t, 10*time.Second, "another holder", func() bool {
				h := statusText(getHR(t, ns, "x"), "lease", "holderIdentity")
				return h != "" && !strings.HasPrefix(h, holder+"/")
			})
			t.Logf("%s: stopped in %.1f s, the other took over %.1f s after SIGTERM", major, stopped.Seconds(), time.Since(began).Seconds())
			releaseHook(t, ns)
			waitReleased(t, ns, "x", "True", 60*time.Second)
			all := revisions(t, ns, "x")
			if last := all[len(all)-1]; last.status != "deployed" || last.n > 3 {
				t.Errorf("newest revision %d is %s; want one failed attempt at most and then deployed", last.n, last.status)
			}
			for _, u := range seen.all() {
				if c := conditionOf(u, "Released"); c.reason == "Interrupted" && conditionOf(u, "Ready").status != "Unknown" {
					t.Errorf("an interrupted sync must not read as a failure: Ready=%s", conditionOf(u, "Ready").status)
				}
			}
			seen.checkTruth(t)
		})
	}
}

// releaseHook lets every hook pod of the chart "slow" end, again and again until the test is over.
func releaseHook(t *testing.T, ns string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	go func() {
		for ctx.Err() == nil {
			_ = exec.Command(tool("kubectl"), "--kubeconfig", env.admin, "annotate", "--overwrite", "-n", ns, "pods", "--all", "belay.test/hold-").Run()
			time.Sleep(300 * time.Millisecond)
		}
	}()
}

// A person's helm upgrade and rollback on a managed release are answered once each, by an upgrade back to the spec.
func TestPersonsHelmIsAnsweredOnce(t *testing.T) {
	for _, major := range []string{"helm3", "helm4"} {
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			ns, dir := newNamespace(t)
			repo := startRepo(t, dir)
			repo.pack("one", "0.1.0")
			for _, name := range []string{"a", "b", "c"} {
				startBelay(t, name, belayOptions{ns: ns, dir: dir, helm: major, flags: []string{"--charts-sync-interval", "2s"}})
			}
			s := spec(repo, "one", "0.1.0", object{"v": "spec"})
			s["releaseName"] = "x"
			createHR(t, ns, "x", s)
			waitReleased(t, ns, "x", "True", 60*time.Second)
			settle := func(want int, what string) {
				t.Helper()
				eventually(t, 60*time.Second, what+" is answered", func() bool {
					all := revisions(t, ns, "x")
					last := all[len(all)-1]
					return last.n == want && last.status == "deployed"
				})
				stays(t, 8*time.Second, what+" is answered once", func() bool { return len(revisions(t, ns, "x")) == want })
				if out := helm(t, major, "get", "values", "x", "-n", ns); !strings.Contains(out, "v: spec") {
					t.Errorf("after %s: values\n%s", what, out)
				}
			}
			helm(t, major, "upgrade", "x", dir+"/repo/one-0.1.0.tgz", "-n", ns, "--set", "v=human")
			settle(3, "helm upgrade")
			helm(t, major, "rollback", "x", "2", "-n", ns)
			settle(5, "helm rollback")
			// The same values by hand are no change: adopted, not upgraded.
			helm(t, major, "upgrade", "x", dir+"/repo/one-0.1.0.tgz", "-n", ns, "--set", "v=spec")
			settle(6, "an equal helm upgrade")
		})
	}
}

// stays fails if the condition does not hold all the time.
func stays(t *testing.T, d time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if !ok() {
			t.Fatalf("does not stay so: %s", what)
		}
	}
}

// A chart that always fails, three replicas: the attempts are those of one controller.
func TestBackoffOfOneController(t *testing.T) {
	t.Parallel()
	ns, dir := newNamespace(t)
	repo := startRepo(t, dir)
	repo.pack("broken", "0.1.0")
	var replicas []*replica
	for _, name := range []string{"a", "b", "c"} {
		replicas = append(replicas, startBelay(t, name, belayOptions{ns: ns, dir: dir, flags: []string{"--charts-sync-interval", "1s"}}))
	}
	s := spec(repo, "broken", "0.1.0", object{"text": "this chart always fails"})
	s["releaseName"] = "x"
	createHR(t, ns, "x", s)
	time.Sleep(3 * time.Minute)
	attempts := 0.0
	for _, r := range replicas {
		attempts += r.metric("belay_helm_runs_total")
	}
	// One controller: at 0, 10, 30, 70, 150 s (10 s * 2^n, jitter 10 %).
	if attempts < 4 || attempts > 6 {
		t.Errorf("%.0f attempts in 3 minutes, want about 5", attempts)
	}
	u := waitReleased(t, ns, "x", "False", 10*time.Second)
	if c := conditionOf(u, "Released"); !strings.Contains(c.message, "this chart always fails") {
		t.Errorf("message %q does not say why", c.message)
	}
	if k := kstatus(u); k != "InProgress" {
		t.Errorf("kstatus reads %s for a failure that is retried, want InProgress", k)
	}
	t.Logf("%.0f attempts in 3 minutes by 3 replicas", attempts)
}

// An in-sync fleet is silent: no write, no helm.
func TestInSyncFleetIsSilent(t *testing.T) {
	t.Parallel()
	const objects = 10
	ns, dir := newNamespace(t)
	repo := startRepo(t, dir)
	repo.pack("one", "0.1.0")
	var replicas []*replica
	for _, name := range []string{"a", "b", "c"} {
		replicas = append(replicas, startBelay(t, name, belayOptions{ns: ns, dir: dir, flags: []string{"--charts-sync-interval", "5s"}}))
	}
	for i := 0; i < objects; i++ {
		s := spec(repo, "one", "^0.1.0", object{"i": int64(i)})
		createHR(t, ns, fmt.Sprintf("s%d", i), s)
	}
	for i := 0; i < objects; i++ {
		waitReleased(t, ns, fmt.Sprintf("s%d", i), "True", 2*time.Minute)
	}
	time.Sleep(7 * time.Second) // one interval: whatever was still on its way has come
	versions := func() string {
		list, err := env.dyn.Resource(helmReleases).Namespace(ns).List(context.Background(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, u := range list.Items {
			all = append(all, u.GetName()+"="+u.GetResourceVersion())
		}
		return strings.Join(all, " ")
	}
	runs := func() (n float64) {
		for _, r := range replicas {
			n += r.metric("belay_helm_runs_total")
		}
		return n
	}
	before, runsBefore := versions(), runs()
	passes := replicas[0].metric("belay_in_sync_total")
	time.Sleep(60 * time.Second)
	if after := versions(); after != before {
		t.Errorf("objects changed while in sync:\n%s\n%s", before, after)
	}
	if after := runs(); after != runsBefore {
		t.Errorf("%.0f helm runs while in sync", after-runsBefore)
	}
	if replicas[0].metric("belay_in_sync_total") < passes+objects*8 {
		t.Errorf("the objects were not compared at each interval: the test shows nothing")
	}
}

// All replicas restarted one by one during a change of all objects: each object gains one revision, none stays locked.
func TestRollingUpdateOfReplicas(t *testing.T) {
	const objects = 200
	ns, dir := newNamespace(t)
	repo := startRepo(t, dir)
	repo.pack("one", "0.1.0")
	seen := record(t, ns)
	names := []string{"a", "b", "c"}
	o := belayOptions{ns: ns, dir: dir, flags: []string{"--lease-timeout", "10s"}}
	var replicas []*replica
	for _, name := range names {
		replicas = append(replicas, startBelay(t, name, o))
	}
	began := time.Now()
	for i := 0; i < objects; i++ {
		s := spec(repo, "one", "0.1.0", object{"v": int64(1)})
		s["releaseName"] = fmt.Sprintf("h%d", i)
		createHR(t, ns, fmt.Sprintf("h%d", i), s)
	}
	waitAll(t, ns, objects, 10*time.Minute)
	t.Logf("%d installs by 3 replicas: %.0f s", objects, time.Since(began).Seconds())
	for i := 0; i < objects; i++ {
		patchSpec(t, ns, fmt.Sprintf("h%d", i), object{"values": object{"v": int64(2)}})
	}
	for i, name := range names {
		if code := replicas[i].stop(60 * time.Second); code != 0 {
			t.Errorf("%s: exit code %d", name, code)
		}
		replicas[i] = startBelay(t, name+"2", o)
	}
	began = time.Now()
	waitAll(t, ns, objects, 10*time.Minute)
	t.Logf("all changed %.0f s after the last restart", time.Since(began).Seconds())
	for i := 0; i < objects; i++ {
		all := revisions(t, ns, fmt.Sprintf("h%d", i))
		deployed := 0
		for _, r := range all[1:] {
			if r.status == "deployed" || r.status == "superseded" {
				deployed++
			}
		}
		if deployed != 1 || all[len(all)-1].status != "deployed" {
			t.Errorf("h%d: %d revisions became deployed by the change, want 1 (of %d)", i, deployed, len(all))
		}
	}
	for _, r := range replicas {
		t.Logf("RSS of %s with %d objects: %d KiB", r.name, objects, r.rss())
	}
	seen.checkTruth(t)
}

func waitAll(t *testing.T, ns string, objects int, within time.Duration) {
	t.Helper()
	var left int
	eventuallyf(t, within, func() string { return fmt.Sprintf("all released; %d are not", left) }, func() bool {
		list, err := env.dyn.Resource(helmReleases).Namespace(ns).List(context.Background(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		left = objects
		for i := range list.Items {
			u := &list.Items[i]
			if observed(u) == u.GetGeneration() && conditionOf(u, "Released").status == "True" {
				left--
			}
		}
		return left == 0
	})
}

// A helm that is interrupted by nobody but hangs for long keeps its lock: the heartbeat renews it (case 10, in short).
func TestLongSyncKeepsItsLock(t *testing.T) {
	t.Parallel()
	ns, dir := newNamespace(t)
	repo := startRepo(t, dir)
	repo.pack("slow", "0.1.0")
	seen := record(t, ns)
	for _, name := range []string{"a", "b", "c"} {
		startBelay(t, name, belayOptions{ns: ns, dir: dir, flags: []string{"--lease-timeout", "5s", "--charts-sync-interval", "1s"}})
	}
	s := spec(repo, "slow", "0.1.0", object{"hold": true})
	s["releaseName"] = "x"
	createHR(t, ns, "x", s)
	holder := waitHolder(t, ns, "x", 1)
	stays(t, 20*time.Second, "one holder for four leases", func() bool {
		u := getHR(t, ns, "x")
		return strings.HasPrefix(statusText(u, "lease", "holderIdentity"), holder+"/") && conditionOf(u, "Released").status == "Unknown"
	})
	// Edits in the meantime cannot starve the renewal, and are synced after it.
	for i := 0; i < 40; i++ {
		annotate(t, ns, "x", fmt.Sprint(i))
	}
	releaseHook(t, ns)
	waitReleased(t, ns, "x", "True", 60*time.Second)
	if got := newest(t, ns, "x"); got != 1 {
		t.Errorf("revision %d, want 1", got)
	}
	epochs := map[int64]bool{}
	for _, u := range seen.all() {
		epoch, found, _ := unstructured.NestedInt64(u.Object, "status", "lease", "leaseTransitions")
		if found {
			epochs[epoch] = true
		}
	}
	if len(epochs) != 1 {
		t.Errorf("epochs %v, want one", epochs)
	}
	seen.checkTruth(t)
}

func annotate(t *testing.T, ns, name, value string) {
	t.Helper()
	u := getHR(t, ns, name)
	body := []byte(fmt.Sprintf(`{"metadata":{"annotations":{"test/edit":%q}}}`, value))
	if _, err := env.dyn.Resource(helmReleases).Namespace(ns).Patch(context.Background(), u.GetName(), "application/merge-patch+json", body, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// A stopped holder (SIGSTOP) loses its lock to another replica, and when it wakes up it stops what it was doing.
func TestStoppedHolderIsReplaced(t *testing.T) {
	t.Parallel()
	ns, dir := newNamespace(t)
	repo := startRepo(t, dir)
	repo.pack("one", "0.1.0")
	repo.pack("one", "0.2.0")
	seen := record(t, ns)
	replicas := map[string]*replica{}
	for _, name := range []string{"a", "b"} {
		replicas[name] = startBelay(t, name, belayOptions{ns: ns, dir: dir, flags: []string{"--lease-timeout", "5s"}})
	}
	s := spec(repo, "one", "0.1.0", object{"a": "1"})
	s["releaseName"] = "x"
	createHR(t, ns, "x", s)
	waitReleased(t, ns, "x", "True", 60*time.Second)
	repo.post("/-/delay?d=15s")
	gen := patchSpec(t, ns, "x", object{"chart": object{"version": "0.2.0"}})
	holder := waitHolder(t, ns, "x", gen)
	repo.waitDownload()
	replicas[holder].signal(syscall.SIGSTOP)
	repo.post("/-/delay?d=0s")
	waitReleased(t, ns, "x", "True", 30*time.Second)
	replicas[holder].signal(syscall.SIGCONT)
	replicas[holder].waitLog("lock lost", 10*time.Second)
	stays(t, 10*time.Second, "the woken holder changes nothing", func() bool { return newest(t, ns, "x") == 2 })
	seen.checkTruth(t)
}

// A second SIGTERM ends belay at once; its helm goes with it, and the lock runs out by itself.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	ns, dir := newNamespace(t)
	repo := startRepo(t, dir)
	repo.pack("slow", "0.1.0")
	b := startBelay(t, "a", belayOptions{ns: ns, dir: dir, flags: []string{"--shutdown-grace", "10m"}})
	s := spec(repo, "slow", "0.1.0", object{"hold": true})
	s["releaseName"] = "x"
	createHR(t, ns, "x", s)
	eventually(t, 30*time.Second, "helm waits in its hook", func() bool { return len(revisions(t, ns, "x")) == 1 })
	helmPid := childOf(t, b.cmd.Process.Pid, "helm3")
	b.signal(syscall.SIGTERM)
	b.waitLog("stopping", 5*time.Second)
	began := time.Now()
	if code := b.stop(5 * time.Second); code != 1 {
		t.Errorf("exit code %d after the second signal, want 1", code)
	}
	t.Logf("ended %.2f s after the second signal", time.Since(began).Seconds())
	eventually(t, 5*time.Second, "helm died with it", func() bool { return syscall.Kill(helmPid, 0) != nil })
}

// childOf finds the process of that name below pid.
func childOf(t *testing.T, pid int, name string) int {
	t.Helper()
	var found int
	eventually(t, 10*time.Second, "a child "+name, func() bool {
		files, _ := filepath.Glob("/proc/[0-9]*/status")
		for _, f := range files {
			text, _ := os.ReadFile(f)
			if strings.Contains(string(text), fmt.Sprintf("\nPPid:\t%d\n", pid)) && strings.HasPrefix(string(text), "Name:\t"+name) {
				found, _ = strconv.Atoi(filepath.Base(filepath.Dir(f)))
				return true
			}
		}
		return false
	})
	return found
}

// A loop that nobody thought of ends: 30 revisions an hour for one generation, then Stalled, and the message says so.
func TestEndlessRevisionsMeetACeiling(t *testing.T) {
	t.Parallel()
	ns, dir := newNamespace(t)
	repo := startRepo(t, dir)
	repo.pack("one", "0.1.0")
	startBelay(t, "a", belayOptions{ns: ns, dir: dir, flags: []string{"--charts-sync-interval", "1s"}})
	s := spec(repo, "one", "0.1.0", object{"v": "spec"})
	s["releaseName"] = "x"
	createHR(t, ns, "x", s)
	waitReleased(t, ns, "x", "True", 60*time.Second)
	// As if 29 more had been made in this hour.
	body := fmt.Sprintf(`{"status":{"attempt":{"upgrades":30,"windowStart":%q}}}`, time.Now().UTC().Format(time.RFC3339))
	if _, err := env.dyn.Resource(helmReleases).Namespace(ns).Patch(context.Background(), "x", "application/merge-patch+json", []byte(body), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	helm(t, "helm3", "upgrade", "x", dir+"/repo/one-0.1.0.tgz", "-n", ns, "--set", "v=human")
	u := waitReleased(t, ns, "x", "False", 60*time.Second)
	if c := conditionOf(u, "Released"); c.reason != "TooManyRevisions" || kstatus(u) != "Failed" {
		t.Errorf("reason %s, kstatus %s: %s", c.reason, kstatus(u), c.message)
	}
	stays(t, 5*time.Second, "no further revision", func() bool { return newest(t, ns, "x") == 2 })
	patchSpec(t, ns, "x", object{"values": object{"v": "new"}})
	waitReleased(t, ns, "x", "True", 60*time.Second)
}

// A container restarted in its pod: the same pod UID, another life. With the old process and its helm proven dead (the abstract
// socket could be bound) the lease is not waited for.
func TestRestartInTheSamePodTakesOverAtOnce(t *testing.T) {
	t.Parallel()
	ns, dir := newNamespace(t)
	repo := startRepo(t, dir)
	repo.pack("one", "0.1.0")
	repo.pack("one", "0.2.0")
	seen := record(t, ns)
	o := belayOptions{ns: ns, dir: dir, flags: []string{"--lease-timeout", "10m"}, env: []string{"POD_UID=" + ns}}
	first := startBelay(t, "a", o)
	s := spec(repo, "one", "0.1.0", object{"a": "1"})
	s["releaseName"] = "x"
	createHR(t, ns, "x", s)
	waitReleased(t, ns, "x", "True", 60*time.Second)
	repo.post("/-/delay?d=60s")
	gen := patchSpec(t, ns, "x", object{"chart": object{"version": "0.2.0"}})
	waitHolder(t, ns, "x", gen)
	repo.waitDownload()
	// Another process of the same pod while the first one lives proves nothing, and takes nothing.
	second := startBelay(t, "b", o)
	stays(t, 3*time.Second, "the living holder keeps its lock", func() bool { return newest(t, ns, "x") == 1 })
	second.kill()
	first.kill()
	killed := time.Now()
	repo.post("/-/delay?d=0s")
	startBelay(t, "a", o)
	waitReleased(t, ns, "x", "True", 30*time.Second)
	t.Logf("released %.1f s after the kill, start of the new process included; the lease is 10 min", time.Since(killed).Seconds())
	if got := newest(t, ns, "x"); got != 2 {
		t.Errorf("revision %d, want 2", got)
	}
	seen.checkTruth(t)
}

// No replica's wall clock takes part (case 6): holder and thief an hour apart, in both directions.
func TestWallClocksDoNotMatter(t *testing.T) {
	const lease = 5 * time.Second
	lib, _ := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
	if len(lib) == 0 {
		t.Skip("libfaketime is not installed")
	}
	for _, row := range []struct{ name, holder, thief string }{{"holder-ahead", "+1h", "-1h"}, {"holder-behind", "-1h", "+1h"}} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			ns, dir := newNamespace(t)
			repo := startRepo(t, dir)
			repo.pack("one", "0.1.0")
			seen := record(t, ns)
			faked := func(offset string) belayOptions {
				return belayOptions{ns: ns, dir: dir, flags: []string{"--lease-timeout", lease.String(), "--charts-sync-interval", "1s"},
					env: []string{"LD_PRELOAD=" + lib[0], "FAKETIME=" + offset, "FAKETIME_DONT_FAKE_MONOTONIC=1"}}
			}
			repo.post("/-/delay?d=20s")
			holder := startBelay(t, "holder", faked(row.holder))
			s := spec(repo, "one", "0.1.0", object{"a": "1"})
			s["releaseName"] = "x"
			createHR(t, ns, "x", s)
			waitHolder(t, ns, "x", 1)
			repo.waitDownload()
			thief := startBelay(t, "thief", faked(row.thief))
			// A living holder is never robbed: it renews for longer than two leases.
			stays(t, 2*lease+2*time.Second, "the living holder keeps its lock", func() bool {
				return strings.HasPrefix(statusText(getHR(t, ns, "x"), "lease", "holderIdentity"), "holder/")
			})
			// A dead one is replaced, by a replica that saw it live and within the lease + 5 s.
			holder.kill()
			killed := time.Now()
			repo.post("/-/delay?d=0s")
			waitReleased(t, ns, "x", "True", lease+20*time.Second)
			if took := time.Since(killed); took > lease+5*time.Second {
				t.Errorf("takeover took %.1f s", took.Seconds())
			}
			if !thief.logged("took over an expired lock") {
				t.Error("the thief did not take the lock over")
			}
			seen.checkTruth(t)
		})
	}
}

// Three replicas share the work about evenly, and hardly ever race for a lock (docs/lock.md 9).
func TestWorkIsSharedWithoutRaces(t *testing.T) {
	const objects = 120
	ns, dir := newNamespace(t)
	repo := startRepo(t, dir)
	repo.pack("one", "0.1.0")
	var replicas []*replica
	for _, name := range []string{"a", "b", "c"} {
		replicas = append(replicas, startBelay(t, name, belayOptions{ns: ns, dir: dir, env: []string{"POD_NAMESPACE=" + systemNamespace}}))
	}
	time.Sleep(12 * time.Second) // two beats of the membership: all know all
	for i := 0; i < objects; i++ {
		s := spec(repo, "one", "0.1.0", object{"v": int64(1)})
		s["releaseName"] = fmt.Sprintf("w%d", i)
		createHR(t, ns, fmt.Sprintf("w%d", i), s)
	}
	waitAll(t, ns, objects, 5*time.Minute)
	var total, conflicts float64
	var shares []float64
	for _, r := range replicas {
		n := r.metric("belay_lock_acquired_total")
		shares = append(shares, n)
		total += n
		conflicts += r.metric("belay_lock_conflicts_total")
	}
	t.Logf("%d objects: %v syncs, %.0f lost PATCHes (%.3f a sync)", objects, shares, conflicts, conflicts/total)
	if conflicts/total > 0.05 {
		t.Errorf("%.3f lost PATCHes a sync, want at most 0.05", conflicts/total)
	}
	for i, n := range shares {
		if n < total/3*0.8 || n > total/3*1.2 {
			t.Errorf("%s did %.0f of %.0f syncs, want a third within 20 %%", replicas[i].name, n, total)
		}
	}
}

// kill -9 of belay alone in the middle of helm: helm dies with it, and the next holder releases the change over the record that
// was left pending.
func TestKilledInTheMiddleOfHelmIsRepaired(t *testing.T) {
	t.Parallel()
	ns, dir := newNamespace(t)
	repo := startRepo(t, dir)
	repo.pack("slow", "0.1.0")
	seen := record(t, ns)
	o := belayOptions{ns: ns, dir: dir, flags: []string{"--lease-timeout", "5s"}}
	b := startBelay(t, "a", o)
	s := spec(repo, "slow", "0.1.0", object{"hold": false})
	s["releaseName"] = "x"
	createHR(t, ns, "x", s)
	waitReleased(t, ns, "x", "True", 60*time.Second)
	patchSpec(t, ns, "x", object{"values": object{"hold": true}})
	eventually(t, 30*time.Second, "helm waits in its hook", func() bool {
		all := revisions(t, ns, "x")
		return len(all) == 2 && all[1].status == "pending-upgrade"
	})
	helmPid := childOf(t, b.cmd.Process.Pid, "helm3")
	b.kill()
	eventually(t, 5*time.Second, "helm died with it", func() bool { return syscall.Kill(helmPid, 0) != nil })
	startBelay(t, "b", o)
	releaseHook(t, ns)
	waitReleased(t, ns, "x", "True", 60*time.Second)
	if got := newest(t, ns, "x"); got != 3 {
		t.Errorf("revision %d, want 3: the killed upgrade, and the one over it", got)
	}
	if status := revisions(t, ns, "x")[1].status; status != "failed" {
		t.Errorf("the killed upgrade is %s, want failed", status)
	}
	seen.checkTruth(t)
}
