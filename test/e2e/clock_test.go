package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// lyingProxy stands between a replica and the API server and tells it another time.
type lyingProxy struct {
	url   string
	ca    []byte
	told  atomic.Int64 // replies
	conns atomic.Int64
	drop  atomic.Pointer[func(r *http.Request) bool] // true: the reply to r, which was carried out, never comes
}

type connKey struct{}

// startLyingProxy: lie changes the headers of a reply that came at now, on the connection of that number.
func startLyingProxy(t *testing.T, lie func(h http.Header, now time.Time, connection int64)) *lyingProxy {
	t.Helper()
	target, err := url.Parse(env.rest.Host)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(env.rest.CAData) {
		t.Fatal("no CA of the API server")
	}
	p := &lyingProxy{}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, MaxIdleConnsPerHost: 50},
		FlushInterval: -1, // watches
		ModifyResponse: func(r *http.Response) error {
			if drop := p.drop.Load(); drop != nil && (*drop)(r.Request) {
				panic(http.ErrAbortHandler)
			}
			connection, _ := r.Request.Context().Value(connKey{}).(int64)
			lie(r.Header, time.Now(), connection)
			p.told.Add(1)
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadGateway)
		},
	}
	server := httptest.NewUnstartedServer(proxy)
	server.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, p.conns.Add(1))
	}
	server.Config.ErrorLog = nil
	server.StartTLS()
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	p.url = server.URL
	p.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return p
}

// A Date that lies to one replica of two, or to each of its connections another way, robs no living holder and makes no revision.
func TestDatesThatLieRobNobody(t *testing.T) {
	const objects, edits = 10, 2
	stamp := func(h http.Header, at time.Time) { h.Set("Date", at.UTC().Format(http.TimeFormat)) }
	for _, row := range []struct {
		name string
		lie  func(h http.Header, now time.Time, connection int64)
	}{
		{"an-hour-ahead", func(h http.Header, now time.Time, _ int64) { stamp(h, now.Add(time.Hour)) }},
		{"an-hour-behind", func(h http.Header, now time.Time, _ int64) { stamp(h, now.Add(-time.Hour)) }},
		{"from-a-cache", func(h http.Header, now time.Time, connection int64) {
			// Every second connection goes through a cache that is an hour old and says so.
			if connection%2 == 0 {
				stamp(h, now.Add(-time.Hour))
				h.Set("Age", "3600")
			}
		}},
		{"servers-disagree", func(h http.Header, now time.Time, connection int64) {
			stamp(h, now.Add(time.Duration(connection%2*6-3)*time.Second))
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			ns, dir := newNamespace(t)
			proxy := startLyingProxy(t, row.lie)
			repo := startRepo(t, dir)
			repo.pack("slow", "0.1.0")
			seen := record(t, ns)
			lied, err := accountConfig("lied-to-"+row.name, serviceAccount, proxy.url, proxy.ca)
			if err != nil {
				t.Fatal(err)
			}
			// With a membership, or the one that is nearer to the API server would win every race.
			// Ten seconds, and few helms at once: on a busy machine a shorter lease is lost for want of CPU, which is not what is asked here.
			o := belayOptions{ns: ns, dir: dir, flags: []string{"--lease-timeout", "10s", "--workers", "5", "--charts-sync-interval", "2s"},
				env: []string{"POD_NAMESPACE=" + systemNamespace}}
			f := startFleet(t, o, "direct")
			f.o.kubeconfig = lied
			f.start("lied-to")
			time.Sleep(12 * time.Second) // two beats of the membership: each knows the other
			for i := 0; i < objects; i++ {
				s := spec(repo, "slow", "0.1.0", object{"value": "r0"})
				s["releaseName"] = fmt.Sprintf("c%d", i)
				createHR(t, ns, fmt.Sprintf("c%d", i), s)
			}
			waitAll(t, ns, objects, 2*time.Minute)
			epochs := map[string]int64{}
			for i := 0; i < objects; i++ {
				name := fmt.Sprintf("c%d", i)
				epochs[name] = lockOf(getHR(t, ns, name)).epoch
				if epochs[name] != 1 {
					t.Errorf("%s: the install took %d locks, want 1", name, epochs[name])
				}
			}
			mark := seen.mark()
			for e := 1; e <= edits; e++ {
				runFor := "0s"
				if e == edits {
					runFor = "22s" // more than two leases: only renewals keep these
				}
				for i := 0; i < objects; i++ {
					patchSpec(t, ns, fmt.Sprintf("c%d", i), object{"values": object{"value": fmt.Sprintf("r%d", e), "runFor": runFor}})
				}
				waitAll(t, ns, objects, 2*time.Minute)
			}
			for i := 0; i < objects; i++ {
				name := fmt.Sprintf("c%d", i)
				if got := newest(t, ns, name); got != edits+1 {
					t.Errorf("%s: revision %d after %d edits, want %d", name, got, edits, edits+1)
				}
				if got := lockOf(getHR(t, ns, name)).epoch; got != epochs[name]+edits {
					t.Errorf("%s: %d locks were taken for %d edits", name, got-epochs[name], edits)
				}
			}
			held := map[string]map[string]bool{} // replica -> object and epoch
			for _, u := range seen.all()[mark:] {
				if l := lockOf(u); l.held {
					if held[l.replica()] == nil {
						held[l.replica()] = map[string]bool{}
					}
					held[l.replica()][fmt.Sprintf("%s %d", u.GetName(), l.epoch)] = true
				}
			}
			fmt.Printf("e2e: %s: of %d edits the replica that is lied to did %d, the other %d (%d replies)\n", row.name, objects*edits, len(held["lied-to"]), len(held["direct"]), proxy.told.Load())
			for _, name := range []string{"direct", "lied-to"} {
				if len(held[name]) == 0 {
					t.Errorf("%s never held a lock: the test shows nothing", name)
				}
				if f.of[name].logged("took over an expired lock") {
					t.Errorf("%s took a lock over from a living holder", name)
				}
				if f.of[name].logged("lock lost") {
					t.Errorf("%s lost a lock", name)
				}
			}
			seen.checkTruth(t)
		})
	}
}

