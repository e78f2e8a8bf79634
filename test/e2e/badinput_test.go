package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Each bad input: Released=False, a message of at most 1 KiB that says what to change, and the next good edit syncs.
func TestBadInputIsToldAndForgiven(t *testing.T) {
	t.Parallel()
	ns, dir := newNamespace(t)
	repo := startRepo(t, dir)
	for _, chart := range []string{"one", "broken", "big-error", "podinfo-like"} {
		repo.pack(chart, "0.1.0")
	}
	long := strings.Repeat("n", 60)
	rows := []struct {
		name    string
		spec    object   // merged over a good one
		says    []string // in the message
		stalled bool
		fix     object
	}{
		{"missing-chart", object{"chart": object{"name": "nowhere"}}, []string{"nowhere"}, false, object{"chart": object{"name": "one"}}},
		{"no-such-version", object{"chart": object{"version": "9.9.9"}}, []string{"9.9.9", "0.1.0"}, false, object{"chart": object{"version": "0.1.0"}}},
		{"bad-range", object{"chart": object{"version": ">>1"}}, []string{">>1"}, true, object{"chart": object{"version": "0.1.0"}}},
		{"dead-repository", object{"chart": object{"repository": "http://127.0.0.1:9/"}}, []string{"127.0.0.1:9"}, false, object{"chart": object{"repository": repo.url}}},
		{"name-too-long", object{"releaseName": long}, []string{"53", "releaseName"}, true, object{"releaseName": "ok"}},
		{"missing-namespace", object{"targetNamespace": ns + "-absent"}, []string{ns + "-absent", "does not exist"}, false, object{"targetNamespace": nil}},
		{"fails-to-render", object{"chart": object{"name": "broken"}, "values": object{"text": "say why"}}, []string{"say why"}, false, object{"chart": object{"name": "one"}}},
		{"two-mb-error", object{"chart": object{"name": "big-error"}}, []string{"failed"}, false, object{"chart": object{"name": "one"}}},
		{"wrong-value-type", object{"chart": object{"name": "podinfo-like"}, "values": object{"replicas": "many"}}, []string{"replicas"}, false, object{"chart": object{"name": "one"}}},
		{"missing-configmap", object{"valuesFrom": []any{object{"configMapKeyRef": object{"name": "absent"}}}}, []string{"ConfigMap", "absent"}, false, object{"valuesFrom": nil}},
		{"bad-yaml", object{"valuesFrom": []any{object{"configMapKeyRef": object{"name": "tabs"}}}}, []string{"ConfigMap", "tabs", "line 2"}, true, object{"valuesFrom": nil}},
		{"helm-v2", object{"helmVersion": "v2"}, []string{"v2"}, true, object{"helmVersion": "v3"}},
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "tabs"}, Data: map[string]string{"values.yaml": "a:\n\tb: 1\n"}}
	if _, err := env.kube.CoreV1().ConfigMaps(ns).Create(context.Background(), cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	seen := record(t, ns)
	startBelay(t, "a", belayOptions{ns: ns, dir: dir, flags: []string{"--workers", "6"}})
	for _, row := range rows {
		s := spec(repo, "one", "0.1.0", object{"x": "1"})
		s["releaseName"] = row.name
		merge(s, row.spec)
		createHR(t, ns, row.name, s)
	}
	for _, row := range rows {
		u := waitReleased(t, ns, row.name, "False", 90*time.Second)
		c := conditionOf(u, "Released")
		if len(c.message) > 1024 || !utf8.ValidString(c.message) {
			t.Errorf("%s: a message of %d bytes", row.name, len(c.message))
		}
		for _, text := range row.says {
			if !strings.Contains(c.message, text) {
				t.Errorf("%s: the message does not say %q: %s", row.name, text, c.message)
			}
		}
		want := map[bool]string{true: "Failed", false: "InProgress"}[row.stalled]
		if k := kstatus(u); k != want {
			t.Errorf("%s: kstatus reads %s, want %s", row.name, k, want)
		}
		t.Logf("%s: %.160s", row.name, c.message)
	}
	for _, row := range rows {
		patchSpec(t, ns, row.name, row.fix)
	}
	for _, row := range rows {
		u := waitReleased(t, ns, row.name, "True", 90*time.Second)
		if k := kstatus(u); k != "Current" {
			t.Errorf("%s: kstatus reads %s after the fix, want Current", row.name, k)
		}
	}
	events, err := env.kube.EventsV1().Events(ns).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]bool{}
	for _, e := range events.Items {
		if e.Type == "Warning" && e.Regarding.Kind == "HelmRelease" {
			told[e.Regarding.Name] = true
		}
	}
	for _, row := range rows {
		if !told[row.name] {
			t.Errorf("%s: no Warning Event tells of it", row.name)
		}
	}
	seen.checkTruth(t)
}

