package e2e

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// ---- what stands in a record ----

const recordPrefix = "belay.helm.fluxcd.io/"

// text is the JSON that helm stored, byte for byte.
func (r revision) text(t *testing.T) string {
	t.Helper()
	packed, err := base64.StdEncoding.DecodeString(string(r.secret.Data["release"]))
	if err != nil {
		t.Fatalf("%s: %v", r.secret.Name, err)
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatalf("%s: %v", r.secret.Name, err)
	}
	all, err := io.ReadAll(unpacked)
	if err != nil {
		t.Fatalf("%s: %v", r.secret.Name, err)
	}
	return string(all)
}

// setStatus writes another status into a record, in payload and label, with these annotations: what a helm leaves that dies at
// a moment that no test can hit.
func setStatus(t *testing.T, r revision, status string, annotations map[string]string) {
	t.Helper()
	old := fmt.Sprintf("%q:%q", "status", r.status)
	text := r.text(t)
	if strings.Count(text, old) != 1 {
		t.Fatalf("%s: not one %s", r.secret.Name, old)
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write([]byte(strings.Replace(text, old, fmt.Sprintf("%q:%q", "status", status), 1)))
	_ = w.Close()
	s := r.secret.DeepCopy()
	s.Data["release"] = []byte(base64.StdEncoding.EncodeToString(packed.Bytes()))
	s.Labels["status"] = status
	s.Annotations = annotations
	if _, err := env.kube.CoreV1().Secrets(s.Namespace).Update(context.Background(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// claimAs are the annotations of a helm of this HelmRelease that ran under that epoch.
func claimAs(u *unstructured.Unstructured, r revision, epoch int64) map[string]string {
	return map[string]string{
		recordPrefix + "digest": "1:old", recordPrefix + "owner": string(u.GetUID()), recordPrefix + "owner-name": u.GetNamespace() + "/" + u.GetName(),
		recordPrefix + "epoch": strconv.FormatInt(epoch, 10), recordPrefix + "revision": strconv.Itoa(r.n),
	}
}

// checkRepaired: this record says failed to helm too, by the named HelmRelease's epoch, and nothing else in it has changed.
func checkRepaired(t *testing.T, before, after revision) {
	t.Helper()
	if after.status != "failed" || after.payload(t).Info.Status != "failed" {
		t.Errorf("revision %d is labelled %s and is %s, want failed", after.n, after.status, after.payload(t).Info.Status)
	}
	by, _ := strconv.ParseInt(after.secret.Annotations[recordPrefix+"repaired-by"], 10, 64)
	if by < 1 || claimOf(after).epoch != strconv.FormatInt(by, 10) || claimOf(after).revision != strconv.Itoa(after.n) {
		t.Errorf("revision %d: annotations %v", after.n, after.secret.Annotations)
	}
	want := strings.Replace(before.text(t), fmt.Sprintf(`"status":%q`, before.status), `"status":"failed"`, 1)
	if got := after.text(t); got != want {
		t.Errorf("revision %d: the payload changed by more than its status:\n%s\nwas\n%s", after.n, got, before.text(t))
	}
}

func eventsOf(t *testing.T, ns, reason string) []string {
	t.Helper()
	list, err := env.kube.EventsV1().Events(ns).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var notes []string
	for _, e := range list.Items {
		if e.Reason == reason {
			notes = append(notes, e.Note)
		}
	}
	return notes
}

// killAll is kill -9 of belay and of its helm.
func killAll(t *testing.T, r *replica) {
	t.Helper()
	pids := r.descendants()
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	r.kill()
	eventually(t, 5*time.Second, "helm died too", func() bool {
		for _, pid := range pids {
			if syscall.Kill(pid, 0) == nil {
				return false
			}
		}
		return true
	})
}

// ---- dead helms of belay ----

// kill -9 of belay and helm in the middle of a first install and then of an upgrade (cases 3, 4): the next holder goes on over the
// record, of which nothing but the status changes; nothing is uninstalled, neither the namespace that the chart renders nor what
// else is in it.
func TestKilledHelmIsRepaired(t *testing.T) {
	for _, major := range []string{"helm3", "helm4"} {
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			ns, dir := newNamespace(t)
			// Helm takes over what says so; the chart renders the namespace that it is in.
			patch := fmt.Sprintf(`{"metadata":{"labels":{"app.kubernetes.io/managed-by":"Helm"},"annotations":{"meta.helm.sh/release-name":"x","meta.helm.sh/release-namespace":%q}}}`, ns)
			space, err := env.kube.CoreV1().Namespaces().Patch(context.Background(), ns, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			if err != nil {
				t.Fatal(err)
			}
			bystander, err := env.kube.CoreV1().Secrets(ns).Create(context.Background(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "unrelated"}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			// Numbers and characters that no two JSON writers agree on.
			values := "tricky: {a: 0.1, b: 9223372036854775808, c: 1e21, d: \"<&>\\u2028\\u00e9\\\\\\\"\", info: {status: pending-install}}\n"
			if _, err = env.kube.CoreV1().ConfigMaps(ns).Create(context.Background(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "values"},
				Data: map[string]string{"values.yaml": values}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			repo := startRepo(t, dir)
			chart := copyChart(t, dir, "slow")
			if err := os.WriteFile(filepath.Join(chart, "templates/namespace.yaml"), []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: {{ .Release.Namespace }}}\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			repo.packDir(chart, "0.1.0")
			seen := record(t, ns)
			o := belayOptions{ns: ns, dir: dir, helm: major, flags: []string{"--lease-timeout", "5s"}}
			b := startBelay(t, "a", o)
			s := spec(repo, "slow", "0.1.0", object{"hold": true})
			s["releaseName"] = "x"
			s["valuesFrom"] = []any{object{"configMapKeyRef": object{"name": "values"}}}
			createHR(t, ns, "x", s)
			for n, word := range []string{"", "pending-install", "pending-upgrade"} {
				if n == 0 {
					continue
				}
				waitRevision(t, ns, "x", 2*n-1, word)
				killAll(t, b)
				killed := time.Now()
				before := revisions(t, ns, "x")[2*n-2] // not earlier: helm notes in it that the hook runs
				if before.status != word {
					t.Fatalf("killed too late: revision %d is %s", 2*n-1, before.status)
				}
				stop := letHooksGo(t, ns)
				b = startBelay(t, string(rune('a'+n)), o)
				waitReleased(t, ns, "x", "True", 60*time.Second)
				stop()
				t.Logf("%s: released %.1f s after the kill in %s; the lease is 5 s", major, time.Since(killed).Seconds(), word)
				if got := newest(t, ns, "x"); got != 2*n {
					t.Errorf("revision %d, want %d", got, 2*n)
				}
				after := revisions(t, ns, "x")[2*n-2]
				if n == 2 {
					checkRepaired(t, before, after)
				} else if before.payload(t).Manifest != after.payload(t).Manifest || after.status == word {
					t.Errorf("revision 1 is %s now, with another manifest or the same status", after.status) // helm superseded it
				}
				if n == 1 {
					patchSpec(t, ns, "x", object{"values": object{"value": "b"}})
				}
			}
			// An Event says what happened, once each.
			for n, word := range map[int]string{1: "pending-install", 3: "pending-upgrade"} {
				want := fmt.Sprintf("revision %d of release 'x' was %s since its maker died", n, word)
				eventually(t, 10*time.Second, "an Event: "+want, func() bool {
					return strings.Count(strings.Join(eventsOf(t, ns, "ReleaseRepaired"), "\n"), want) == 1
				})
			}
			if got := b.metric("belay_repairs_total"); got != 1 {
				t.Errorf("the second replica counted %v repairs, want 1", got)
			}
			now, err := env.kube.CoreV1().Namespaces().Get(context.Background(), ns, metav1.GetOptions{})
			if err != nil || now.UID != space.UID || now.DeletionTimestamp != nil {
				t.Errorf("the namespace: %v, UID %s, was %s, deleted at %v", err, now.UID, space.UID, now.DeletionTimestamp)
			}
			secret, err := env.kube.CoreV1().Secrets(ns).Get(context.Background(), "unrelated", metav1.GetOptions{})
			if err != nil || secret.UID != bystander.UID || secret.DeletionTimestamp != nil {
				t.Errorf("the Secret beside it: %v, UID %s, was %s, deleted at %v", err, secret.UID, bystander.UID, secret.DeletionTimestamp)
			}
			seen.checkTruth(t)
		})
	}
}

// Records as a helm of ours leaves them at moments that are too short to hit (case 5): a rollback, the gap between two records, an
// uninstall. They are found although the status says Released=True.
func TestRecordsInEveryStateAreRepaired(t *testing.T) {
	for _, major := range []string{"helm3", "helm4"} {
		for _, word := range []string{"pending-rollback", "pending-upgrade", "uninstalling"} {
			t.Run(major+"/"+word, func(t *testing.T) {
				t.Parallel()
				ns, dir := newNamespace(t)
				repo := startRepo(t, dir)
				repo.pack("one", "0.1.0")
				startBelay(t, "a", belayOptions{ns: ns, dir: dir, helm: major})
				s := spec(repo, "one", "0.1.0", object{"v": "1"})
				s["releaseName"] = "x"
				createHR(t, ns, "x", s)
				waitReleased(t, ns, "x", "True", 60*time.Second)
				gen := patchSpec(t, ns, "x", object{"values": object{"v": "2"}})
				eventually(t, 60*time.Second, "revision 2", func() bool { return releasedTrue(gen)(getHR(t, ns, "x")) })
				uid := func() types.UID {
					c, err := env.kube.CoreV1().ConfigMaps(ns).Get(context.Background(), "x", metav1.GetOptions{})
					if err != nil {
						return ""
					}
					return c.UID
				}
				was := uid()
				u := getHR(t, ns, "x")
				r := revisions(t, ns, "x")[1]
				setStatus(t, r, word, claimAs(u, r, lockOf(u).epoch))
				before := revisions(t, ns, "x")[1]
				if word == "uninstalling" {
					eventually(t, 60*time.Second, "uninstalled and installed anew", func() bool {
						all := revisions(t, ns, "x")
						return len(all) == 1 && all[0].n == 1 && all[0].status == "deployed"
					})
					waitReleased(t, ns, "x", "True", 30*time.Second)
					if now := uid(); now == was || now == "" {
						t.Errorf("the ConfigMap's UID is %q, was %q: it was not uninstalled", now, was)
					}
					return
				}
				waitRevision(t, ns, "x", 3, "deployed")
				waitReleased(t, ns, "x", "True", 30*time.Second)
				all := revisions(t, ns, "x")
				if all[0].status != "superseded" || len(all) != 3 {
					t.Errorf("%d revisions, the first is %s", len(all), all[0].status)
				}
				// Without a deployed one helm takes the failed record for its starting point, and supersedes it.
				if all[1].status == "failed" {
					checkRepaired(t, before, all[1])
				} else if all[1].status != "superseded" {
					t.Errorf("revision 2 is %s", all[1].status)
				}
				if now := uid(); now != was {
					t.Errorf("the ConfigMap's UID is %q, was %q", now, was)
				}
				if notes := eventsOf(t, ns, "ReleaseRepaired"); len(notes) != 1 {
					t.Errorf("Events: %q", notes)
				}
			})
		}
	}
}

// A Job of a hook outlives helm (case 3): the next upgrade waits for it, says so, and does not run a second one beside it.
func TestHookThatStillRunsIsWaitedFor(t *testing.T) {
	t.Parallel()
	ns, dir := newNamespace(t)
	repo := startRepo(t, dir)
	repo.pack("hook", "0.1.0")
	seen := record(t, ns)
	o := belayOptions{ns: ns, dir: dir, flags: []string{"--lease-timeout", "5s"}}
	b := startBelay(t, "a", o)
	s := spec(repo, "hook", "0.1.0", object{"hook": object{"hold": true}})
	s["releaseName"], s["timeout"] = "x", int64(600)
	createHR(t, ns, "x", s) // the hook runs before upgrades only
	waitReleased(t, ns, "x", "True", 60*time.Second)
	mark := seen.mark()
	gen := patchSpec(t, ns, "x", object{"values": object{"value": "b"}})
	waitRevision(t, ns, "x", 2, "pending-upgrade")
	job := func() string {
		j, err := env.kube.BatchV1().Jobs(ns).Get(context.Background(), "x-before", metav1.GetOptions{})
		if err != nil || j.Status.Active == 0 {
			return ""
		}
		return string(j.UID)
	}
	eventually(t, 30*time.Second, "the Job runs", func() bool { return job() != "" })
	first := job()
	killAll(t, b)
	startBelay(t, "b", o)
	u, _ := seen.await(t, mark, "x", 60*time.Second, "the Job is waited for", func(u *unstructured.Unstructured) bool {
		return strings.Contains(conditionOf(u, "Deployed").message, "Job x-before") && lockOf(u).held
	})
	if got := conditionOf(u, "Deployed"); got.status != "Unknown" || !strings.Contains(got.message, "at most 600 s") {
		t.Errorf("Deployed=%s: %s", got.status, got.message)
	}
	stays(t, 8*time.Second, "the Job runs on, alone, and no helm", func() bool { return job() == first && len(revisions(t, ns, "x")) == 2 })
	letHooksGo(t, ns)
	seen.await(t, mark, "x", 60*time.Second, "released", releasedTrue(gen))
	if got := newest(t, ns, "x"); got != 3 {
		t.Errorf("revision %d, want 3", got)
	}
	seen.checkTruth(t)
}

// What only the broken revision had made is deleted, and nothing else: neither what asks to be kept, nor what is somebody else's
// under the same name.
func TestObjectsOfABrokenRevisionGo(t *testing.T) {
	for _, major := range []string{"helm3", "helm4"} {
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			ns, dir := newNamespace(t)
			repo := startRepo(t, dir)
			repo.pack("turnover", "0.1.0")
			o := belayOptions{ns: ns, dir: dir, helm: major, flags: []string{"--lease-timeout", "5s"}}
			b := startBelay(t, "a", o)
			s := spec(repo, "turnover", "0.1.0", object{"round": "r0", "runFor": "2s"})
			s["releaseName"] = "x"
			createHR(t, ns, "x", s)
			waitReleased(t, ns, "x", "True", 60*time.Second)
			patchSpec(t, ns, "x", object{"values": object{"round": "r1"}})
			// The service comes after the ConfigMaps; then the hook after the upgrade runs for 2 s.
			eventually(t, 60*time.Second, "the broken revision has made its objects", func() bool {
				_, err := env.kube.CoreV1().Services(ns).Get(context.Background(), "x-r1", metav1.GetOptions{})
				c, cerr := env.kube.CoreV1().ConfigMaps(ns).Get(context.Background(), "x-r1", metav1.GetOptions{})
				return err == nil && cerr == nil && c.Annotations["meta.helm.sh/release-name"] == "x"
			})
			killAll(t, b)
			all := revisions(t, ns, "x")
			if last := all[len(all)-1]; last.n != 2 || last.status != "pending-upgrade" {
				t.Fatalf("killed too late: revision %d is %s", last.n, last.status)
			}
			keep := []byte(`{"metadata":{"annotations":{"helm.sh/resource-policy":"keep"}}}`)
			if _, err := env.kube.CoreV1().Services(ns).Patch(context.Background(), "x-r1", types.MergePatchType, keep, metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			gen := patchSpec(t, ns, "x", object{"values": object{"round": "r2"}})
			b = startBelay(t, "b", o)
			eventually(t, 60*time.Second, "released", func() bool { return releasedTrue(gen)(getHR(t, ns, "x")) })
			if got := newest(t, ns, "x"); got != 3 {
				t.Errorf("revision %d, want 3", got)
			}
			if _, err := env.kube.CoreV1().ConfigMaps(ns).Get(context.Background(), "x-r1", metav1.GetOptions{}); err == nil {
				t.Error("ConfigMap x-r1 is still there")
			}
			if _, err := env.kube.CoreV1().Services(ns).Get(context.Background(), "x-r1", metav1.GetOptions{}); err != nil {
				t.Errorf("Service x-r1, which asks to be kept: %v", err)
			}
			for _, name := range []string{"a", "b", "c", "d", "r2"} {
				if _, err := env.kube.CoreV1().ConfigMaps(ns).Get(context.Background(), "x-"+name, metav1.GetOptions{}); err != nil {
					t.Errorf("ConfigMap x-%s: %v", name, err)
				}
			}
			if got := revisions(t, ns, "x")[1].secret.Annotations[recordPrefix+"orphans-gone"]; got != "true" {
				t.Errorf("revision 2: orphans-gone=%q", got)
			}
			// What bears the name, but not helm's mark, or was there before, is nobody's orphan: the record is looked at again.
			stranger := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x-r1"}}
			if _, err := env.kube.CoreV1().ConfigMaps(ns).Create(context.Background(), stranger, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			again := []byte(`{"metadata":{"annotations":{"` + recordPrefix + `orphans-gone":null}}}`)
			if _, err := env.kube.CoreV1().Secrets(ns).Patch(context.Background(), "sh.helm.release.v1.x.v2", types.MergePatchType, again, metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			gen = patchSpec(t, ns, "x", object{"timeout": int64(301)}) // no new revision, but a sync
			eventually(t, 60*time.Second, "in sync", func() bool { return releasedTrue(gen)(getHR(t, ns, "x")) })
			if got := revisions(t, ns, "x")[1].secret.Annotations[recordPrefix+"orphans-gone"]; got != "true" {
				t.Errorf("revision 2 after a sync that found nothing to do: orphans-gone=%q", got)
			}
			if _, err := env.kube.CoreV1().ConfigMaps(ns).Get(context.Background(), "x-r1", metav1.GetOptions{}); err != nil {
				t.Errorf("somebody else's ConfigMap x-r1: %v", err)
			}
			if got := newest(t, ns, "x"); got != 3 {
				t.Errorf("revision %d, want 3", got)
			}
		})
	}
}

// ---- what is not belay's ----

// A person's helm that died: reported, left alone for --foreign-pending-timeout, by times that the API server stamped, and then
// repaired like one of ours. The timeout's minimum is a minute.
func TestForeignPendingIsGivenUpInTheEnd(t *testing.T) {
	t.Parallel()
	ns, dir := newNamespace(t)
	repo := startRepo(t, dir)
	repo.pack("slow", "0.1.0")
	seen := record(t, ns)
	patient := startBelay(t, "a", belayOptions{ns: ns, dir: dir})
	s := spec(repo, "slow", "0.1.0", object{"value": "spec"})
	s["releaseName"] = "x"
	createHR(t, ns, "x", s)
	waitReleased(t, ns, "x", "True", 60*time.Second)
	person := exec.Command(tool("helm3"), "--kubeconfig", env.admin, "upgrade", "x", dir+"/repo/slow-0.1.0.tgz", "-n", ns, "--set", "hold=true,value=person")
	if err := person.Start(); err != nil {
		t.Fatal(err)
	}
	waitRevision(t, ns, "x", 2, "pending-upgrade")
	_ = person.Process.Kill()
	_ = person.Wait()
	before := revisions(t, ns, "x")[1]
	u := waitReleased(t, ns, "x", "False", 60*time.Second)
	if c := conditionOf(u, "Released"); c.reason != "Pending" || !strings.Contains(c.message, "helm rollback x -n "+ns) || !strings.Contains(c.message, "unchanged for 1h") {
		t.Errorf("reason %s: %s", c.reason, c.message)
	}
	// Nothing is to be done about it for an hour, so nothing is done.
	mark := seen.mark()
	time.Sleep(15 * time.Second)
	if n := seen.mark() - mark; n > 0 {
		t.Errorf("%d writes to the HelmRelease within 15 s", n)
	}
	patient.stop(10 * time.Second)
	releaseHook(t, ns)
	startBelay(t, "b", belayOptions{ns: ns, dir: dir, flags: []string{"--foreign-pending-timeout", "1m"}})
	waitReleased(t, ns, "x", "True", 90*time.Second)
	all := revisions(t, ns, "x")
	if newest(t, ns, "x") != 3 {
		t.Errorf("revision %d, want 3", newest(t, ns, "x"))
	}
	checkRepaired(t, before, all[1])
	stood := all[2].secret.CreationTimestamp.Sub(before.secret.CreationTimestamp.Time)
	if stood < time.Minute {
		t.Errorf("repaired when it had stood for %v", stood)
	}
	if notes := strings.Join(eventsOf(t, ns, "ReleaseRepaired"), "\n"); !strings.Contains(notes, "must have given up") {
		t.Errorf("Events: %s", notes)
	}
	t.Logf("it had stood for %v", stood)
	seen.checkTruth(t)
}

// helm-operator notes the owner on live objects. A release without a record of ours that another HelmRelease owns that way is left
// alone; if that HelmRelease does not exist, it is adopted.
func TestAntecedentOfAnotherHelmRelease(t *testing.T) {
	t.Parallel()
	ns, dir := newNamespace(t)
	repo := startRepo(t, dir)
	repo.pack("one", "0.1.0")
	b := startBelay(t, "a", belayOptions{ns: ns, dir: dir})
	s := spec(repo, "one", "0.1.0", object{"v": "other"})
	s["releaseName"] = "elsewhere"
	createHR(t, ns, "other", s)
	waitReleased(t, ns, "other", "True", 60*time.Second)
	for _, name := range []string{"x", "y"} {
		helm(t, "helm3", "install", name, dir+"/repo/one-0.1.0.tgz", "-n", ns, "--set", "v=person")
		owner := map[string]string{"x": "other", "y": "nobody"}[name]
		patch, _ := json.Marshal(object{"metadata": object{"annotations": object{"helm.fluxcd.io/antecedent": ns + ":helmrelease/" + owner}}})
		if _, err := env.kube.CoreV1().ConfigMaps(ns).Patch(context.Background(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		s = spec(repo, "one", "0.1.0", object{"v": "spec"})
		s["releaseName"] = name
		createHR(t, ns, name, s)
	}
	u := waitReleased(t, ns, "x", "False", 30*time.Second)
	if c := conditionOf(u, "Released"); c.reason != "OwnedByOther" || !strings.Contains(c.message, ns+"/other") {
		t.Errorf("reason %s: %s", c.reason, c.message)
	}
	if f := u.GetFinalizers(); len(f) != 0 {
		t.Errorf("finalizers %v on what owns nothing", f)
	}
	waitReleased(t, ns, "y", "True", 30*time.Second)
	if got := newest(t, ns, "y"); got != 2 {
		t.Errorf("y: revision %d, want 2", got)
	}
	acquired := b.metric("belay_lock_acquired_total")
	stays(t, 6*time.Second, "x is left alone", func() bool { return newest(t, ns, "x") == 1 })
	if n := b.metric("belay_lock_acquired_total") - acquired; n > 1 {
		t.Errorf("%v locks within 6 s of a back-off of 10 s", n)
	}
	deleteHR(t, ns, "other")
	waitReleased(t, ns, "x", "True", 60*time.Second)
	if got := newest(t, ns, "x"); got != 2 {
		t.Errorf("x: revision %d, want 2", got)
	}
}
