package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"syscall"
	"time"
)

//go:embed stages.yaml
var stages []byte

var errNotUp = errors.New("not up")

const lockName = "devcluster.lock"

const (
	readyLimit = 120 * time.Second // generous: several control planes start at once on two cores
	killLimit  = 10 * time.Second
	stopLimit  = 75 * time.Second // kube-apiserver lets requests in flight end for up to 60 s
	pollPause  = 50 * time.Millisecond
	tailLines  = 15
)

// config is what `up` was asked for; DIR/config.json keeps it, so that a part starts again with the
// same flags.
type config struct {
	Bin           string
	Audit         bool
	Nodes         int
	APIServerArgs []string
}

// cluster is one control plane: everything about it follows from its directory.
type cluster struct {
	config
	dir    string // absolute
	ports  map[string]int
	client *http.Client
	out    io.Writer
}

func (c *cluster) kubeconfigOf(name string) string { return filepath.Join(c.dir, name+".kubeconfig") }

// lockDir lets one command at a time change the control plane in dir. The lock goes with the
// process. Its file also marks dir as ours: only `up` makes it, and `down` removes nothing where it
// is missing.
func lockDir(dir string, mode int) (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(dir, lockName), mode|os.O_RDWR, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: no control plane in %s", errNotUp, dir)
	}
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		file.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return func() { file.Close() }, nil
}

// load reads the control plane of dir; errNotUp when there is none.
func load(dir string, out io.Writer) (*cluster, error) {
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	c := &cluster{dir: absolute, out: out}
	text, err := os.ReadFile(filepath.Join(absolute, "config.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: no control plane in %s", errNotUp, absolute)
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &c.config); err != nil {
		return nil, fmt.Errorf("%s/config.json: %w", absolute, err)
	}
	if c.ports, err = readPorts(filepath.Join(absolute, "ports")); err != nil {
		return nil, err
	}
	c.client, err = newClient(absolute)
	return c, err
}

// create lays the files of a new control plane. config.json comes last: without it the directory
// counts as empty.
func create(dir string, cfg config) (net.Listener, error) {
	ports, guard, err := choosePorts()
	if err != nil {
		return nil, err
	}
	write := func(name string, data []byte) {
		if err == nil {
			err = writeFileAtomic(filepath.Join(dir, name), data)
		}
	}
	err = writePKI(dir, time.Now())
	for _, id := range []string{partManager, partScheduler, partKwok} {
		if err == nil {
			err = writeKubeconfig(filepath.Join(dir, id+".kubeconfig"), dir, id, ports[partAPIServer])
		}
	}
	if err == nil {
		err = writePorts(filepath.Join(dir, "ports"), ports)
	}
	write("stages.yaml", stages)
	write("audit-policy.yaml", []byte(auditPolicy))
	text, _ := json.MarshalIndent(cfg, "", "  ")
	write("config.json", append(text, '\n'))
	if err != nil {
		guard.Close()
		return nil, err
	}
	return guard, nil
}

// refuseForeign keeps `up` from writing over somebody's kubeconfig (and `down` from removing it).
func refuseForeign(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, lockName)); err == nil {
		return nil
	}
	for _, name := range []string{"kubeconfig", "config.json", "pki", "etcd"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return fmt.Errorf("%s/%s is not ours; choose another --dir", dir, name)
		}
	}
	return nil
}

func up(ctx context.Context, out io.Writer, dir string, cfg config) error {
	began := time.Now()
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if cfg.Bin, err = filepath.Abs(cfg.Bin); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := refuseForeign(dir); err != nil {
		return err
	}
	unlock, err := lockDir(dir, os.O_CREATE)
	if err != nil {
		return err
	}
	defer unlock()

	c, err := load(dir, out)
	if errors.Is(err, errNotUp) {
		guard, err := create(dir, cfg)
		if err != nil {
			return err
		}
		defer guard.Close()
		c, err = load(dir, out)
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	} else if !reflect.DeepEqual(c.config, cfg) {
		return fmt.Errorf("%s holds a control plane that was made with other options; `devcluster down` it first", dir)
	}
	if err := c.startAll(ctx); err != nil {
		c.killAll()
		return fmt.Errorf("%w\nall parts are stopped; their logs are %s/*.log", err, dir)
	}
	path := filepath.Join(dir, "kubeconfig")
	if err := writeKubeconfig(path, dir, "admin", c.ports[partAPIServer]); err != nil {
		return err
	}
	fmt.Fprintf(out, "control plane ready %.1fs  KUBECONFIG=%s\n", time.Since(began).Seconds(), path)
	return nil
}

