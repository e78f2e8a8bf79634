package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
)

// A control plane takes a block of neighbouring ports. A block with any taken port is left alone,
// so the ports of a part that is down for a while stay its own as long as another part of that
// control plane runs.
const (
	portsPerBlock = 8
	guardOffset   = portsPerBlock - 1 // held open by `up` itself, until the parts listen
	lowestPort    = 10000
	blockTries    = 1000
)

// portNames in the order of their offset in the block.
var portNames = []string{partEtcd, "etcd-peer", partAPIServer, partManager, partScheduler, partKwok}

// choosePorts finds a free block below the kernel's range for outgoing connections: from that range
// the kernel could hand the port of a killed part to any connection of anyone before the part is
// started again. The listener that it returns keeps other calls away from the block; close it when
// the parts have their ports.
func choosePorts() (map[string]int, net.Listener, error) {
	blocks := (firstEphemeralPort() - lowestPort) / portsPerBlock
	for range blockTries {
		base := lowestPort + portsPerBlock*rand.IntN(blocks)
		guard, err := listenLoopback(base + guardOffset)
		if err != nil {
			continue
		}
		ports := make(map[string]int, len(portNames))
		for i, name := range portNames {
			l, err := listenLoopback(base + i)
			if err != nil {
				break
			}
			l.Close()
			ports[name] = base + i
		}
		if len(ports) == len(portNames) {
			return ports, guard, nil
		}
		guard.Close()
	}
	return nil, nil, errors.New("no block of free ports on 127.0.0.1")
}

func listenLoopback(port int) (net.Listener, error) {
	return net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
}

func firstEphemeralPort() int {
	var low int
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err == nil {
		_, err = fmt.Sscan(string(text), &low)
	}
	if err != nil || low < lowestPort+100*portsPerBlock {
		return 32768
	}
	return low
}

func writePorts(path string, ports map[string]int) error {
	var text strings.Builder
	for _, name := range portNames {
		fmt.Fprintf(&text, "%s %d\n", name, ports[name])
	}
	return writeFileAtomic(path, []byte(text.String()))
}

func readPorts(path string) (map[string]int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	ports := make(map[string]int, len(portNames))
	for line := range strings.Lines(string(text)) {
		var name string
		var port int
		if _, err := fmt.Sscan(line, &name, &port); err != nil {
			return nil, fmt.Errorf("%s: %q is not NAME PORT", path, strings.TrimSpace(line))
		}
		ports[name] = port
	}
	for _, name := range portNames {
		if ports[name] == 0 {
			return nil, fmt.Errorf("%s: no port of %s", path, name)
		}
	}
	return ports, nil
}
