package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// eventNotes are the notes of the object's Events with this reason.
func eventNotes(t *testing.T, ns, name, reason string) []string {
	t.Helper()
	list, err := env.kube.EventsV1().Events(ns).List(context.Background(), metav1.ListOptions{FieldSelector: "regarding.name=" + name})
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

// The Event of a result says what the sync wrote; what it created carries helm-operator's mark of ownership, which the next helm keeps.
func TestSyncTellsWhatItWroteAndMarksIt(t *testing.T) {
	for _, major := range []string{"helm3", "helm4"} {
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			ns, dir := newNamespace(t)
			repo := startRepo(t, dir)
			repo.pack("podinfo-like", "1.0.0")
			b := startBelay(t, "a", belayOptions{ns: ns, dir: dir, helm: major})
			s := spec(repo, "podinfo-like", "1.0.0", object{"podAnnotations": object{"round": "0"}})
			s["releaseName"] = "web"
			createHR(t, ns, "web", s)
			waitReleased(t, ns, "web", "True", 60*time.Second)
			wrote := func(want string) {
				t.Helper()
				eventuallyf(t, 10*time.Second, func() string {
					return fmt.Sprintf("an Event with %q; there are %q", want, eventNotes(t, ns, "web", "ReleaseSynced"))
				}, func() bool {
					for _, note := range eventNotes(t, ns, "web", "ReleaseSynced") {
						if strings.HasSuffix(note, want) {
							return true
						}
					}
					return false
				})
			}
			wrote("synchronized: 3 created, 0 changed, 0 deleted")
			marked := func() {
				t.Helper()
				want := ns + ":helmrelease/web"
				d, err := env.kube.AppsV1().Deployments(ns).Get(context.Background(), "web", metav1.GetOptions{})
				if err != nil || d.Annotations["helm.fluxcd.io/antecedent"] != want {
					t.Fatalf("Deployment: %v, annotations %v", err, d.Annotations)
				}
				svc, err := env.kube.CoreV1().Services(ns).Get(context.Background(), "web", metav1.GetOptions{})
				if err != nil || svc.Annotations["helm.fluxcd.io/antecedent"] != want {
					t.Fatalf("Service: %v, annotations %v", err, svc.Annotations)
				}
			}
			marked()
			patchSpec(t, ns, "web", object{"values": object{"podAnnotations": object{"round": "1"}}})
			waitReleased(t, ns, "web", "True", 60*time.Second)
			wrote("synchronized: 0 created, 1 changed, 0 deleted")
			marked()
			b.stop(20 * time.Second)
		})
	}
}
