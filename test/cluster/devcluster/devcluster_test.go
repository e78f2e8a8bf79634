package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The tests run this test binary as devcluster, so that parts start from a process that ends, as in
// life.
func TestMain(m *testing.M) {
	if os.Getenv("DEVCLUSTER_TEST_AS_PROGRAM") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func binaries(t *testing.T) string {
	t.Helper()
	bin := os.Getenv("DEVCLUSTER_TEST_BIN")
	if bin == "" {
		bin, _ = filepath.Abs("../../../build/bin")
	}
	for _, name := range []string{"controlplane", "kwok"} {
		if _, err := os.Stat(filepath.Join(bin, name)); err != nil {
			t.Fatalf("%v (test/cluster/build makes it)", err)
		}
	}
	return bin
}

// devcluster runs the program and returns its exit code and all that it printed.
func devcluster(args ...string) (int, string) {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "DEVCLUSTER_TEST_AS_PROGRAM=1")
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		return -1, err.Error()
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

func must(t *testing.T, args ...string) string {
	t.Helper()
	code, out := devcluster(args...)
	if code != 0 {
		t.Fatalf("devcluster %v: exit %d\n%s", args, code, out)
	}
	return out
}

// processesOf finds what runs with dir in its command line, by any way it was started.
func processesOf(t *testing.T, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(text, []byte(dir+"/")) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if pid != os.Getpid() {
			found = append(found, fmt.Sprintf("%d %s", pid, bytes.ReplaceAll(text, []byte{0}, []byte{' '})))
		}
	}
	return found
}

