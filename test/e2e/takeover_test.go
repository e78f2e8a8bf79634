package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// series is what a number of takeovers took.
type series struct {
	Runs   int     `json:"runs"`
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
	Goal   float64 `json:"goal,omitempty"`
	Unit   string  `json:"unit"`
}

func seriesOf(times []time.Duration, goal time.Duration) series {
	sorted := append([]time.Duration(nil), times...)
	sort.Slice(sorted, func(i, j int) bool { return sorted[i] < sorted[j] })
	n := len(sorted)
	return series{n, sorted[0].Seconds(), sorted[n/2].Seconds(), sorted[n-1].Seconds(), goal.Seconds(), "s"}
}

func (s series) String() string {
	return fmt.Sprintf("%d times, median %.2f s, maximum %.2f s", s.Runs, s.Median, s.Max)
}

var takeoverFile sync.Mutex

// saveTimes adds a series to build/takeover.json; what earlier runs measured under other names stays.
func saveTimes(t *testing.T, name string, s series) {
	t.Helper()
	takeoverFile.Lock()
	defer takeoverFile.Unlock()
	file := getenv("TAKEOVER_JSON", filepath.Join(env.root, "build/takeover.json"))
	all := map[string]series{}
	if text, err := os.ReadFile(file); err == nil {
		_ = json.Unmarshal(text, &all)
	}
	all[name] = s
	text, _ := json.MarshalIndent(all, "", "  ")
	if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
		t.Error(err)
	}
}

// newRandom is seeded by BELAY_SEED, else by the clock; a failure can be run again with the seed that it prints.
func newRandom(t *testing.T) *rand.Rand {
	t.Helper()
	seed := time.Now().UnixNano() & 0xffffffff
	if text := os.Getenv("BELAY_SEED"); text != "" {
		if _, err := fmt.Sscan(text, &seed); err != nil {
			t.Fatalf("BELAY_SEED: %v", err)
		}
	}
	t.Logf("BELAY_SEED=%d", seed)
	return rand.New(rand.NewSource(seed))
}

// fleet is a number of replicas, of which each that ends is replaced under its name.
type fleet struct {
	t  *testing.T
	o  belayOptions
	of map[string]*replica
}

func startFleet(t *testing.T, o belayOptions, names ...string) *fleet {
	t.Helper()
	f := &fleet{t, o, map[string]*replica{}}
	for _, name := range names {
		f.start(name)
	}
	return f
}

func (f *fleet) start(name string) {
	f.t.Helper()
	f.of[name] = startBelay(f.t, name, f.o)
}

func waitRevision(t *testing.T, ns, release string, n int, status string) {
	t.Helper()
	eventually(t, 30*time.Second, fmt.Sprintf("revision %d of %s is %s", n, release, status), func() bool {
		all := revisions(t, ns, release)
		return len(all) > 0 && all[len(all)-1].n == n && all[len(all)-1].status == status
	})
}

// How long nobody works on an object after its holder has gone, from the signal to the lock being held by another life.
// The bounds are wide, for a machine that does much else; the goals and what was measured are printed.
func TestTakeoverTimes(t *testing.T) {
	const lease = 5 * time.Second
	for _, way := range []struct {
		name        string
		replicas    []string
		flags       []string
		samePod     bool
		goal, bound time.Duration
	}{
		{"sigterm", []string{"a", "b"}, []string{"--shutdown-grace", "0s"}, false, time.Second, 3 * time.Second},
		{"same-pod-restart", []string{"a"}, nil, true, time.Second, 3 * time.Second},
		{"kill-9", []string{"a", "b"}, nil, false, lease + time.Second, lease + 5*time.Second},
	} {
		t.Run(way.name, func(t *testing.T) {
			for _, during := range []string{"helm", "download"} {
				t.Run(during, func(t *testing.T) {
					t.Parallel()
					ns, dir := newNamespace(t)
					o := belayOptions{ns: ns, dir: dir, flags: append([]string{"--lease-timeout", lease.String()}, way.flags...)}
					if way.samePod {
						o.env = []string{"POD_UID=" + ns}
					}
					m := &takeovers{t: t, ns: ns, during: during, random: newRandom(t), repo: startRepo(t, dir), seen: record(t, ns)}
					m.install()
					m.fleet = startFleet(t, o, way.replicas...)
					waitReleased(t, ns, "x", "True", 60*time.Second)
					var times []time.Duration
					for round := 1; round <= rounds(5); round++ {
						if took := m.round(round, way.name); took > 0 {
							times = append(times, took)
						}
					}
					if len(times) < rounds(5)*3/5 {
						t.Fatalf("only %d takeovers in %d rounds", len(times), rounds(5))
					}
					s := seriesOf(times, way.goal)
					fmt.Printf("e2e: takeover, %s during %s: %s (goal %v)\n", way.name, during, s, way.goal)
					saveTimes(t, way.name+" during "+during, s)
					if s.Max > way.bound.Seconds() {
						t.Errorf("a takeover took %.2f s, want at most %v", s.Max, way.bound)
					}
					m.seen.checkTruth(t)
				})
			}
		})
	}
}