func (c *cluster) startAll(ctx context.Context) error {
	// kube-apiserver needs etcd and the rest need kube-apiserver, but the rest start side by side.
	for _, p := range parts[:2] {
		if err := c.start(p); err != nil {
			return err
		}
		if err := c.awaitPart(ctx, p); err != nil {
			return err
		}
	}
	for _, p := range parts[2:] {
		if err := c.start(p); err != nil {
			return err
		}
	}
	for _, p := range parts[2:] {
		if err := c.awaitPart(ctx, p); err != nil {
			return err
		}
	}
	for i := range c.Nodes {
		if err := c.addNode(ctx, nodeName(i)); err != nil {
			return fmt.Errorf("make the node %s: %w", nodeName(i), err)
		}
	}
	for i := range c.Nodes {
		ready := func(ctx context.Context, c *cluster) error { return c.nodeReady(ctx, nodeName(i)) }
		if err := c.await(ctx, partKwok, nodeName(i), ready); err != nil {
			return err
		}
	}
	working := func(ctx context.Context, c *cluster) error { return c.controllersWork(ctx) }
	return c.await(ctx, partManager, "controllers", working)
}

func nodeName(i int) string { return fmt.Sprintf("node-%d", i+1) }

// start runs a part unless it runs already. A paused part is an error: it would never get ready.
func (c *cluster) start(p part) error {
	switch readProcess(c.dir, p.name).state() {
	case stateGone:
	case stateStopped:
		return fmt.Errorf("%s is paused; `devcluster resume` it", p.name)
	default:
		return nil
	}
	if _, err := launch(c.dir, p.name, filepath.Join(c.Bin, p.program), p.args(c)); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	return nil
}

func (c *cluster) awaitPart(ctx context.Context, p part) error {
	return c.await(ctx, p.name, p.name, p.ready)
}

// await polls until ready returns nil, and says so. It gives up early when the process of the part
// has ended.
func (c *cluster) await(ctx context.Context, name, what string, ready func(context.Context, *cluster) error) error {
	began := time.Now()
	for {
		alive := readProcess(c.dir, name).alive()
		err := ready(ctx, c)
		switch {
		case err == nil && alive:
			fmt.Fprintf(c.out, "%s ready %.1fs\n", what, time.Since(began).Seconds())
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("interrupted while waiting for %s", what)
		case !alive:
			return fmt.Errorf("%s has ended by itself; the end of its log:\n%s", name, tail(c.dir, name, tailLines))
		case time.Since(began) > readyLimit:
			return fmt.Errorf("%s is not ready after %v: %w; the end of the log of %s:\n%s", what, readyLimit, err, name,
				tail(c.dir, name, tailLines))
		}
		select {
		case <-ctx.Done():
		case <-time.After(pollPause):
		}
	}
}

// killAll ends every part that runs, paused or not, and returns the names of those that would not
// go.
func (c *cluster) killAll() []string {
	var stuck []string
	running := make([]process, len(parts))
	for i, p := range parts {
		running[i] = readProcess(c.dir, p.name)
		if running[i].alive() {
			_ = running[i].signal(syscall.SIGKILL)
		}
	}
	for i, p := range parts {
		if !running[i].await(isGone, killLimit) {
			stuck = append(stuck, p.name)
			continue
		}
		_ = os.Remove(pidFile(c.dir, p.name))
	}
	return stuck
}

