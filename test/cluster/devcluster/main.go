// Command devcluster runs real Kubernetes control planes on free ports of the loopback interface:
// etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kwok in place of kubelets. Each
// lives in a directory of its own, so several run side by side; each part can be killed, stopped,
// paused, resumed and started alone. See ../README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

const usage = `usage:
  devcluster up --dir DIR --bin BINDIR [--audit] [--nodes N] [--apiserver-arg FLAG=VALUE]...
  devcluster down --dir DIR [--keep-logs]
  devcluster status --dir DIR
  devcluster kill|stop|pause|resume|start --dir DIR PART...
  devcluster compact --dir DIR
parts: etcd kube-apiserver kube-controller-manager kube-scheduler kwok
up       start what does not run yet, wait until all of it is ready, write DIR/kubeconfig
down     kill all parts, remove what up made in DIR
status   exit 0 only if every part runs and is ready, else 3
kill     SIGKILL     stop  SIGTERM     pause  SIGSTOP     resume  SIGCONT     start  run it again, wait until ready
compact  drop etcd's history up to now (old resourceVersions then get 410 Gone once kube-apiserver has restarted)
`

const (
	exitFailure = 1
	exitUsage   = 2
	exitNotUp   = 3
)

var errUsage = errors.New("wrong usage")

// stringList is a flag that may be given several times.
type stringList []string

func (l *stringList) String() string { return strings.Join(*l, " ") }
func (l *stringList) Set(v string) error {
	*l = append(*l, v)
	return nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is main without the process: it returns the exit code.
func run(ctx context.Context, args []string, out, errOut io.Writer) int {
	err := dispatch(ctx, args, out)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errUsage):
		fmt.Fprintf(errOut, "devcluster: %v\n%s", err, usage)
		return exitUsage
	case errors.Is(err, errNotUp):
		fmt.Fprintf(errOut, "devcluster: %v\n", err)
		return exitNotUp
	default:
		fmt.Fprintf(errOut, "devcluster: %v\n", err)
		return exitFailure
	}
}

func dispatch(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return fmt.Errorf("%w: no command", errUsage)
	}
	command := args[0]
	if command == "help" || command == "--help" || command == "-h" {
		fmt.Fprint(out, usage)
		return nil
	}

	flags := flag.NewFlagSet(command, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	var cfg config
	var dir string
	var keepLogs bool
	flags.StringVar(&dir, "dir", "", "directory of the control plane")
	switch command {
	case "up":
		flags.StringVar(&cfg.Bin, "bin", "", "directory of the binaries")
		flags.BoolVar(&cfg.Audit, "audit", false, "write DIR/audit.log")
		flags.IntVar(&cfg.Nodes, "nodes", 1, "number of nodes")
		flags.Var((*stringList)(&cfg.APIServerArgs), "apiserver-arg", "one more flag for kube-apiserver")
	case "down":
		flags.BoolVar(&keepLogs, "keep-logs", false, "leave the logs in DIR")
	case "status", "compact", "kill", "stop", "pause", "resume", "start":
	default:
		return fmt.Errorf("%w: unknown command %q", errUsage, command)
	}
	if err := flags.Parse(args[1:]); err != nil {
		return fmt.Errorf("%w: %s: %v", errUsage, command, err)
	}
	if dir == "" {
		return fmt.Errorf("%w: %s needs --dir DIR", errUsage, command)
	}
	wanted, err := partsNamed(flags.Args())
	if err != nil {
		return err
	}

	switch command {
	case "up":
		if cfg.Bin == "" || cfg.Nodes < 1 {
			return fmt.Errorf("%w: up needs --bin BINDIR and --nodes of at least 1", errUsage)
		}
		return up(ctx, out, dir, cfg)
	case "down":
		return down(ctx, out, dir, keepLogs)
	case "status":
		return status(ctx, out, dir)
	case "compact":
		return compact(ctx, out, dir)
	default:
		if len(wanted) == 0 {
			return fmt.Errorf("%w: %s needs a PART", errUsage, command)
		}
		return onParts(ctx, out, dir, command, wanted)
	}
}
