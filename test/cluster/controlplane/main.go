// Command controlplane is the dev control plane in one multi-call binary: argv[1] names the part.
//
// One binary instead of four, because the parts share nearly all of their code: 190 MB once instead
// of four times. kwok and kubectl are binaries of their own: their flags collide with those that
// component-base registers.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"

	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
)

func run(build func() *cobra.Command) {
	os.Args = os.Args[1:]
	os.Exit(cli.Run(build()))
}

func main() {
	part := ""
	if len(os.Args) > 1 {
		part = os.Args[1]
	}
	switch part {
	case "etcd":
		etcdmain.Main(os.Args[1:])
	case "kube-apiserver":
		run(func() *cobra.Command { return apiserver.NewAPIServerCommand() })
	case "kube-controller-manager":
		run(func() *cobra.Command { return manager.NewControllerManagerCommand() })
	case "kube-scheduler":
		run(func() *cobra.Command { return scheduler.NewSchedulerCommand() })
	default:
		fmt.Fprintln(os.Stderr, "usage: controlplane etcd|kube-apiserver|kube-controller-manager|kube-scheduler [flags]")
		os.Exit(2)
	}
}