func merge(into, from object) {
	for k, v := range from {
		a, aOK := into[k].(object)
		b, bOK := v.(object)
		if aOK && bOK {
			merge(a, b)
		} else {
			into[k] = v
		}
	}
}

// No secret value in any log, event, condition, argv or file left behind (case 58).
func TestSecretsStaySecret(t *testing.T) {
	const word = "s3cr3t-Pa55word-xyzzy"
	for _, major := range []string{"helm3", "helm4"} {
		t.Run(major, func(t *testing.T) {
			t.Parallel()
			ns, dir := newNamespace(t)
			repo := startRepo(t, dir, "--user", "u", "--password", word)
			repo.pack("secret", "0.1.0")
			repo.pack("one", "0.1.0")
			repo.pack("broken", "0.1.0")
			create := func(name, content string) {
				s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "values-" + name}, StringData: map[string]string{"values.yaml": content}}
				if _, err := env.kube.CoreV1().Secrets(ns).Create(context.Background(), s, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			create("good", "password: "+word+"\n")
			create("envfile", "APP_KEY="+word+"\r\n")
			create("fails", "text: "+word+"\n")
			create("badkey", "extra: {\"bad key\": "+word+"}\n")
			create("badraw", "raw: {key: "+word+"}\n")
			withAuth := strings.Replace(repo.url, "http://", "http://u:"+word+"@", 1)
			ref := func(name string) []any { return []any{object{"secretKeyRef": object{"name": "values-" + name}}} }
			seen := record(t, ns)
			argv := watchArgv(t, word)
			b := startBelay(t, "a", belayOptions{ns: ns, dir: dir, helm: major})
			add := func(name, chart, repository string, from []any) {
				createHR(t, ns, name, object{"releaseName": name, "valuesFrom": from,
					"chart": object{"repository": repository, "name": chart, "version": "0.1.0"}})
			}
			add("good", "secret", withAuth, ref("good"))
			add("envfile", "one", withAuth, ref("envfile"))
			add("fails", "broken", withAuth, ref("fails"))
			add("badkey", "secret", withAuth, ref("badkey"))
			add("badraw", "secret", withAuth, ref("badraw"))
			add("noauth", "one", strings.Replace(repo.url, "http://", "http://u:wrong-"+word+"@", 1), nil)
			waitReleased(t, ns, "good", "True", 90*time.Second)
			for _, name := range []string{"envfile", "fails", "badkey", "badraw", "noauth"} {
				u := waitReleased(t, ns, name, "False", 90*time.Second)
				t.Logf("%s: %.200s", name, conditionOf(u, "Released").message)
			}
			code, metrics := b.get("/metrics")
			if code != 200 || strings.Contains(metrics, word) {
				t.Errorf("/metrics: %d, or it tells the secret", code)
			}
			for _, u := range seen.all() {
				status, _ := json.Marshal(u.Object["status"])
				if leaks(status, word) {
					t.Errorf("the status of %s tells the secret: %s", u.GetName(), status)
				}
			}
			events, _ := env.kube.EventsV1().Events(ns).List(context.Background(), metav1.ListOptions{})
			for _, e := range events.Items {
				if leaks([]byte(e.Note), word) {
					t.Errorf("an event tells the secret: %s", e.Note)
				}
			}
			b.stop(20 * time.Second)
			_ = filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
				if err != nil || info.IsDir() || strings.Contains(path, "/repo/") {
					return nil
				}
				text, _ := os.ReadFile(path)
				if leaks(text, word) {
					t.Errorf("%s tells the secret", path)
				}
				return nil
			})
			if found := argv(); found != "" {
				t.Errorf("a command line told the secret: %s", found)
			}
		})
	}
}

