package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process names one running process for good: the kernel gives a pid to someone else later, but not
// with the same start time.
type process struct {
	pid   int
	start uint64 // clock ticks since boot, field 22 of /proc/PID/stat
}

// Process states as /proc/PID/stat gives them, as far as they matter here.
const (
	stateGone    = byte(0)
	stateStopped = byte('T')
	stateZombie  = byte('Z')
	stateDead    = byte('X')
)

// readStat returns state and start time of a pid; stateGone when there is no such process.
func readStat(pid int) (byte, uint64) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stateGone, 0
	}
	// The command name is in parentheses and may hold anything, also ") "; what follows the last
	// one is numbers.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 20 {
		return stateGone, 0
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return stateGone, 0
	}
	return fields[0][0], start
}

// state is stateGone for a zombie too: it can do nothing any more, and who reaps it is not our
// business.
func (p process) state() byte {
	if p.pid <= 1 {
		return stateGone
	}
	state, start := readStat(p.pid)
	if start != p.start || state == stateZombie || state == stateDead {
		return stateGone
	}
	return state
}

func (p process) alive() bool { return p.state() != stateGone }

// signal sends sig if the process is still the one that was started. The descriptor of FindProcess
// (a pidfd) is taken before the check, so that the pid cannot change hands between check and
// signal.
func (p process) signal(sig syscall.Signal) error {
	found, err := os.FindProcess(p.pid)
	if err != nil {
		return err
	}
	defer found.Release()
	if !p.alive() {
		return os.ErrProcessDone
	}
	return found.Signal(sig)
}

// await polls until want is met by the state of p; false when the time is over first.
func (p process) await(want func(state byte) bool, limit time.Duration) bool {
	for end := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
		if want(p.state()) {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

func isGone(state byte) bool { return state == stateGone }

func pidFile(dir, name string) string { return filepath.Join(dir, name+".pid") }
func logFile(dir, name string) string { return filepath.Join(dir, name+".log") }

// readProcess returns the process of a part as its pid file names it; the zero process (not alive)
// without such a file.
func readProcess(dir, name string) process {
	var p process
	text, err := os.ReadFile(pidFile(dir, name))
	if err != nil {
		return p
	}
	if _, err := fmt.Sscan(string(text), &p.pid, &p.start); err != nil {
		return process{}
	}
	return p
}

// launch runs a program in a session of its own, with its log appended to DIR/NAME.log, and writes
// DIR/NAME.pid. The process outlives this one; while this one lives it is reaped.
func launch(dir, name, program string, args []string) (process, error) {
	log, err := os.OpenFile(logFile(dir, name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return process{}, err
	}
	defer log.Close()
	cmd := exec.Command(program, args...)
	cmd.Dir = dir
	cmd.Env = childEnv(filepath.Join(dir, "home"))
	cmd.Stdout = log
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return process{}, err
	}
	_, start := readStat(cmd.Process.Pid)
	p := process{pid: cmd.Process.Pid, start: start}
	err = writeFileAtomic(pidFile(dir, name), fmt.Appendf(nil, "%d %d\n", p.pid, p.start))
	if err != nil {
		_ = cmd.Process.Kill()
	}
	go func() { _ = cmd.Wait() }()
	return p, err
}

// childEnv keeps what could steer a part away from its flags out of its environment: etcd takes
// each flag from a variable too, a proxy has no business between the parts, and kwok reads a file
// in HOME.
func childEnv(home string) []string {
	env := []string{"HOME=" + home}
	for _, entry := range os.Environ() {
		name := strings.ToUpper(entry[:strings.IndexByte(entry+"=", '=')])
		if name == "HOME" || strings.HasPrefix(name, "ETCD") || strings.HasPrefix(name, "KUBE") ||
			strings.HasPrefix(name, "KWOK") || strings.HasSuffix(name, "_PROXY") {
			continue
		}
		env = append(env, entry)
	}
	return env
}

// tail returns the last lines of a part's log, indented.
func tail(dir, name string, lines int) string {
	text, err := os.ReadFile(logFile(dir, name))
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return "  (no log)\n"
		}
		return fmt.Sprintf("  (%v)\n", err)
	}
	all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return "  " + strings.Join(all, "\n  ") + "\n"
}
