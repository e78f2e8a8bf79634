package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// fault is a misbehaviour for requests whose path contains match.
type fault struct {
	value int // status code, or bytes until the break; 0: no fault
	match string
	left  int // how many more times; negative: until told otherwise
}

// take says whether the fault strikes this path, and counts it.
func (f *fault) take(path string) (int, bool) {
	if f.value == 0 || f.left == 0 || !strings.Contains(path, f.match) {
		return 0, false
	}
	if f.left > 0 {
		f.left--
	}
	return f.value, true
}

type server struct {
	dir       string
	user      string
	password  string
	noDigest  bool
	urlPrefix string

	mu        sync.Mutex // guards all below
	delay     time.Duration
	fail      fault
	cut       fault
	downloads int           // .tgz requests under way
	changed   chan struct{} // closed and replaced whenever downloads changes
	log       *json.Encoder
}

func newServer(out io.Writer) *server {
	return &server{changed: make(chan struct{}), log: json.NewEncoder(out)}
}

// logLine is one request. It never holds the value of a header: tests look for secrets in every
// log, this one included.
type logLine struct {
	TS     string  `json:"ts"`
	Method string  `json:"method"`
	Path   string  `json:"path"`
	Status int     `json:"status"`
	Auth   bool    `json:"auth"` // an Authorization header was there
	MS     float64 `json:"ms"`
	Gone   bool    `json:"gone,omitempty"` // the client left before the reply was complete
}

// statusWriter remembers the status for the log.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Write(data []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(data)
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	sw := &statusWriter{ResponseWriter: w}
	defer func() {
		line := logLine{TS: began.UTC().Format(time.RFC3339Nano), Method: r.Method, Path: r.URL.Path, Status: sw.status,
			Auth: r.Header.Get("Authorization") != "", MS: float64(time.Since(began).Microseconds()) / 1000,
			Gone: r.Context().Err() != nil}
		s.mu.Lock()
		defer s.mu.Unlock()
		_ = s.log.Encode(line)
	}()
	if name, ok := strings.CutPrefix(r.URL.Path, "/-/"); ok {
		s.control(sw, r, name)
		return
	}
	s.file(sw, r)
}

func (s *server) file(w http.ResponseWriter, r *http.Request) {
	if s.user != "" {
		user, password, _ := r.BasicAuth()
		if user != s.user || password != s.password {
			w.Header().Set("WWW-Authenticate", `Basic realm="charts"`)
			http.Error(w, "user and password, please", http.StatusUnauthorized)
			return
		}
	}
	name := path.Base(path.Clean("/" + r.URL.Path))
	archive := strings.HasSuffix(name, ".tgz")
	if archive {
		s.countDownload(1)
		defer s.countDownload(-1)
		if !s.sleep(r.Context()) {
			return
		}
	}
	s.mu.Lock()
	code, failed := s.fail.take(r.URL.Path)
	cutAt, cut := s.cut.take(r.URL.Path)
	s.mu.Unlock()
	if failed {
		http.Error(w, http.StatusText(code)+" (as a test asked for)", code)
		return
	}
	data, modified, err := s.read(name, archive)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("ETag", fmt.Sprintf(`"%x"`, sha256.Sum256(data)))
	if archive {
		w.Header().Set("Content-Type", "application/gzip")
	} else {
		w.Header().Set("Content-Type", "text/yaml")
	}
	if cut && cutAt < len(data) {
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		_, _ = w.Write(data[:cutAt])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler) // closes the connection in the middle of the body
	}
	http.ServeContent(w, r, name, modified, bytes.NewReader(data))
}

func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

var (
	digestLine = regexp.MustCompile(`(?m)^ *digest: .*\n`)
	urlLine    = regexp.MustCompile(`(?m)^( *- )"([^"/]*\.tgz)"$`)
)

// read returns a file of the repository: index.yaml or an archive, nothing else.
func (s *server) read(name string, archive bool) ([]byte, time.Time, error) {
	if !archive && name != indexName {
		return nil, time.Time{}, os.ErrNotExist
	}
	file := filepath.Join(s.dir, name)
	info, err := os.Stat(file)
	if err != nil {
		return nil, time.Time{}, err
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, time.Time{}, err
	}
	if !archive && s.noDigest {
		data = digestLine.ReplaceAll(data, nil)
	}
	if !archive && s.urlPrefix != "" {
		data = urlLine.ReplaceAll(data, []byte(`${1}"`+strings.ReplaceAll(s.urlPrefix, "$", "$$")+`${2}"`))
	}
	return data, info.ModTime(), nil
}

func (s *server) countDownload(by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.downloads += by
	close(s.changed)
	s.changed = make(chan struct{})
}

// sleep waits for the delay that is set now; false when the client left meanwhile.
func (s *server) sleep(ctx context.Context) bool {
	s.mu.Lock()
	delay := s.delay
	s.mu.Unlock()
	select {
	case <-time.After(delay):
		return true
	case <-ctx.Done():
		return false
	}
}

// control carries out /-/NAME.
func (s *server) control(w http.ResponseWriter, r *http.Request, name string) {
	query := r.URL.Query()
	want := http.MethodPost
	var err error
	switch name {
	case "delay":
		var delay time.Duration
		if delay, err = time.ParseDuration(query.Get("d")); err == nil && r.Method == want {
			s.mu.Lock()
			s.delay = delay
			s.mu.Unlock()
		}
	case "fail", "cut":
		var f fault
		key := map[string]string{"fail": "code", "cut": "bytes"}[name]
		if f, err = parseFault(query.Get(key), query.Get("match"), query.Get("n")); err == nil && r.Method == want {
			s.mu.Lock()
			if name == "fail" {
				s.fail = f
			} else {
				s.cut = f
			}
			s.mu.Unlock()
		}
	case "downloads":
		want = http.MethodGet
		if r.Method == want {
			s.awaitDownloads(w, r)
			return
		}
	case "health":
		want = r.Method
	default:
		http.NotFound(w, r)
		return
	}
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
	case r.Method != want:
		http.Error(w, "use "+want, http.StatusMethodNotAllowed)
	default:
		fmt.Fprintln(w, "ok")
	}
}

func parseFault(value, match, n string) (fault, error) {
	f := fault{match: match, left: -1}
	var err error
	if f.value, err = strconv.Atoi(value); err == nil && n != "" {
		f.left, err = strconv.Atoi(n)
	}
	if err == nil && (f.value < 0 || f.value > 1<<30) {
		err = fmt.Errorf("%d is out of range", f.value)
	}
	return f, err
}

func (s *server) awaitDownloads(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.Atoi(r.URL.Query().Get("n"))
	wait, err2 := time.ParseDuration(r.URL.Query().Get("wait"))
	if err != nil || err2 != nil {
		http.Error(w, "n=NUMBER and wait=DURATION are needed", http.StatusBadRequest)
		return
	}
	late := time.After(wait)
	for {
		s.mu.Lock()
		now, changed := s.downloads, s.changed
		s.mu.Unlock()
		if now >= n {
			fmt.Fprintln(w, now)
			return
		}
		select {
		case <-changed:
		case <-late:
			http.Error(w, fmt.Sprintf("only %d downloads after %v", now, wait), http.StatusGatewayTimeout)
			return
		case <-r.Context().Done():
			return
		}
	}
}
