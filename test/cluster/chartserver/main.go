// Command chartserver is a Helm chart repository for tests: it serves a directory over HTTP, slowly
// or wrongly when told to, and packs chart directories for it. See ../README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const usage = `usage:
  chartserver --listen 127.0.0.1:0 --dir DIR --addr-file FILE [--delay 3s] [--user U --password P]
              [--no-digest] [--url-prefix URL/]
  chartserver pack --dir DIR [--version V] CHART_DIR
At run time, by POST:
  /-/delay?d=3s                      every .tgz download waits that long before its first byte
  /-/fail?code=500&match=tgz[&n=2]   requests whose path contains the text get that status (n: only the next n); code=0 ends it
  /-/cut?bytes=100&match=tgz[&n=1]   such replies break off after so many bytes; bytes=0 ends it
By GET:
  /-/downloads?n=1&wait=10s          answers when so many .tgz downloads are under way, 504 if they are not in time
  /-/health                          200
`

var errUsage = errors.New("wrong usage")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var err error
	if len(os.Args) > 1 && os.Args[1] == "pack" {
		err = packCommand(os.Args[2:], os.Stdout)
	} else {
		err = serveCommand(ctx, os.Args[1:], os.Stdout)
	}
	stop()
	switch {
	case err == nil:
	case errors.Is(err, flag.ErrHelp):
		fmt.Print(usage)
	case errors.Is(err, errUsage):
		fmt.Fprintf(os.Stderr, "chartserver: %v\n%s", err, usage)
		os.Exit(2)
	default:
		fmt.Fprintf(os.Stderr, "chartserver: %v\n", err)
		os.Exit(1)
	}
}

func parse(flags *flag.FlagSet, args []string) error {
	flags.SetOutput(io.Discard)
	err := flags.Parse(args)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		err = fmt.Errorf("%w: %v", errUsage, err)
	}
	return err
}

func packCommand(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("pack", flag.ContinueOnError)
	dir := flags.String("dir", "", "")
	version := flags.String("version", "", "")
	if err := parse(flags, args); err != nil {
		return err
	}
	if *dir == "" || flags.NArg() != 1 {
		return fmt.Errorf("%w: pack needs --dir DIR and one CHART_DIR", errUsage)
	}
	path, err := pack(*dir, flags.Arg(0), *version)
	if err == nil {
		fmt.Fprintln(out, path)
	}
	return err
}

func serveCommand(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("chartserver", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:0", "")
	addrFile := flags.String("addr-file", "", "")
	s := newServer(out)
	flags.StringVar(&s.dir, "dir", "", "")
	flags.DurationVar(&s.delay, "delay", 0, "")
	flags.StringVar(&s.user, "user", "", "")
	flags.StringVar(&s.password, "password", "", "")
	flags.BoolVar(&s.noDigest, "no-digest", false, "")
	flags.StringVar(&s.urlPrefix, "url-prefix", "", "")
	if err := parse(flags, args); err != nil {
		return err
	}
	if s.dir == "" || flags.NArg() != 0 {
		return fmt.Errorf("%w: --dir DIR is needed, and nothing besides flags", errUsage)
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	if *addrFile != "" {
		if err := writeFileAtomic(*addrFile, []byte(listener.Addr().String()+"\n")); err != nil {
			return err
		}
	}
	server := &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		<-ctx.Done()
		server.Close() // downloads under way are cut off; clients of a test must bear that
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
