package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// ---- the audit log ----

// auditEvent is a request as kube-apiserver notes it when its answer is complete.
type auditEvent struct {
	Verb, RequestURI, UserAgent string
	User                        struct{ Username string }
	ObjectRef                   struct{ Resource, Namespace, Name, Subresource string }
	ResponseStatus              struct{ Code int }
	RequestReceivedTimestamp    time.Time
	StageTimestamp              time.Time
}

func (e auditEvent) String() string {
	return fmt.Sprintf("%s %s %d by %s at %s", e.Verb, e.RequestURI, e.ResponseStatus.Code, e.User.Username,
		e.StageTimestamp.Format("15:04:05.000000"))
}

// mutates tells whether a request is one of those that the fence is there for.
func (e auditEvent) mutates() bool {
	switch e.Verb {
	case "create", "update", "patch", "delete", "deletecollection":
	default:
		return false
	}
	switch e.ObjectRef.Resource {
	case "helmreleases":
		// belay's own: renewals and results, each guarded by a test of holder and epoch or by the resourceVersion.
		return false
	case "events", "leases":
		// belay's own reports and its membership: no part of any release.
		return false
	case "selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews":
		return false // questions, by their nature asked with POST
	}
	return true
}

// auditLog reads what the suite's own API server noted since it was opened.
type auditLog struct {
	t      *testing.T
	file   string
	offset int64
}

func openAudit(t *testing.T) *auditLog {
	t.Helper()
	if !env.own {
		t.Skip("only the suite's own cluster has an audit log")
	}
	a := &auditLog{t: t, file: filepath.Join(env.dir, "cluster", "audit.log")}
	info, err := os.Stat(a.file)
	if err != nil {
		t.Fatal(err)
	}
	a.offset = info.Size()
	return a
}

// next returns the events of the namespace since the last call.
func (a *auditLog) next(ns string) []auditEvent {
	a.t.Helper()
	f, err := os.Open(a.file)
	if err != nil {
		a.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Seek(a.offset, io.SeekStart); err != nil {
		a.t.Fatal(err)
	}
	var all []auditEvent
	for r := bufio.NewReader(f); ; {
		line, err := r.ReadBytes('\n')
		if err != nil { // the last line may still be in the making
			return all
		}
		a.offset += int64(len(line))
		if !bytes.Contains(line, []byte(`"`+ns+`"`)) {
			continue
		}
		var e auditEvent
		if err := json.Unmarshal(line, &e); err != nil {
			a.t.Fatalf("%v: %s", err, line)
		}
		if e.ObjectRef.Namespace == ns {
			all = append(all, e)
		}
	}
}

// ownAccount gives a replica a ServiceAccount of its own with the rights of the chart's: then the audit log tells replicas apart.
// It returns the kubeconfig and the user's name.
func ownAccount(t *testing.T, name string) (kubeconfig, user string) {
	t.Helper()
	ctx := context.Background()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := env.kube.CoreV1().ServiceAccounts(systemNamespace).Create(ctx, account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	bindings, err := env.kube.RbacV1().ClusterRoleBindings().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range bindings.Items {
		for _, s := range b.Subjects {
			if s.Namespace != systemNamespace || s.Name != serviceAccount {
				continue
			}
			own := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: b.Name + "-" + name}, RoleRef: b.RoleRef,
				Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: systemNamespace, Name: name}}}
			if _, err := env.kube.RbacV1().ClusterRoleBindings().Create(ctx, own, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
				t.Fatal(err)
			}
		}
	}
	kubeconfig, err = accountConfig(name, name, env.rest.Host, env.rest.CAData)
	if err != nil {
		t.Fatal(err)
	}
	return kubeconfig, "system:serviceaccount:" + systemNamespace + ":" + name
}

// ---- the test ----

