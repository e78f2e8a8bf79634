package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// logged collects what the server logs, while it serves.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(data)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// repo makes a chart and a server over a directory that holds it in two versions.
func repo(t *testing.T) (*server, *httptest.Server, *logged) {
	t.Helper()
	source, dir := t.TempDir(), t.TempDir()
	files := map[string]string{"Chart.yaml": "apiVersion: v2\nname: c\nversion: 0.1.0 # first\ndescription: 'a chart'\n",
		"values.yaml": "a: 1\n", "templates/x.yaml": "kind: ConfigMap\n"}
	for name, text := range files {
		path := filepath.Join(source, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, version := range []string{"", "0.2.0"} {
		if _, err := pack(dir, source, version); err != nil {
			t.Fatal(err)
		}
	}
	out := &logged{}
	s := newServer(out)
	s.dir = dir
	hs := httptest.NewServer(s)
	t.Cleanup(hs.Close)
	return s, hs, out
}

func get(t *testing.T, url string, header ...string) (*http.Response, string) {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		return reply, "broken off: " + err.Error()
	}
	return reply, string(text)
}

func post(t *testing.T, url string, want int) {
	t.Helper()
	reply, err := http.Post(url, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	reply.Body.Close()
	if reply.StatusCode != want {
		t.Errorf("POST %s: %d, not %d", url, reply.StatusCode, want)
	}
}

func TestPackIsDeterministicAndListed(t *testing.T) {
	s, _, _ := repo(t)
	first, err := os.ReadFile(filepath.Join(s.dir, "c-0.1.0.tgz"))
	if err != nil {
		t.Fatal(err)
	}
	other, _, _ := repo(t)
	second, err := os.ReadFile(filepath.Join(other.dir, "c-0.1.0.tgz"))
	if err != nil || !bytes.Equal(first, second) {
		t.Errorf("two packs of one chart differ (%v)", err)
	}
	changed, err := os.ReadFile(filepath.Join(s.dir, "c-0.2.0.tgz"))
	if err != nil {
		t.Fatal(err)
	}
	if chart, err := chartInArchive(changed); err != nil || chart.Version != "0.2.0" || chart.Description != "a chart" {
		t.Errorf("%+v, %v", chart, err)
	}
	index, err := os.ReadFile(filepath.Join(s.dir, indexName))
	if err != nil || strings.Count(string(index), "digest: ") != 2 || !strings.Contains(string(index), `version: "0.1.0"`) {
		t.Errorf("%v\n%s", err, index)
	}
}

func TestPacksAtOnceLoseNoEntry(t *testing.T) {
	s, _, _ := repo(t)
	source := t.TempDir()
	if err := os.WriteFile(filepath.Join(source, "Chart.yaml"), []byte("name: d\nversion: 1.0.0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			if _, err := pack(s.dir, source, fmt.Sprintf("1.0.%d", i)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	index, _ := os.ReadFile(filepath.Join(s.dir, indexName))
	if n := strings.Count(string(index), "digest: "); n != 22 {
		t.Errorf("%d entries\n%s", n, index)
	}
}

func TestConditionalGet(t *testing.T) {
	_, hs, _ := repo(t)
	reply, _ := get(t, hs.URL+"/index.yaml")
	etag, modified := reply.Header.Get("ETag"), reply.Header.Get("Last-Modified")
	if reply.StatusCode != 200 || etag == "" || modified == "" {
		t.Fatalf("%d, ETag %q, Last-Modified %q", reply.StatusCode, etag, modified)
	}
	for _, header := range [][]string{{"If-None-Match", etag}, {"If-Modified-Since", modified}} {
		if reply, body := get(t, hs.URL+"/index.yaml", header...); reply.StatusCode != 304 || body != "" {
			t.Errorf("%v: %d %q", header, reply.StatusCode, body)
		}
	}
	if reply, _ := get(t, hs.URL+"/index.yaml", "If-None-Match", `"other"`); reply.StatusCode != 200 {
		t.Errorf("other ETag: %d", reply.StatusCode)
	}
}

func TestCredentialsAreAskedForAndNeverLogged(t *testing.T) {
	s, hs, out := repo(t)
	s.user, s.password = "u", "hidden-word"
	if reply, _ := get(t, hs.URL+"/index.yaml"); reply.StatusCode != 401 || reply.Header.Get("WWW-Authenticate") == "" {
		t.Errorf("without credentials: %d", reply.StatusCode)
	}
	if reply, _ := get(t, strings.Replace(hs.URL, "//", "//u:hidden-word@", 1)+"/index.yaml"); reply.StatusCode != 200 {
		t.Errorf("with credentials: %d", reply.StatusCode)
	}
	var lines []logLine
	decoder := json.NewDecoder(strings.NewReader(out.String()))
	for decoder.More() {
		var line logLine
		if err := decoder.Decode(&line); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
	if len(lines) != 2 || lines[0].Auth || !lines[1].Auth || lines[0].Status != 401 || lines[1].Path != "/index.yaml" {
		t.Errorf("%+v", lines)
	}
	if strings.Contains(out.String(), "hidden") {
		t.Error("the log holds the password")
	}
}

func TestOnlyArchivesAreDelayedAndTheDelayCanBeSeen(t *testing.T) {
	_, hs, out := repo(t)
	post(t, hs.URL+"/-/delay?d=1h", 200)
	if reply, _ := get(t, hs.URL+"/index.yaml"); reply.StatusCode != 200 {
		t.Errorf("index: %d", reply.StatusCode)
	}
	if reply, _ := get(t, hs.URL+"/-/downloads?n=1&wait=1ms"); reply.StatusCode != 504 {
		t.Errorf("no download yet: %d", reply.StatusCode)
	}
	ended := make(chan error)
	client := &http.Client{}
	request, _ := http.NewRequest(http.MethodGet, hs.URL+"/c-0.1.0.tgz", nil)
	ctx, leave := context.WithCancel(context.Background())
	go func() {
		_, err := client.Do(request.WithContext(ctx))
		ended <- err
	}()
	if reply, body := get(t, hs.URL+"/-/downloads?n=1&wait=1m"); reply.StatusCode != 200 || body != "1\n" {
		t.Errorf("%d %q", reply.StatusCode, body)
	}
	leave()
	if err := <-ended; err == nil {
		t.Error("the download was not delayed")
	}
	if reply, _ := get(t, hs.URL+"/-/downloads?n=0&wait=1m"); reply.StatusCode != 200 {
		t.Errorf("%d", reply.StatusCode)
	}
	for end := time.Now().Add(time.Minute); !strings.Contains(out.String(), `"gone":true`); {
		if time.Now().After(end) {
			t.Fatalf("the log does not tell that the client left:\n%s", out.String())
		}
	}
	post(t, hs.URL+"/-/delay?d=0s", 200)
	if reply, _ := get(t, hs.URL+"/c-0.1.0.tgz"); reply.StatusCode != 200 {
		t.Errorf("%d", reply.StatusCode)
	}
}

func TestFaults(t *testing.T) {
	_, hs, _ := repo(t)
	status := func(path string) int {
		reply, _ := get(t, hs.URL+path)
		return reply.StatusCode
	}
	post(t, hs.URL+"/-/fail?code=503&match=tgz&n=2", 200)
	if got := []int{status("/index.yaml"), status("/c-0.1.0.tgz"), status("/c-0.2.0.tgz"), status("/c-0.1.0.tgz")}; fmt.Sprint(got) !=
		"[200 503 503 200]" {
		t.Errorf("%v", got)
	}
	post(t, hs.URL+"/-/fail?code=500&match=index", 200)
	if status("/index.yaml") != 500 || status("/index.yaml") != 500 {
		t.Error("a fault without n does not last")
	}
	post(t, hs.URL+"/-/fail?code=0", 200)
	post(t, hs.URL+"/-/cut?bytes=10&match=tgz", 200)
	if reply, body := get(t, hs.URL+"/c-0.1.0.tgz"); reply.StatusCode != 200 || !strings.HasPrefix(body, "broken off") {
		t.Errorf("%d %q", reply.StatusCode, body)
	}
	post(t, hs.URL+"/-/cut?bytes=0", 200)
	post(t, hs.URL+"/-/fail?code=abc", 400)
	post(t, hs.URL+"/-/nonsense", 404)
	if status("/index.yaml") != 200 || status("/c-0.1.0.tgz") != 200 || status("/.lock") != 404 || status("/-/delay?d=1s") != 405 {
		t.Error("not as before")
	}
}

func TestIndexWithoutDigestAndWithOtherURLs(t *testing.T) {
	s, hs, _ := repo(t)
	s.noDigest, s.urlPrefix = true, "http://elsewhere.test/charts/"
	_, body := get(t, hs.URL+"/index.yaml")
	if strings.Contains(body, "digest") || !strings.Contains(body, "- \"http://elsewhere.test/charts/c-0.2.0.tgz\"\n") {
		t.Error(body)
	}
}
