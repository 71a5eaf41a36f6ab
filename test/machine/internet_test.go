//go:build vm

package machine

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/os/netslot"
)

// Addresses of the test's own internet: two public ones, the resolver that the node asks, and one in every kind of
// range that is closed.
const (
	sharedSite = "93.184.216.34"
	otherSite  = "93.184.216.99"
	resolver   = "10.9.9.9"
)

var closedSites = []string{
	resolver,
	"172.16.3.3",
	"192.168.3.3",
	"100.64.0.9",
	"169.254.169.254",
	"198.18.0.1",
	"203.0.113.7",
	"224.0.0.9",
	"0.0.0.1",
}

// internet is everything beyond the test's host. Nothing of it leaves this computer.
type internet struct {
	t         *testing.T
	host, net string // namespaces: the host's, where the node runs, and beyond its uplink

	mu        sync.Mutex
	asked     []string // names and types of the resolver's queries
	datagrams []string // received over UDP
}

// newInternet makes the internet and makes the next host agent run in it. Both end with the test.
func newInternet(t *testing.T) *internet {
	t.Helper()
	own := prefix(closeShared(t))
	in := &internet{t: t, host: own + "host", net: own + "inet"}
	remove := func() {
		for _, name := range []string{in.host, in.net} {
			_ = exec.Command("ip", "netns", "delete", name).Run() // of an earlier run, or ours
		}
	}
	remove()
	t.Cleanup(remove)
	for _, line := range []string{
		"netns add " + in.host, "netns add " + in.net,
		"-n " + in.host + " link add up0 type veth peer name net0 netns " + in.net,
		"-n " + in.host + " address add 198.100.1.2/24 dev up0",
		"-n " + in.net + " address add 198.100.1.1/24 dev net0",
		"-n " + in.host + " link set up0 up", "-n " + in.net + " link set net0 up",
		"-n " + in.host + " link set lo up", "-n " + in.net + " link set lo up",
		"-n " + in.host + " route add default via 198.100.1.1",
	} {
		in.ip(line)
	}
	for _, a := range append([]string{sharedSite, otherSite}, closedSites...) {
		if a == "224.0.0.9" || a == "0.0.0.1" {
			continue // no host has these
		}
		in.ip("-n " + in.net + " address add " + a + "/32 dev lo")
	}
	in.serve()
	alterNetwork = func(c *netslot.Config) {
		c.Namespace = "/var/run/netns/" + in.host
		c.Resolvers = []netip.AddrPort{netip.MustParseAddrPort(resolver + ":53")}
	}
	t.Cleanup(func() {
		alterNetwork = nil
		shared.Lock()
		defer shared.Unlock()
		if shared.lab != nil {
			if err := shared.lab.close(false); err != nil {
				t.Error(err)
			}
			shared.lab = nil
		}
	})
	return in
}

func (in *internet) ip(line string) {
	in.t.Helper()
	if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
		in.t.Fatalf("ip %s: %v\n%s", line, err, out)
	}
}

// within calls do on a thread in a network namespace. The thread leaves it afterwards: the first thread of a process
// does not end with its goroutine, and its namespace passes for that of the process.
func within(t *testing.T, name string, do func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		own, err := os.Open("/proc/thread-self/ns/net")
		if err == nil {
			defer own.Close()
			err = inNamespace(name, do)
			if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
				err = errors.Join(err, back) // and the thread stays locked
			} else {
				runtime.UnlockOSThread()
			}
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// inNamespace calls do in a network namespace, on this thread, which stays in it.
func inNamespace(name string, do func() error) error {
	ns, err := os.Open("/var/run/netns/" + name)
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
	return do()
}

// serve runs the servers. On TCP they reply "here" to everything, on port 80 in HTTP; on UDP they record the data;
// one is a resolver. The host has a server too, on all of its addresses.
func (in *internet) serve() {
	in.t.Helper()
	within(in.t, in.net, func() error {
		var all error
		for _, port := range []int{25, 53, 80, 443, 853, 7777, 8443} {
			all = errors.Join(all, in.listen(fmt.Sprintf("0.0.0.0:%d", port)))
		}
		for _, port := range []int{123, 443, 853, 3478} {
			all = errors.Join(all, in.keep(fmt.Sprintf("0.0.0.0:%d", port)))
		}
		for _, a := range []string{sharedSite, otherSite} {
			all = errors.Join(all, in.keep(a+":53"))
		}
		pc, err := net.ListenPacket("udp4", resolver+":53")
		if err != nil {
			return errors.Join(all, err)
		}
		s := &dns.Server{PacketConn: pc, Handler: dns.HandlerFunc(in.resolve)}
		go s.ActivateAndServe() //nolint:errcheck // it ends when it is shut down
		in.t.Cleanup(func() { _ = s.Shutdown() })
		return all
	})
	within(in.t, in.host, func() error { return in.listen("0.0.0.0:7700") })
}

func (in *internet) listen(at string) error {
	l, err := net.Listen("tcp4", at)
	if err != nil {
		return err
	}
	in.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				said := "here"
				if strings.HasSuffix(at, ":80") {
					said = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nhere"
				}
				if n, _ := c.Read(make([]byte, 1<<16)); n > 0 {
					_, _ = c.Write([]byte(said)) // the guest says what it got
				}
				_, _ = c.Read(make([]byte, 1<<16))
			}()
		}
	}()
	return nil
}

func (in *internet) keep(at string) error {
	pc, err := net.ListenPacket("udp4", at)
	if err != nil {
		return err
	}
	in.t.Cleanup(func() { pc.Close() })
	go func() {
		b := make([]byte, 2000)
		for {
			n, _, err := pc.ReadFrom(b)
			if err != nil {
				return
			}
			in.mu.Lock()
			in.datagrams = append(in.datagrams, string(b[:n]))
			in.mu.Unlock()
		}
	}()
	return nil
}

// resolve is the resolver: it knows every name below test, and a text for each as a tunnel would use it.
func (in *internet) resolve(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg)
	m.SetReply(q)
	for _, question := range q.Question {
		in.mu.Lock()
		in.asked = append(in.asked, question.Name+" "+dns.TypeToString[question.Qtype])
		in.mu.Unlock()
		line := question.Name + " 60 IN A " + sharedSite
		switch {
		case question.Qtype == dns.TypeTXT:
			line = question.Name + ` 60 IN TXT "here"`
		case question.Qtype != dns.TypeA:
			continue
		case strings.HasPrefix(question.Name, "inside."):
			line = question.Name + " 60 IN A 169.254.169.254"
		}
		if rr, err := dns.NewRR(line); err == nil {
			m.Answer = append(m.Answer, rr)
		}
	}
	_ = w.WriteMsg(m) // a client that has gone asks again
}

// received returns the queries of the resolver and the UDP data so far.
func (in *internet) received() (asked, datagrams []string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return append([]string(nil), in.asked...), append([]string(nil), in.datagrams...)
}