// A holder that is stopped with its helm in the middle of an upgrade and wakes up when another one has taken over writes nothing
// any more: judged by the API server's audit log, in which each replica (and so its helm) has a name of its own.
func TestWokenHolderWritesNothing(t *testing.T) {
	for _, major := range []string{"helm3", "helm4"} {
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			w := &woken{t: t, audit: openAudit(t), random: newRandom(t), user: map[string]string{}, met: map[string]int{}}
			var dir string
			w.ns, dir = newNamespace(t)
			repo := startRepo(t, dir)
			repo.pack("thirty", "0.1.0")
			w.seen, w.deployed = record(t, w.ns), recordDeployments(t, w.ns)
			o := belayOptions{ns: w.ns, dir: dir, helm: major, flags: append([]string{"--lease-timeout", "5s"}, strings.Fields(os.Getenv("WOKEN_FLAGS"))...)}
			w.fleet = startFleet(t, o)
			for _, name := range []string{"a", "b"} {
				w.fleet.o.kubeconfig, w.user[name] = ownAccount(t, "woken-"+major+"-"+name)
				w.fleet.start(name)
			}
			s := spec(repo, "thirty", "0.1.0", object{"value": "start"})
			s["releaseName"], s["maxHistory"] = "x", int64(0)
			createHR(t, w.ns, "x", s)
			waitReleased(t, w.ns, "x", "True", 60*time.Second)
			w.audit.next(w.ns)
			for i := 0; i < 3; i++ {
				w.usual = max(w.usual, w.undisturbed(fmt.Sprintf("warm%d", i)))
			}
			n := rounds(8)
			for done, tries := 0, 0; done < n; tries++ {
				if tries > 3*n {
					t.Fatalf("of %d upgrades only %d could be stopped in time", tries, done)
				}
				if w.round(done) {
					done++
				}
				if t.Failed() {
					t.FailNow()
				}
			}
			fmt.Printf("e2e: woken holders, %s: %d rounds, %d writes of theirs before the takeover, none after it; stopped %v\n", major, n, w.before, w.met)
			if w.before == 0 {
				t.Error("no stopped holder had written anything: the test shows nothing")
			}
			w.seen.checkTruth(t)
		})
	}
}

type woken struct {
	t        *testing.T
	ns       string
	audit    *auditLog
	random   *rand.Rand
	seen     *recorder
	deployed *deployments
	fleet    *fleet
	user     map[string]string // of each replica, in the audit log
	usual    time.Duration     // from taking the lock to Released=True
	made     int               // values so far
	before   int               // writes of stopped holders that came before the takeover
	met      map[string]int    // what the stop met
}

// edit changes the value and waits until somebody holds the lock for it.
func (w *woken) edit(value string) (mark int, gen int64, lock lockView, at time.Time) {
	w.t.Helper()
	mark = w.seen.mark()
	gen = patchSpec(w.t, w.ns, "x", object{"values": object{"value": value}})
	u, at := w.seen.await(w.t, mark, "x", 30*time.Second, "the lock is taken", heldAt(gen))
	return mark, gen, lockOf(u), at
}

func (w *woken) undisturbed(value string) time.Duration {
	w.t.Helper()
	mark, gen, _, began := w.edit(value)
	_, at := w.seen.await(w.t, mark, "x", 60*time.Second, "released", releasedTrue(gen))
	return at.Sub(began)
}

func signalAll(pids []int, s syscall.Signal) {
	for _, pid := range pids {
		_ = syscall.Kill(pid, s)
	}
}