func down(_ context.Context, out io.Writer, dir string, keepLogs bool) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	unlock, err := lockDir(dir, 0)
	if errors.Is(err, errNotUp) {
		fmt.Fprintf(out, "no control plane in %s\n", dir)
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	c := &cluster{dir: dir, out: out}
	if stuck := c.killAll(); len(stuck) > 0 {
		return fmt.Errorf("%v did not end", stuck)
	}
	// By name, not the whole directory: someone else's files may be in there.
	names := []string{"config.json", "kubeconfig", "ports", "stages.yaml", "audit-policy.yaml", "pki", "etcd",
		"home"}
	for _, p := range parts {
		names = append(names, p.name+".kubeconfig", "certs-"+p.name)
		if !keepLogs {
			names = append(names, p.name+".log")
		}
	}
	if !keepLogs {
		names = append(names, "audit.log")
	}
	for _, name := range append(names, lockName) {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	_ = os.Remove(dir) // stays if anything else is in it
	fmt.Fprintf(out, "control plane of %s stopped\n", dir)
	return nil
}

func status(ctx context.Context, out io.Writer, dir string) error {
	c, err := load(dir, out)
	if err != nil {
		return err
	}
	all := true
	fmt.Fprintf(out, "%-24s %-8s %-6s %8s %6s\n", "PART", "STATE", "READY", "PID", "PORT")
	for _, p := range parts {
		proc := readProcess(c.dir, p.name)
		state, ready := "running", "no"
		switch proc.state() {
		case stateGone:
			state, proc.pid = "down", 0
		case stateStopped:
			state = "paused"
		default:
			if p.ready(ctx, c) == nil {
				ready = "yes"
			}
		}
		all = all && ready == "yes"
		fmt.Fprintf(out, "%-24s %-8s %-6s %8d %6d\n", p.name, state, ready, proc.pid, c.ports[p.name])
	}
	if !all {
		return fmt.Errorf("%w: a part does not run or is not ready", errNotUp)
	}
	return nil
}

func compact(ctx context.Context, out io.Writer, dir string) error {
	c, err := load(dir, out)
	if err != nil {
		return err
	}
	revision, err := c.compactEtcd(ctx)
	if err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	fmt.Fprintf(out, "etcd compacted up to revision %s\n", revision)
	return nil
}

// onParts does one of kill, stop, pause, resume, start to each part, in the order given.
func onParts(ctx context.Context, out io.Writer, dir, command string, wanted []part) error {
	unlock, err := lockDir(dir, 0)
	if err != nil {
		return err
	}
	defer unlock()
	c, err := load(dir, out)
	if err != nil {
		return err
	}
	for _, p := range wanted {
		if command == "start" {
			if err := c.start(p); err != nil {
				return err
			}
			if err := c.awaitPart(ctx, p); err != nil {
				return err
			}
			continue
		}
		if err := c.signalPart(command, p); err != nil {
			return fmt.Errorf("%s %s: %w", command, p.name, err)
		}
	}
	return nil
}

func (c *cluster) signalPart(command string, p part) error {
	proc := readProcess(c.dir, p.name)
	state := proc.state()
	if state == stateGone {
		return errors.New("it does not run")
	}
	isStopped := func(state byte) bool { return state == stateStopped }
	var sig syscall.Signal
	var done func(byte) bool
	limit := killLimit
	switch command {
	case "kill":
		sig, done = syscall.SIGKILL, isGone
	case "stop":
		if isStopped(state) {
			return errors.New("it is paused; resume it first")
		}
		sig, done, limit = syscall.SIGTERM, isGone, stopLimit
	case "pause":
		sig, done = syscall.SIGSTOP, isStopped
	case "resume":
		sig, done = syscall.SIGCONT, func(state byte) bool { return !isStopped(state) }
	}
	began := time.Now()
	if err := proc.signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	if !proc.await(done, limit) {
		return fmt.Errorf("no effect after %v", limit)
	}
	fmt.Fprintf(c.out, "%s %s done %.1fs\n", command, p.name, time.Since(began).Seconds())
	return nil
}