// takeovers makes holders go in the middle of a sync, again and again.
type takeovers struct {
	t      *testing.T
	ns     string
	during string
	random *rand.Rand
	repo   *chartRepo
	seen   *recorder
	fleet  *fleet
}

func (m *takeovers) install() {
	for i := 0; i <= rounds(5); i++ {
		m.repo.pack("slow", fmt.Sprintf("0.1.%d", i))
	}
	s := spec(m.repo, "slow", "0.1.0", object{"value": "r0"})
	s["releaseName"], s["maxHistory"] = "x", int64(4)
	createHR(m.t, m.ns, "x", s)
}

// round lets the holder of a sync go and returns how long it took until another life held the lock.
func (m *takeovers) round(n int, way string) time.Duration {
	t := m.t
	t.Helper()
	before := newest(t, m.ns, "x")
	mark := m.seen.mark()
	var gen int64
	if m.during == "download" {
		m.repo.post("/-/delay?d=60s")
		gen = patchSpec(t, m.ns, "x", object{"chart": object{"version": fmt.Sprintf("0.1.%d", n)}})
		m.repo.waitDownload()
		m.repo.post("/-/delay?d=0s") // for the next download, not for this one
	} else {
		gen = patchSpec(t, m.ns, "x", object{"values": object{"hold": true, "value": fmt.Sprintf("r%d", n)}})
		waitRevision(t, m.ns, "x", before+1, "pending-upgrade")
	}
	u, _ := m.seen.await(t, mark, "x", 30*time.Second, "the lock is taken", heldAt(gen))
	held := lockOf(u)
	// A third of the lease: the holder goes at any point between two renewals.
	time.Sleep(time.Duration(m.random.Int63n(int64(1700 * time.Millisecond))))
	holder := m.fleet.of[held.replica()]
	// kwok plays pods by name: what it had in hand for the hook's last pod may reach the new one, and then nothing holds.
	if u := getHR(t, m.ns, "x"); m.during == "helm" && conditionOf(u, "Released").status != "Unknown" {
		t.Logf("round %d: the hook ended by itself, nobody to take over from", n)
		waitReleased(t, m.ns, "x", "True", 60*time.Second)
		return 0
	}
	mark = m.seen.mark()
	began := time.Now()
	switch way {
	case "sigterm":
		holder.signal(syscall.SIGTERM)
	case "kill-9":
		holder.kill()
	case "same-pod-restart":
		holder.kill()
		m.fleet.of[holder.name] = launchBelay(t, holder.name, m.fleet.o)
	}
	_, at := m.seen.await(t, mark, "x", 60*time.Second, "another life holds the lock", func(u *unstructured.Unstructured) bool {
		l := lockOf(u)
		return l.held && l.holder != held.holder && l.epoch > held.epoch
	})
	stop := letHooksGo(t, m.ns)
	m.seen.await(t, mark, "x", 60*time.Second, "released", releasedTrue(gen))
	stop()
	if way != "same-pod-restart" {
		<-holder.done
		m.fleet.start(holder.name)
	}
	return at.Sub(began)
}

// Whenever the holder is killed, with its helm or before it: the change ends deployed, once, in time, and nothing is left behind.
func TestKilledHoldersLeaveNothingBehind(t *testing.T) {
	const lease = 5 * time.Second
	for _, major := range []string{"helm3", "helm4"} {
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			ns, dir := newNamespace(t)
			random := newRandom(t)
			repo := startRepo(t, dir)
			repo.pack("turnover", "0.1.0")
			seen, deployed := record(t, ns), recordDeployments(t, ns)
			o := belayOptions{ns: ns, dir: dir, helm: major, flags: []string{"--lease-timeout", lease.String()}}
			f := startFleet(t, o, "a", "b", "c")
			s := spec(repo, "turnover", "0.1.0", object{"round": "r0"})
			s["releaseName"], s["maxHistory"] = "x", int64(0)
			createHR(t, ns, "x", s)
			waitReleased(t, ns, "x", "True", 60*time.Second)
			var usual, sum time.Duration
			const warm = 4
			for i := 0; i < warm; i++ { // undisturbed, to know how long an upgrade takes
				took := timeRound(t, ns, seen, fmt.Sprintf("warm%d", i))
				usual, sum = max(usual, took), sum+took
			}
			var times []time.Duration
			met := map[string]int{}
			for i := 1; i <= rounds(8); i++ {
				took, phase := killRound(t, ns, seen, f, i, time.Duration(random.Int63n(int64(sum/warm))))
				met[phase]++
				if phase != "after it" {
					times = append(times, took)
				}
				if limit := lease + 5*time.Second + usual; took > limit {
					t.Errorf("round %d: released %.1f s after the kill, want at most %.1f s", i, took.Seconds(), limit.Seconds())
				}
				checkNothingLeft(t, ns, deployed, fmt.Sprintf("r%d", i))
				if t.Failed() {
					t.FailNow() // each further round would only fail for the same reason
				}
			}
			all := revisions(t, ns, "x")
			for i := 1; i <= rounds(8); i++ {
				if got := deployed.of(t, all, "round", fmt.Sprintf("r%d", i)); len(got) != 1 {
					t.Errorf("r%d: revisions %v became deployed, want one", i, got)
				}
			}
			if len(times) == 0 {
				t.Fatal("every kill came too late: the test shows nothing")
			}
			out := seriesOf(times, lease+5*time.Second+usual)
			fmt.Printf("e2e: from kill -9 to Released=True, %s, an upgrade takes %.1f s: %s; killed %v\n", major, usual.Seconds(), out, met)
			saveTimes(t, "kill -9 to Released=True, "+major, out)
			seen.checkTruth(t)
		})
	}
}