// leaks looks for the word as text, as base64 and as byte numbers (Go prints []byte so).
func leaks(text []byte, word string) bool {
	numbers := ""
	for _, c := range []byte(word[:6]) {
		numbers += strconv.Itoa(int(c)) + " "
	}
	return bytes.Contains(text, []byte(word)) || bytes.Contains(text, []byte(strings.TrimSpace(numbers))) ||
		bytes.Contains(text, []byte(base64.StdEncoding.EncodeToString([]byte(word))[:16]))
}

// watchArgv looks at all command lines until its result is asked for.
func watchArgv(t *testing.T, word string) func() string {
	stop, found := make(chan struct{}), make(chan string, 1)
	go func() {
		for {
			select {
			case <-stop:
				found <- ""
				return
			case <-time.After(20 * time.Millisecond):
			}
			files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
			for _, f := range files {
				text, _ := os.ReadFile(f)
				if bytes.Contains(text, []byte(word)) && !bytes.Contains(text, []byte("chartserver")) {
					found <- string(bytes.ReplaceAll(text, []byte{0}, []byte{' '}))
					return
				}
			}
		}
	}()
	return func() string { close(stop); return <-found }
}

// An old CRD: belay refuses to start, and one that arrives later stops all syncing (case 14). It has a control plane of its
// own, for the CRD is everybody's.
func TestOldCRDIsRefused(t *testing.T) {
	if !env.own {
		t.Skip("changes the CRD: only on a cluster of our own")
	}
	ns, dir := newNamespace(t)
	repo := startRepo(t, dir)
	repo.pack("one", "0.1.0")
	crds := env.dyn.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	const name = "helmreleases.helm.fluxcd.io"
	good, err := crds.Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	apply := func(edit func(status object)) {
		t.Helper()
		u := good.DeepCopy()
		versions, _, _ := unstructured.NestedSlice(u.Object, "spec", "versions")
		status, _, _ := unstructured.NestedMap(versions[0].(object), "schema", "openAPIV3Schema", "properties", "status")
		edit(status)
		_ = unstructured.SetNestedMap(versions[0].(object), status, "schema", "openAPIV3Schema", "properties", "status")
		body, _ := json.Marshal(object{"spec": object{"versions": versions}})
		if _, err := crds.Patch(context.Background(), name, types.MergePatchType, body, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	restore := func() { apply(func(object) {}) }
	t.Cleanup(restore)
	old := func(status object) {
		delete(status["properties"].(object), "lease")
		delete(status, "x-kubernetes-validations")
	}
	b := startBelay(t, "a", belayOptions{ns: ns, dir: dir})
	s := spec(repo, "one", "0.1.0", object{"v": int64(1)})
	s["releaseName"] = "x"
	createHR(t, ns, "x", s)
	waitReleased(t, ns, "x", "True", 60*time.Second)
	apply(old)
	b.waitLog("nothing is synced", 20*time.Second)
	if code, body := b.get("/readyz"); code != 503 || !strings.Contains(body, "status.lease") {
		t.Errorf("/readyz %d %q, want 503 and the field's name", code, body)
	}
	patchSpec(t, ns, "x", object{"values": object{"v": int64(2)}})
	stays(t, 10*time.Second, "nothing is synced under the old CRD", func() bool { return newest(t, ns, "x") == 1 })
	second := launchBelay(t, "b", belayOptions{ns: ns, dir: dir})
	select {
	case <-second.done:
	case <-time.After(20 * time.Second):
		t.Fatal("belay started under an old CRD")
	}
	if second.code == 0 || !second.logged("status.lease") {
		t.Errorf("exit code %d, log:\n%s", second.code, tail(second.log, 5))
	}
	restore()
	waitReleased(t, ns, "x", "True", 60*time.Second)
	if got := newest(t, ns, "x"); got != 2 {
		t.Errorf("revision %d after the CRD is back, want 2", got)
	}
}

// Wrong usage: one line that names the flag and what is legal, exit code 2.
func TestWrongFlags(t *testing.T) {
	t.Parallel()
	rows := []struct {
		args []string
		says []string
	}{
		{[]string{"--lease-timeout", "4s"}, []string{"--lease-timeout", "5s to 1h"}},
		{[]string{"--lease-timeout=61m"}, []string{"--lease-timeout", "5s to 1h"}},
		{[]string{"--lease-timeout", "30"}, []string{"--lease-timeout", "1m30s"}},
		{[]string{"--foreign-pending-timeout", "59s"}, []string{"--foreign-pending-timeout", "0, or 1m to 720h"}},
		{[]string{"--foreign-pending-timeout=-1m"}, []string{"--foreign-pending-timeout", "0, or 1m to 720h"}},
		{[]string{"--workers", "0"}, []string{"--workers", "1 to 64"}},
		{[]string{"--log-format", "xml"}, []string{"--log-format", "fmt|json"}},
		{[]string{"--identity", "a/b"}, []string{"--identity", "slash"}},
		{[]string{"--allow-namespace", "Team_A"}, []string{"--allow-namespace", "Team_A", "a-z"}},
		{[]string{"--kubeconfig", env.belayConfig, "--helm", tool("helm3"), "--watch-label-selector", "team=a,,b"}, []string{"--watch-label-selector", "team=a,,b"}},
		{[]string{"--no-such-flag"}, []string{"--no-such-flag", "--help"}},
		{[]string{"--helm"}, []string{"--helm"}},
		{[]string{"--helm", "/bin/false"}, []string{"--helm"}},
		{[]string{"stray"}, []string{"stray"}},
	}
	for _, row := range rows {
		cmd := exec.Command(env.belay, append([]string{"--cache-dir", t.TempDir()}, row.args...)...)
		out, _ := cmd.CombinedOutput()
		text := string(out)
		if code := cmd.ProcessState.ExitCode(); code != 2 {
			t.Errorf("%v: exit code %d, want 2", row.args, code)
		}
		if strings.Count(strings.TrimSpace(text), "\n") != 0 {
			t.Errorf("%v: more than one line:\n%s", row.args, text)
		}
		for _, want := range row.says {
			if !strings.Contains(text, want) {
				t.Errorf("%v: %q does not say %q", row.args, text, want)
			}
		}
	}
}

// What a hand writes into one object's status costs nobody else anything, and not that object either.
func TestAbsurdStatusCostsNobodyElse(t *testing.T) {
	t.Parallel()
	ns, dir := newNamespace(t)
	repo := startRepo(t, dir)
	repo.pack("one", "0.1.0")
	startBelay(t, "a", belayOptions{ns: ns, dir: dir, flags: []string{"--lease-timeout", "5s", "--charts-sync-interval", "2s"}})
	rows := []struct{ name, status string }{
		{"good", ``},
		{"future", `{"conditions":[{"type":"Released","status":"Unknown","reason":"X","lastTransitionTime":"2100-01-01T00:00:00Z"}],"lease":{"holderIdentity":"ghost","leaseTransitions":50,"leaseDurationSeconds":5}}`},
		{"emptied", `{"conditions":[]}`},
		{"backoff", `{"conditions":[{"type":"Released","status":"False","reason":"X"}],"attempt":{"digest":"","generation":1,"failures":9223372036854775807,"notBefore":"2100-01-01T00:00:00Z"}}`},
		{"promise", `{"conditions":[{"type":"Released","status":"Unknown","reason":"X","lastTransitionTime":"2000-01-01T00:00:00Z"}],"lease":{"holderIdentity":"ghost","leaseTransitions":50,"leaseDurationSeconds":-7}}`},
	}
	for _, row := range rows {
		s := spec(repo, "one", "0.1.0", object{"v": int64(1)})
		s["releaseName"] = row.name
		createHR(t, ns, row.name, s)
	}
	for _, row := range rows {
		waitReleased(t, ns, row.name, "True", 60*time.Second)
		if row.status == "" {
			continue
		}
		body := []byte(`{"status":` + row.status + `}`)
		if _, err := env.dyn.Resource(helmReleases).Namespace(ns).Patch(context.Background(), row.name, types.MergePatchType, body, metav1.PatchOptions{}, "status"); err != nil {
			t.Fatalf("%s: %v", row.name, err)
		}
	}
	for _, row := range rows {
		patchSpec(t, ns, row.name, object{"values": object{"v": int64(2)}})
	}
	for _, row := range rows {
		waitReleased(t, ns, row.name, "True", 90*time.Second)
		if got := newest(t, ns, row.name); got != 2 {
			t.Errorf("%s: revision %d, want 2", row.name, got)
		}
	}
	// What would make an object unlockable, or lock it for longer than an hour, is refused by the CRD.
	for _, status := range []string{`{"lease":{"holderIdentity":"ghost","leaseTransitions":9223372036854775807}}`,
		`{"lease":{"leaseDurationSeconds":2147483647}}`} {
		_, err := env.dyn.Resource(helmReleases).Namespace(ns).Patch(context.Background(), "good", types.MergePatchType, []byte(`{"status":`+status+`}`), metav1.PatchOptions{}, "status")
		if err == nil {
			t.Errorf("%s was taken", status)
		}
	}
}

// A typo in a values source stalls its object; mending the source, not the spec, is enough. So is a repository that comes back.
func TestMendedInputsHeal(t *testing.T) {
	t.Parallel()
	ns, dir := newNamespace(t)
	repo := startRepo(t, dir)
	repo.pack("one", "0.1.0")
	b := startBelay(t, "a", belayOptions{ns: ns, dir: dir, flags: []string{"--charts-sync-interval", "2s"}})
	write := func(text string) {
		t.Helper()
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "wv"}, Data: map[string]string{"values.yaml": text}}
		_, err := env.kube.CoreV1().ConfigMaps(ns).Update(context.Background(), cm, metav1.UpdateOptions{})
		if err != nil {
			_, err = env.kube.CoreV1().ConfigMaps(ns).Create(context.Background(), cm, metav1.CreateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write("value: one\n")
	s := spec(repo, "one", "0.1.0", nil)
	s["releaseName"], s["valuesFrom"] = "x", []any{object{"configMapKeyRef": object{"name": "wv"}}}
	createHR(t, ns, "x", s)
	waitReleased(t, ns, "x", "True", 60*time.Second)
	write("value: [\n")
	waitReleased(t, ns, "x", "False", 30*time.Second)
	if _, body := b.get("/metrics"); !strings.Contains(body, `condition="Stalled"} 1`) {
		t.Error("no gauge says Stalled")
	}
	write("value: three\n")
	waitReleased(t, ns, "x", "True", 20*time.Second)
	if got := newest(t, ns, "x"); got != 2 {
		t.Errorf("revision %d, want 2", got)
	}
}

// Two HelmReleases, one Helm release: the first keeps it, the other says whose it is; deleting the loser uninstalls nothing.
func TestOneReleaseOneOwner(t *testing.T) {
	t.Parallel()
	ns, dir := newNamespace(t)
	repo := startRepo(t, dir)
	repo.pack("one", "0.1.0")
	startBelay(t, "a", belayOptions{ns: ns, dir: dir, flags: []string{"--charts-sync-interval", "2s"}})
	s := spec(repo, "one", "0.1.0", object{"who": "first"})
	s["releaseName"] = "shared"
	createHR(t, ns, "first", s)
	waitReleased(t, ns, "first", "True", 60*time.Second)
	s = spec(repo, "one", "0.1.0", object{"who": "second"})
	s["releaseName"] = "shared"
	createHR(t, ns, "second", s)
	u := waitReleased(t, ns, "second", "False", 60*time.Second)
	if c := conditionOf(u, "Released"); c.reason != "OwnedByOther" {
		t.Errorf("reason %s: %s", c.reason, c.message)
	}
	stays(t, 6*time.Second, "no alternation", func() bool { return newest(t, ns, "shared") == 1 })
	if f := getHR(t, ns, "second").GetFinalizers(); len(f) != 0 {
		t.Errorf("the loser has finalizers %v", f)
	}
	s["releaseName"] = "shared"
	createHR(t, ns, "third", s)
	waitReleased(t, ns, "third", "False", 60*time.Second)
	deleteHR(t, ns, "second")
	eventually(t, 30*time.Second, "the loser is gone", func() bool {
		_, err := env.dyn.Resource(helmReleases).Namespace(ns).Get(context.Background(), "second", metav1.GetOptions{})
		return err != nil
	})
	if got := newest(t, ns, "shared"); got != 1 {
		t.Errorf("the first one's release: revision %d", got)
	}
	// Once the owner is gone the other one need not wait for its back-off.
	deleteHR(t, ns, "first")
	waitReleased(t, ns, "third", "True", 20*time.Second)
}
