//go:build bench

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// spread is what one series of measurements says; a single number would hide how sure it is.
type spread struct {
	Runs   int     `json:"runs"`
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
	Unit   string  `json:"unit"`
}

func spreadOf(values []float64, unit string) spread {
	sort.Float64s(values)
	return spread{len(values), values[0], values[len(values)/2], values[len(values)-1], unit}
}

var results = object{}

func saveResults(t *testing.T) {
	t.Helper()
	text, _ := json.MarshalIndent(results, "", "  ")
	file := getenv("BENCH_JSON", filepath.Join(env.root, "build/bench.json"))
	if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
	fmt.Printf("bench: %s\n%s\n", file, text)
}

// From an edit to Released=True, beside a bare helm upgrade of the same chart with the same change, in turns.
func TestBenchEditToReleased(t *testing.T) {
	const rounds = 15
	for _, major := range []string{"helm3", "helm4"} {
		ns, dir := newNamespace(t)
		repo := startRepo(t, dir)
		repo.pack("podinfo-like", "1.0.0")
		b := startBelay(t, "a", belayOptions{ns: ns, dir: dir, helm: major})
		s := spec(repo, "podinfo-like", "1.0.0", object{"podAnnotations": object{"round": "0"}})
		s["releaseName"] = "managed"
		createHR(t, ns, "managed", s)
		waitReleased(t, ns, "managed", "True", 60*time.Second)
		chart := filepath.Join(repo.dir, "podinfo-like-1.0.0.tgz")
		bareArgs := func(round int) []string {
			return []string{"upgrade", "--install", "bare", chart, "-n", ns, "--set", fmt.Sprintf("podAnnotations.round=r%d", round)}
		}
		helm(t, major, bareArgs(0)...)
		var managed, bare []float64
		for i := 1; i <= rounds; i++ {
			fmt.Printf("bench: %s, round %d of %d\n", major, i, rounds)
			managed = append(managed, timeEdit(t, ns, "managed", i))
			began := time.Now()
			helm(t, major, bareArgs(i)...)
			bare = append(bare, time.Since(began).Seconds())
		}
		results["edit to Released=True, "+major] = spreadOf(managed, "s")
		results["bare helm upgrade, "+major] = spreadOf(bare, "s")
		b.stop(20 * time.Second)
	}
	saveResults(t)
}

func timeEdit(t *testing.T, ns, name string, round int) float64 {
	t.Helper()
	w, err := env.dyn.Resource(helmReleases).Namespace(ns).Watch(context.Background(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	began := time.Now()
	gen := patchSpec(t, ns, name, object{"values": object{"podAnnotations": object{"round": fmt.Sprintf("r%d", round)}}})
	for ev := range w.ResultChan() {
		if u, ok := ev.Object.(*unstructured.Unstructured); ok && observed(u) == gen && conditionOf(u, "Released").status == "True" {
			return time.Since(began).Seconds()
		}
	}
	t.Fatal("the watch ended")
	return 0
}

// 200 installs, memory, and what an in-sync fleet costs.
func TestBenchFleet(t *testing.T) {
	const objects = 200
	ns, dir := newNamespace(t)
	repo := startRepo(t, dir)
	repo.pack("one", "0.1.0")
	b := startBelay(t, "a", belayOptions{ns: ns, dir: dir, flags: []string{"--charts-sync-interval", "10s", "--workers", "4"}})
	results["RSS of one replica, nothing to do"] = object{"value": float64(b.rss()) / 1024, "unit": "MiB"}
	began := time.Now()
	for i := 0; i < objects; i++ {
		s := spec(repo, "one", "0.1.0", object{"i": int64(i)})
		s["releaseName"] = fmt.Sprintf("b%d", i)
		createHR(t, ns, fmt.Sprintf("b%d", i), s)
	}
	waitAll(t, ns, objects, 10*time.Minute)
	took := time.Since(began).Seconds()
	results["200 installs by one replica with 4 workers"] = object{"value": took, "unit": "s"}
	time.Sleep(12 * time.Second)
	cpu, passes := cpuSeconds(b.cmd.Process.Pid), b.metric("belay_in_sync_total")
	time.Sleep(30 * time.Second)
	cpuUsed, passed := cpuSeconds(b.cmd.Process.Pid)-cpu, b.metric("belay_in_sync_total")-passes
	results["RSS of one replica, 200 objects"] = object{"value": float64(b.rss()) / 1024, "unit": "MiB"}
	results["CPU of one in-sync pass"] = object{"value": cpuUsed / passed * 1000, "unit": "ms", "passes": passed}
	saveResults(t)
}

// cpuSeconds is the user and system time of a process, without its children.
func cpuSeconds(pid int) float64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	return (user + system) / 100
}
