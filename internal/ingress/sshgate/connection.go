package sshgate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
)

// channelBytes is what a channel can buffer: the window that the client may fill, and what is being copied.
const channelBytes = 2<<20 + copyBytes

// copyBytes is how much is copied at once.
const copyBytes = 32 << 10

// forwardAction begins the actions of connections to ports in the audit log.
const forwardAction = "ssh port "

// serve serves the channels of a client until the connection ends.
func (c *connection) serve(
	ctx context.Context,
	secure *ssh.ServerConn,
	channels <-chan ssh.NewChannel,
	requests <-chan *ssh.Request,
) {
	began := time.Now()
	if !c.gate.enter(c.sandbox) {
		c.record(ctx, "ssh login", began, api.Errorf(api.RateLimited, "too many connections"))
		return
	}
	defer c.gate.leave(c.sandbox)
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer secure.Close() // ends all channels
	defer cancel()
	c.record(ctx, "ssh login", began, nil)
	if err := c.gate.cfg.Keys.Used(ctx, c.credential.ID); err != nil {
		c.gate.cfg.Log.Warn("last use of an SSH key not written", "err", err)
	}
	work.Go(func() { ssh.DiscardRequests(requests) }) // clients may not listen
	work.Go(func() { c.recheck(ctx, secure) })
	for n := range channels {
		if !c.take() {
			_ = n.Reject(ssh.ResourceShortage, "too many channels of one connection")
			continue
		}
		work.Go(func() {
			defer c.give()
			c.channel(ctx, n)
		})
	}
}

// recheck closes the connection when its key no longer allows it.
func (c *connection) recheck(ctx context.Context, secure *ssh.ServerConn) {
	tick := time.NewTicker(c.gate.limits.Recheck)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		_, err := c.current(ctx)
		switch api.CodeOf(err) { //nolint:exhaustive // others say that it could not be found out
		case api.Unauthenticated, api.Forbidden, api.NotFound:
			c.record(ctx, "ssh end", time.Now(), err)
			_ = secure.Close() // ends serve
			return
		}
	}
}

// take counts a channel.
func (c *connection) take() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.channels >= c.gate.limits.Channels {
		return false
	}
	c.channels++
	return true
}

func (c *connection) give() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.channels--
}

// channel serves one channel until it ends.
func (c *connection) channel(ctx context.Context, n ssh.NewChannel) {
	account := c.gate.cfg.Buffers.Open(string(c.credential.Workspace), string(c.sandbox))
	defer account.Close()
	if err := account.Take(channelBytes); err != nil {
		_ = n.Reject(ssh.ResourceShortage, err.Error())
		return
	}
	switch n.ChannelType() {
	case "session":
		c.session(ctx, n, account)
	case "direct-tcpip":
		c.forward(ctx, n)
	default:
		_ = n.Reject(ssh.UnknownChannelType, "channels of this type are not supported")
	}
}

// direct is the extra data of a direct-tcpip channel.
type direct struct {
	Host       string
	Port       uint32
	OriginHost string
	OriginPort uint32
}

// parseDirect returns the port of the sandbox that a client wants to connect to.
func parseDirect(data []byte, sandbox api.SandboxID) (uint16, error) {
	var d direct
	if err := ssh.Unmarshal(data, &d); err != nil || d.Port == 0 || d.Port > 65535 {
		return 0, errors.New("malformed request")
	}
	host := strings.ToLower(d.Host)
	at, err := netip.ParseAddr(strings.Trim(host, "[]"))
	if host == "localhost" || host == string(sandbox) || err == nil && (at.IsLoopback() || at.IsUnspecified()) {
		return uint16(d.Port), nil
	}
	return 0, errors.New("connections are forwarded to ports of the sandbox alone: use localhost as their host")
}

// forward copies bytes between a channel and a port of the sandbox.
func (c *connection) forward(ctx context.Context, n ssh.NewChannel) {
	began := time.Now()
	port, err := parseDirect(n.ExtraData(), c.sandbox)
	if err != nil {
		_ = n.Reject(ssh.Prohibited, err.Error())
		return
	}
	conn, err := c.dial(ctx, port)
	c.record(ctx, fmt.Sprintf("%s%d", forwardAction, port), began, err)
	if err != nil {
		reason := ssh.ConnectionFailed
		if api.CodeOf(err) == api.Forbidden {
			reason = ssh.Prohibited
		}
		_ = n.Reject(reason, api.AsError(err).Message)
		return
	}
	defer conn.Close()
	ch, requests, err := n.Accept()
	if err != nil {
		return
	}
	defer ch.Close()
	relay(ch, requests, conn)
}

// relay copies bytes in both directions until both have ended, or the client closes the channel.
func relay(ch ssh.Channel, requests <-chan *ssh.Request, conn net.Conn) {
	var watching, copying sync.WaitGroup
	watching.Go(func() {
		ssh.DiscardRequests(requests) // until the client closes the channel
		_ = conn.Close()
	})
	copying.Go(func() {
		_, err := io.CopyBuffer(plainWriter{conn}, ch, make([]byte, copyBytes))
		half, ok := conn.(interface{ CloseWrite() error })
		if !ok || err != nil || half.CloseWrite() != nil {
			_ = conn.Close() // the program has gone away, and ends the other direction
		}
	})
	_, err := io.CopyBuffer(plainWriter{ch}, conn, make([]byte, copyBytes))
	if err != nil || ch.CloseWrite() != nil { // either end has gone away
		_ = ch.Close()
		_ = conn.Close()
	}
	copying.Wait()
	_ = ch.Close()
	_ = conn.Close()
	watching.Wait()
}

// dial connects to a port of the sandbox.
func (c *connection) dial(ctx context.Context, port uint16) (net.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.gate.limits.Start, errTooLong)
	defer cancel()
	g, _, err := c.enter(ctx, api.ScopePorts)
	if err != nil {
		return nil, err
	}
	conn, err := g.DialPort(ctx, port)
	if err != nil {
		return nil, hosterror.OfGuest(err, fmt.Sprintf("port %d", port))
	}
	return conn, nil
}

var errTooLong = errors.New("the sandbox took too long")

// plainWriter hides other methods of a writer, so that io.CopyBuffer uses its buffer.
type plainWriter struct{ io.Writer }