// A write of helm whose answer is lost may still be carried out for all that belay knows: the lock is not given up by hand, its lease
// runs out, and only then somebody goes on; the change is released all the same.
func TestLockWithAnUnansweredWriteRunsOut(t *testing.T) {
	for _, major := range []string{"helm3", "helm4"} {
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			ns, dir := newNamespace(t)
			proxy := startLyingProxy(t, func(http.Header, time.Time, int64) {})
			config, err := accountConfig("unanswered-"+major, serviceAccount, proxy.url, proxy.ca)
			if err != nil {
				t.Fatal(err)
			}
			repo := startRepo(t, dir)
			repo.pack("podinfo-like", "1.0.0")
			b := startBelay(t, "a", belayOptions{ns: ns, dir: dir, helm: major, kubeconfig: config, flags: []string{"--lease-timeout", "5s"}})
			s := spec(repo, "podinfo-like", "1.0.0", object{"podAnnotations": object{"round": "0"}})
			s["releaseName"] = "x"
			seen := record(t, ns)
			createHR(t, ns, "x", s)
			waitReleased(t, ns, "x", "True", 60*time.Second)
			var dropped atomic.Int64 // when, in nanoseconds
			drop := func(r *http.Request) bool {
				return r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/deployments/x") && dropped.CompareAndSwap(0, time.Now().UnixNano())
			}
			proxy.drop.Store(&drop)
			mark := seen.mark()
			gen := patchSpec(t, ns, "x", object{"values": object{"podAnnotations": object{"round": "1"}}})
			u, _ := seen.await(t, mark, "x", 30*time.Second, "the lock is taken", heldAt(gen))
			first := lockOf(u)
			_, at := seen.await(t, mark, "x", 60*time.Second, "the next lock, or a result", func(u *unstructured.Unstructured) bool {
				return observed(u) == gen && (lockOf(u).epoch > first.epoch || !lockOf(u).held)
			})
			if dropped.Load() == 0 {
				t.Fatal("no PATCH of the Deployment came through the proxy")
			}
			// The lease counts from a grant that was at most a third of it old.
			if waited := at.Sub(time.Unix(0, dropped.Load())); waited < 3*time.Second {
				t.Errorf("the lock was given up %v after the write that has no answer", waited)
			}
			final, _ := seen.await(t, mark, "x", 60*time.Second, "released", releasedTrue(gen))
			if lockOf(final).epoch != first.epoch+1 {
				t.Errorf("epoch %d, want %d", lockOf(final).epoch, first.epoch+1)
			}
			if !b.logged("the lock is left to run out") {
				t.Error("nothing in the log says why")
			}
			seen.checkTruth(t)
		})
	}
}

// A replica that is alone, stopped for longer than its lease in the middle of helm, has lost its lock, and nobody changes the object:
// it must go on by itself.
func TestLonelyHolderGoesOnAfterAPause(t *testing.T) {
	t.Parallel()
	ns, dir := newNamespace(t)
	repo := startRepo(t, dir)
	repo.pack("slow", "0.1.0")
	b := startBelay(t, "a", belayOptions{ns: ns, dir: dir, flags: []string{"--lease-timeout", "5s", "--charts-sync-interval", "1h"}})
	s := spec(repo, "slow", "0.1.0", object{"value": "r0"})
	s["releaseName"] = "x"
	seen := record(t, ns)
	createHR(t, ns, "x", s)
	waitReleased(t, ns, "x", "True", 60*time.Second)
	before := newest(t, ns, "x")
	mark := seen.mark()
	gen := patchSpec(t, ns, "x", object{"values": object{"hold": true, "value": "r1"}})
	waitRevision(t, ns, "x", before+1, "pending-upgrade")
	u, _ := seen.await(t, mark, "x", 30*time.Second, "the lock is taken", heldAt(gen))
	first := lockOf(u)
	b.signal(syscall.SIGSTOP)
	time.Sleep(6 * time.Second)
	b.signal(syscall.SIGCONT)
	seen.await(t, mark, "x", 30*time.Second, "the lock is taken again", func(u *unstructured.Unstructured) bool {
		return lockOf(u).held && lockOf(u).epoch > first.epoch
	})
	stop := letHooksGo(t, ns)
	seen.await(t, mark, "x", 60*time.Second, "released", releasedTrue(gen))
	stop()
	seen.checkTruth(t)
}