func timeRound(t *testing.T, ns string, seen *recorder, value string) time.Duration {
	t.Helper()
	mark, began := seen.mark(), time.Now()
	gen := patchSpec(t, ns, "x", object{"values": object{"round": value}})
	_, at := seen.await(t, mark, "x", 60*time.Second, "released", releasedTrue(gen))
	return at.Sub(began)
}

// killRound edits, kills whoever holds the lock after the delay, and returns the time from the kill to Released=True and what the
// kill met: a sync "before helm's record", "during the upgrade", "with its result untold", or "after it".
func killRound(t *testing.T, ns string, seen *recorder, f *fleet, n int, delay time.Duration) (took time.Duration, phase string) {
	t.Helper()
	value := fmt.Sprintf("r%d", n)
	before := newest(t, ns, "x")
	mark := seen.mark()
	gen := patchSpec(t, ns, "x", object{"values": object{"round": value}})
	time.Sleep(delay)
	u, _ := seen.await(t, mark, "x", 30*time.Second, "the lock is taken", heldAt(gen))
	holder := f.of[lockOf(u).replica()]
	began := time.Now()
	if n%2 == 0 {
		for _, pid := range holder.descendants() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	holder.kill()
	phase = "before helm's record"
	if all := revisions(t, ns, "x"); all[len(all)-1].n > before {
		phase = "during the upgrade"
		if all[len(all)-1].status == "deployed" {
			phase = "with its result untold"
		}
	}
	f.start(holder.name)
	_, at := seen.await(t, mark, "x", 90*time.Second, fmt.Sprintf("round %d: released after the kill %s (%.2f s after the edit)", n, phase, delay.Seconds()),
		releasedTrue(gen))
	if at.Before(began) {
		phase = "after it"
	}
	t.Logf("round %d: killed %s after %.2f s, %s; released %.2f s later", n, holder.name, delay.Seconds(), phase, at.Sub(began).Seconds())
	return at.Sub(began), phase
}

// checkNothingLeft judges what stands when the change to this value is done.
func checkNothingLeft(t *testing.T, ns string, deployed *deployments, value string) {
	t.Helper()
	newest(t, ns, "x")
	all := revisions(t, ns, "x")
	var last payload
	for _, r := range all {
		if strings.HasPrefix(r.status, "pending-") || r.status == "uninstalling" {
			t.Errorf("%s: revision %d is still %s", value, r.n, r.status)
		}
		if last = r.payload(t); last.Config["round"] != value {
			continue
		}
		if last.Info.Status != r.status {
			t.Errorf("%s: revision %d is labelled %s, but it is %s", value, r.n, r.status, last.Info.Status)
		}
	}
	if got := deployed.of(t, all, "round", value); len(got) != 1 {
		t.Errorf("%s: revisions %v with this value became deployed, want one", value, got)
	}
	if out := helm(t, "helm3", "list", "-a", "-n", ns); strings.Contains(out, "pending") || !strings.Contains(out, "deployed") {
		t.Errorf("%s: helm list -a says\n%s", value, out)
	}
	// Every object of the release, and no other, is in the newest manifest.
	want := map[string]bool{"Service x-" + value: true}
	for _, name := range []string{"a", "b", "c", "d", value} {
		want["ConfigMap x-"+name] = true
	}
	for name := range want {
		if kind, object, _ := strings.Cut(name, " "); !strings.Contains(last.Manifest, "kind: "+kind+"\n") || !strings.Contains(last.Manifest, object) {
			t.Errorf("%s: %s is not in the newest manifest", value, name)
		}
	}
	selector := metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=x"}
	configMaps, err := env.kube.CoreV1().ConfigMaps(ns).List(context.Background(), selector)
	if err != nil {
		t.Fatal(err)
	}
	services, err := env.kube.CoreV1().Services(ns).List(context.Background(), selector)
	if err != nil {
		t.Fatal(err)
	}
	var orphans []string
	found := func(name string) {
		if !want[name] {
			orphans = append(orphans, name)
		}
		delete(want, name)
	}
	for _, o := range configMaps.Items {
		found("ConfigMap " + o.Name)
		if o.Data["round"] != value {
			t.Errorf("%s: ConfigMap %s holds %q", value, o.Name, o.Data["round"])
		}
	}
	for _, o := range services.Items {
		found("Service " + o.Name)
	}
	if len(orphans) > 0 || len(want) > 0 {
		t.Errorf("%s: orphans %v, missing %v", value, orphans, want)
	}
}