func loaded(t *testing.T, dir string) *cluster {
	t.Helper()
	c, err := load(dir, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func pidOf(dir, name string) int { return readProcess(dir, name).pid }

func TestTwoControlPlanesInParallel(t *testing.T) {
	bin, dirs := binaries(t), []string{filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")}
	t.Cleanup(func() {
		for _, dir := range dirs {
			must(t, "down", "--dir", dir)
			if left := processesOf(t, dir); len(left) > 0 {
				t.Errorf("down left %v", left)
			}
			if _, err := os.Lstat(dir); !os.IsNotExist(err) {
				t.Errorf("down left files in %s", dir)
			}
		}
	})
	var all sync.WaitGroup
	for _, dir := range dirs {
		all.Go(func() {
			if code, out := devcluster("up", "--dir", dir, "--bin", bin, "--audit", "--nodes", "2"); code != 0 {
				t.Errorf("up %s: exit %d\n%s", dir, code, out)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}

	t.Run("they share no port", func(t *testing.T) {
		seen := map[int]bool{}
		for _, dir := range dirs {
			for name, port := range loaded(t, dir).ports {
				if seen[port] {
					t.Errorf("port %d (%s) was given twice", port, name)
				}
				seen[port] = true
			}
		}
	})
	t.Run("status is good, every part has a session of its own", func(t *testing.T) {
		out := must(t, "status", "--dir", dirs[0])
		for _, p := range parts {
			if !strings.Contains(out, p.name) {
				t.Errorf("status does not name %s:\n%s", p.name, out)
			}
			pid := pidOf(dirs[0], p.name)
			session, _, errno := syscall.Syscall(syscall.SYS_GETSID, uintptr(pid), 0, 0)
			if errno != 0 || int(session) != pid {
				t.Errorf("%s: pid %d in session %d (%v)", p.name, pid, session, errno)
			}
		}
	})
	t.Run("two nodes are there and Ready", func(t *testing.T) {
		c := loaded(t, dirs[0])
		for i := range 2 {
			if err := c.nodeReady(context.Background(), nodeName(i)); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("RBAC is on", func(t *testing.T) {
		c := loaded(t, dirs[0])
		anonymous := *c.client
		transport := anonymous.Transport.(*http.Transport).Clone()
		transport.TLSClientConfig.Certificates = nil
		anonymous.Transport = transport
		reply, err := anonymous.Get(c.apiURL() + "/api/v1/secrets")
		if err != nil {
			t.Fatal(err)
		}
		reply.Body.Close()
		if reply.StatusCode != http.StatusForbidden {
			t.Errorf("nobody may list secrets, but got %d", reply.StatusCode)
		}
	})
	t.Run("the audit log names who asked", func(t *testing.T) {
		text, err := os.ReadFile(filepath.Join(dirs[0], "audit.log"))
		if err != nil || !bytes.Contains(text, []byte(`"username":"system:kube-controller-manager"`)) {
			t.Errorf("err %v, %d bytes", err, len(text))
		}
	})
	t.Run("up again changes nothing", func(t *testing.T) {
		before := pidOf(dirs[0], partAPIServer)
		must(t, "up", "--dir", dirs[0], "--bin", bin, "--audit", "--nodes", "2")
		if after := pidOf(dirs[0], partAPIServer); after != before {
			t.Errorf("pid %d became %d", before, after)
		}
		if code, _ := devcluster("up", "--dir", dirs[0], "--bin", bin); code != exitFailure {
			t.Errorf("other options: exit %d", code)
		}
	})
	t.Run("pods live as their annotations say", func(t *testing.T) { podLives(t, loaded(t, dirs[1])) })
	for _, p := range parts {
		t.Run("kill and start "+p.name+" alone", func(t *testing.T) { killAndStart(t, dirs, p.name) })
	}
	t.Run("stop and start", func(t *testing.T) {
		must(t, "stop", "--dir", dirs[0], "kube-apiserver", "kwok")
		must(t, "start", "--dir", dirs[0], "kube-apiserver", "kwok")
		must(t, "status", "--dir", dirs[0])
	})
	t.Run("pause and resume", func(t *testing.T) { pauseAndResume(t, dirs[0]) })
	t.Run("data survives the death of etcd", func(t *testing.T) {
		c := loaded(t, dirs[0])
		body := []byte(`{"metadata":{"name":"kept"}}`)
		url := c.apiURL() + "/api/v1/namespaces/default/configmaps"
		if _, err := c.call(context.Background(), http.MethodPost, url, body); err != nil {
			t.Fatal(err)
		}
		must(t, "kill", "--dir", dirs[0], "etcd", "apiserver")
		must(t, "start", "--dir", dirs[0], "etcd", "apiserver")
		if _, err := c.get(context.Background(), url+"/kept"); err != nil {
			t.Error(err)
		}
	})
	t.Run("compact drops history", func(t *testing.T) {
		if out := must(t, "compact", "--dir", dirs[0]); !strings.Contains(out, "revision") {
			t.Error(out)
		}
	})
}

// podLives makes pods without a controller and watches what becomes of them.
func podLives(t *testing.T, c *cluster) {
	ctx := context.Background()
	pods := c.apiURL() + "/api/v1/namespaces/default/pods"
	type podStatus struct {
		Metadata struct{ Name string }
		Status   struct {
			Phase             string
			ContainerStatuses []struct {
				Ready bool
				State struct{ Waiting struct{ Reason string } }
			}
		}
	}
	look := func(name string) string {
		text, err := c.get(ctx, pods+"/"+name)
		var status httpStatus
		if errors.As(err, &status) && status.code == http.StatusNotFound {
			return "gone"
		}
		var pod podStatus
		if err == nil {
			err = json.Unmarshal(text, &pod)
		}
		if err != nil {
			return err.Error()
		}
		if len(pod.Status.ContainerStatuses) == 0 {
			return pod.Status.Phase
		}
		container := pod.Status.ContainerStatuses[0]
		return strings.TrimSpace(fmt.Sprint(pod.Status.Phase, " ready=", container.Ready, " ", container.State.Waiting.Reason))
	}
	become := func(name, want string) {
		t.Helper()
		got := ""
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(pollPause) {
			if got = look(name); got == want {
				return
			}
		}
		t.Errorf("%s is %q, not %q", name, got, want)
	}
	rows := []struct{ name, annotations, want string }{
		{"plain", `{}`, "Running ready=true"},
		{"plain-fail", `{"belay.test/fail":"true"}`, "Running ready=false CrashLoopBackOff"},
		{"plain-hold", `{"belay.test/hold":"true"}`, "Running ready=false"},
		{"hook", `{"helm.sh/hook":"test"}`, "Succeeded ready=false"},
		{"hook-fail", `{"helm.sh/hook":"pre-upgrade","belay.test/fail":"true"}`, "Failed ready=false"},
		{"hook-hold", `{"helm.sh/hook":"pre-upgrade","belay.test/hold":"true"}`, "Running ready=false"},
		{"hook-long", `{"helm.sh/hook":"pre-upgrade","belay.test/run-for":"1h"}`, "Running ready=true"},
	}
	for _, row := range rows {
		body := fmt.Sprintf(`{"metadata":{"name":%q,"annotations":%s},"spec":{"restartPolicy":"Never",`+
			`"containers":[{"name":"c","image":"example.test/c"}]}}`, row.name, row.annotations)
		if _, err := c.call(ctx, http.MethodPost, pods, []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	for _, row := range rows {
		become(row.name, row.want)
	}
	release := []byte(`[{"op":"remove","path":"/metadata/annotations/belay.test~1hold"}]`)
	for name, want := range map[string]string{"plain-hold": "Running ready=true", "hook-hold": "Succeeded ready=false"} {
		if _, err := c.callAs(ctx, "application/json-patch+json", http.MethodPatch, pods+"/"+name, release); err != nil {
			t.Fatal(err)
		}
		become(name, want)
	}
	for _, row := range rows {
		if _, err := c.call(ctx, http.MethodDelete, pods+"/"+row.name, nil); err != nil {
			t.Fatal(err)
		}
		become(row.name, "gone")
	}
}

func killAndStart(t *testing.T, dirs []string, name string) {
	before := map[string]int{}
	for _, p := range parts {
		before[p.name] = pidOf(dirs[0], p.name)
	}
	must(t, "kill", "--dir", dirs[0], name)
	if code, out := devcluster("status", "--dir", dirs[0]); code != exitNotUp || !strings.Contains(out, "down") {
		t.Errorf("status after the kill: exit %d\n%s", code, out)
	}
	if code, _ := devcluster("kill", "--dir", dirs[0], name); code != exitFailure {
		t.Errorf("kill of a dead part: exit %d", code)
	}
	must(t, "start", "--dir", dirs[0], name)
	for _, p := range parts {
		if after := pidOf(dirs[0], p.name); (after == before[p.name]) != (p.name != name) {
			t.Errorf("%s: pid %d became %d", p.name, before[p.name], after)
		}
	}
	must(t, "status", "--dir", dirs[1])
}

func pauseAndResume(t *testing.T, dir string) {
	must(t, "pause", "--dir", dir, "kube-apiserver")
	if code, out := devcluster("status", "--dir", dir); code != exitNotUp || !strings.Contains(out, "paused") {
		t.Errorf("status: exit %d\n%s", code, out)
	}
	for _, command := range []string{"start", "stop"} {
		if code, out := devcluster(command, "--dir", dir, "kube-apiserver"); code != exitFailure {
			t.Errorf("%s of a paused part: exit %d\n%s", command, code, out)
		}
	}
	must(t, "resume", "--dir", dir, "kube-apiserver")
	// etcd went on meanwhile, so the server is good at once.
	if err := parts[1].ready(context.Background(), loaded(t, dir)); err != nil {
		t.Error(err)
	}
}

func TestFailureShowsTheLogAndStopsEverything(t *testing.T) {
	bin, dir := binaries(t), filepath.Join(t.TempDir(), "c")
	code, out := devcluster("up", "--dir", dir, "--bin", bin, "--apiserver-arg", "no-such-flag=1")
	if code != exitFailure || !strings.Contains(out, "unknown flag: --no-such-flag") {
		t.Errorf("exit %d\n%s", code, out)
	}
	if left := processesOf(t, dir); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	must(t, "down", "--dir", dir)
}

func TestInterruptedUpLeavesNothingRunning(t *testing.T) {
	bin, dir := binaries(t), filepath.Join(t.TempDir(), "d")
	cmd := exec.Command(os.Args[0], "up", "--dir", dir, "--bin", bin)
	cmd.Env = append(os.Environ(), "DEVCLUSTER_TEST_AS_PROGRAM=1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); !readProcess(dir, partAPIServer).alive(); time.Sleep(pollPause) {
		if time.Now().After(end) {
			t.Fatal("kube-apiserver was not started")
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitFailure {
		t.Errorf("exit %d", code)
	}
	if left := processesOf(t, dir); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	must(t, "down", "--dir", dir)
}

func TestAReusedPidIsNotSignalled(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	_, start := readStat(cmd.Process.Pid)

	other := process{pid: cmd.Process.Pid, start: start - 1} // an older process that had the same pid
	if other.alive() || other.signal(syscall.SIGKILL) == nil {
		t.Error("a stranger was taken for ours")
	}
	same := process{pid: cmd.Process.Pid, start: start}
	if !same.alive() {
		t.Fatal("the stranger was killed, or ours is not known")
	}
	if err := same.signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if !same.await(func(state byte) bool { return state == stateStopped }, 5*time.Second) {
		t.Error("it was not paused")
	}
}

func TestDownRemovesOnlyWhatUpMade(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	must(t, "down", "--dir", dir)
	if code, out := devcluster("up", "--dir", dir, "--bin", dir); code != exitFailure || !strings.Contains(out, "not ours") {
		t.Errorf("up over a foreign kubeconfig: exit %d\n%s", code, out)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "mine" {
		t.Errorf("%q, %v", text, err)
	}
}

func TestWrongUsageExits2(t *testing.T) {
	for _, args := range [][]string{{}, {"up"}, {"fly"}, {"up", "--dir", "x"}, {"kill", "--dir", "x"},
		{"kill", "--dir", "x", "kubelet"}, {"down", "--no-such-flag"}} {
		if code, out := devcluster(args...); code != exitUsage {
			t.Errorf("%v: exit %d\n%s", args, code, out)
		}
	}
}