// round stops a holder with its helm at a random point and wakes it up after the takeover. False: it was done before it was stopped.
func (w *woken) round(n int) bool {
	t := w.t
	t.Helper()
	w.made++
	value := fmt.Sprintf("r%d", w.made)
	before := newest(t, w.ns, "x")
	_, gen, lock, _ := w.edit(value)
	holder := w.fleet.of[lock.replica()]
	time.Sleep(time.Duration(w.random.Int63n(int64(w.usual))))

	// Who is stopped first, and who is woken first, in all four ways.
	helmFirst, helmWokenFirst := n%2 == 0, n/2%2 == 0
	helms := holder.descendants()
	if helmFirst {
		signalAll(helms, syscall.SIGSTOP)
	}
	holder.signal(syscall.SIGSTOP)
	stopped := time.Now()
	if !helmFirst {
		// helm goes on until it wants something of belay: its next request waits in the socket for the day when belay wakes up.
		time.Sleep(time.Duration(w.random.Int63n(int64(200 * time.Millisecond))))
		helms = holder.descendants() // what was forked in the last moment, too
		signalAll(helms, syscall.SIGSTOP)
	}
	mark := w.seen.mark()
	if now := getHR(t, w.ns, "x"); lockOf(now) != lock {
		signalAll(helms, syscall.SIGCONT)
		holder.signal(syscall.SIGCONT)
		waitReleased(t, w.ns, "x", "True", 60*time.Second)
		w.audit.next(w.ns)
		return false
	}
	phase := "before helm's record"
	if all := revisions(t, w.ns, "x"); all[len(all)-1].n > before {
		phase = "with its record " + all[len(all)-1].status
	}
	w.met[phase]++

	u, _ := w.seen.await(t, mark, "x", 30*time.Second, "another replica takes over", func(u *unstructured.Unstructured) bool {
		l := lockOf(u)
		return l.held && l.replica() != holder.name && l.epoch == lock.epoch+1
	})
	other := lockOf(u).replica()
	// Now and then it wakes up while the other one is at work.
	early := n%3 == 2
	if !early {
		w.seen.await(t, mark, "x", 60*time.Second, "the other replica finishes "+value+", stopped "+phase, releasedTrue(gen))
	}
	for _, isHelm := range []bool{helmWokenFirst, !helmWokenFirst} {
		if isHelm {
			signalAll(helms, syscall.SIGCONT)
		} else {
			holder.signal(syscall.SIGCONT)
		}
		time.Sleep(time.Duration(w.random.Int63n(int64(50 * time.Millisecond))))
	}
	w.seen.await(t, mark, "x", 60*time.Second, "the other replica finishes "+value+", stopped "+phase, releasedTrue(gen))
	eventually(t, 15*time.Second, "the helm that was stopped is gone", func() bool {
		for _, pid := range helms {
			if syscall.Kill(pid, 0) == nil {
				return false
			}
		}
		return true
	})
	time.Sleep(3 * time.Second) // whatever still wants to write, does
	w.judge(value, phase, holder, other, stopped)
	t.Logf("round %d: %s stopped %s (helm first: %v), woken (helm first: %v, early: %v)", n, holder.name, phase, helmFirst, helmWokenFirst, early)
	return true
}

// judge reads the audit log: from the takeover's PATCH on, nothing mutating comes from the old holder, done or refused.
func (w *woken) judge(value, phase string, old *replica, other string, stopped time.Time) {
	t := w.t
	t.Helper()
	events := w.audit.next(w.ns)
	var taken time.Time
	for _, e := range events {
		if e.User.Username == w.user[other] && e.Verb == "patch" && e.ObjectRef.Resource == "helmreleases" && e.ObjectRef.Subresource == "status" &&
			e.ResponseStatus.Code == 200 && e.RequestReceivedTimestamp.After(stopped) && (taken.IsZero() || e.StageTimestamp.Before(taken)) {
			taken = e.StageTimestamp
		}
	}
	if taken.IsZero() {
		t.Fatalf("%s: the audit log does not show the takeover by %s", value, other)
	}
	others := 0
	for _, e := range events {
		switch {
		case !e.mutates():
		case e.User.Username == w.user[other]:
			others++
		case e.User.Username != w.user[old.name]:
		case e.StageTimestamp.Before(taken):
			w.before++
		default:
			t.Errorf("%s, stopped %s: %v after the takeover at %s: %v", value, phase, e.StageTimestamp.Sub(taken), taken.Format("15:04:05.000000"), e)
		}
	}
	if others == 0 && phase != "with its record deployed" {
		t.Errorf("%s: the audit log shows no write of %s, which did the upgrade", value, other)
	}
	newest(t, w.ns, "x")
	if got := w.deployed.of(t, revisions(t, w.ns, "x"), "value", value); len(got) != 1 {
		t.Errorf("%s: revisions %v with this value became deployed, want one", value, got)
	}
	list, err := env.kube.CoreV1().ConfigMaps(w.ns).List(context.Background(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/managed-by=Helm"})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 30 {
		t.Errorf("%s: %d ConfigMaps, want 30", value, len(list.Items))
	}
	for _, c := range list.Items {
		if c.Data["value"] != value {
			t.Errorf("%s: %s holds %q", value, c.Name, c.Data["value"])
		}
	}
}
