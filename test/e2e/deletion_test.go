package e2e

import (
	"context"
	"os/exec"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func waitGone(t *testing.T, ns, name string, within time.Duration) {
	t.Helper()
	eventually(t, within, ns+"/"+name+" is gone", func() bool {
		_, err := env.dyn.Resource(helmReleases).Namespace(ns).Get(context.Background(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

func waitNamespaceGone(t *testing.T, ns string, within time.Duration) {
	t.Helper()
	eventually(t, within, "namespace "+ns+" is gone", func() bool {
		_, err := env.kube.CoreV1().Namespaces().Get(context.Background(), ns, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

func deleteNamespace(t *testing.T, ns string) {
	t.Helper()
	if err := env.kube.CoreV1().Namespaces().Delete(context.Background(), ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// A namespace that is deleted with its HelmReleases ends: the finalizer never holds it up, whatever goes first.
func TestNamespaceDeletionIsNotHeldUp(t *testing.T) {
	for _, major := range []string{"helm3", "helm4"} {
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			ns, dir := newNamespace(t)
			repo := startRepo(t, dir)
			repo.pack("one", "0.1.0")
			repo.pack("hook", "0.1.0")
			startBelay(t, "a", belayOptions{ns: ns, dir: dir, helm: major})
			for _, chart := range []string{"one", "hook"} {
				s := spec(repo, chart, "0.1.0", object{})
				s["releaseName"] = chart
				createHR(t, ns, chart, s)
			}
			for _, chart := range []string{"one", "hook"} {
				waitReleased(t, ns, chart, "True", 60*time.Second)
			}
			deleteNamespace(t, ns)
			waitNamespaceGone(t, ns, 90*time.Second)
		})
	}
}

// The target namespace goes while the HelmRelease lives elsewhere: told, retried with back-off, and a deletion then ends at once.
func TestTargetNamespaceGone(t *testing.T) {
	t.Parallel()
	ns, dir := newNamespace(t)
	target := ns + "-target"
	createNamespace(t, target)
	repo := startRepo(t, dir)
	repo.pack("one", "0.1.0")
	startBelay(t, "a", belayOptions{dir: dir, flags: []string{"--charts-sync-interval", "2s", "--watch-label-selector", "test=" + ns}})
	s := spec(repo, "one", "0.1.0", object{"v": "1"})
	s["releaseName"], s["targetNamespace"] = "x", target
	createHR(t, ns, "x", s)
	label(t, ns, "x", "test="+ns)
	waitReleased(t, ns, "x", "True", 60*time.Second)
	deleteNamespace(t, target)
	waitNamespaceGone(t, target, 60*time.Second)
	u := waitReleased(t, ns, "x", "False", 60*time.Second)
	t.Logf("%s", conditionOf(u, "Released").message)
	deleteHR(t, ns, "x")
	waitGone(t, ns, "x", 30*time.Second)
}

func label(t *testing.T, ns, name, label string) {
	t.Helper()
	if out, err := exec.Command(tool("kubectl"), "--kubeconfig", env.admin, "label", "helmrelease", name, "-n", ns, label).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// Objects that need no uninstall end at once: never installed, a bad spec, or a release that a person has removed.
func TestDeletionOfWhatWasNeverReleased(t *testing.T) {
	t.Parallel()
	ns, dir := newNamespace(t)
	repo := startRepo(t, dir)
	repo.pack("one", "0.1.0")
	repo.pack("broken", "0.1.0")
	startBelay(t, "a", belayOptions{ns: ns, dir: dir})
	bad := spec(repo, "one", "0.1.0", nil)
	bad["helmVersion"] = "v2"
	failing := spec(repo, "broken", "0.1.0", object{"text": "never"})
	missing := spec(repo, "one", "0.1.0", nil)
	missing["valuesFrom"] = []any{object{"secretKeyRef": object{"name": "absent"}}}
	removed := spec(repo, "one", "0.1.0", nil)
	removed["releaseName"] = "removed"
	createHR(t, ns, "bad", bad)
	createHR(t, ns, "failing", failing)
	createHR(t, ns, "missing", missing)
	createHR(t, ns, "removed", removed)
	for _, name := range []string{"bad", "failing", "missing"} {
		waitReleased(t, ns, name, "False", 60*time.Second)
	}
	waitReleased(t, ns, "removed", "True", 60*time.Second)
	helm(t, "helm3", "uninstall", "removed", "-n", ns)
	for _, name := range []string{"bad", "failing", "missing", "removed"} {
		deleteHR(t, ns, name)
		waitGone(t, ns, name, 30*time.Second)
	}
}

// An owner that no longer exists is no owner: a HelmRelease that was recreated (backup, GitOps) adopts its release, with no new
// revision. A spec that was edited into something illegal does not keep a deleted object, nor its release, alive.
func TestOwnersThatAreGoneAndSpecsThatWentBad(t *testing.T) {
	t.Parallel()
	ns, dir := newNamespace(t)
	repo := startRepo(t, dir)
	repo.pack("one", "0.1.0")
	startBelay(t, "a", belayOptions{ns: ns, dir: dir})
	s := spec(repo, "one", "0.1.0", object{"v": "1"})
	s["releaseName"] = "x"
	createHR(t, ns, "x", s)
	waitReleased(t, ns, "x", "True", 60*time.Second)
	// Gone without an uninstall, as a backup's restore or a forced deletion leaves it.
	body := []byte(`[{"op":"remove","path":"/metadata/finalizers"}]`)
	if _, err := env.dyn.Resource(helmReleases).Namespace(ns).Patch(context.Background(), "x", "application/json-patch+json", body, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	deleteHR(t, ns, "x")
	waitGone(t, ns, "x", 30*time.Second)
	createHR(t, ns, "again", s)
	waitReleased(t, ns, "again", "True", 60*time.Second)
	if got := newest(t, ns, "x"); got != 1 {
		t.Errorf("revision %d after the adoption, want 1", got)
	}
	patchSpec(t, ns, "again", object{"releaseName": "NOT LEGAL"})
	waitReleased(t, ns, "again", "False", 30*time.Second)
	deleteHR(t, ns, "again")
	waitGone(t, ns, "again", 30*time.Second)
	if left := revisions(t, ns, "x"); len(left) != 0 {
		t.Errorf("%d records of the release are left", len(left))
	}
}
