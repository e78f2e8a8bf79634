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
	"sync/atomic"
	"testing"
	"time"
)

// lyingProxy stands between a replica and the API server and tells it another time.
type lyingProxy struct {
	url   string
	ca    []byte
	told  atomic.Int64 // replies
	conns atomic.Int64
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
			o := belayOptions{ns: ns, dir: dir, flags: []string{"--lease-timeout", "5s", "--workers", "10", "--charts-sync-interval", "2s"},
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
					runFor = "12s" // more than two leases: only renewals keep these
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
