package netslot

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/os/nft"
)

// kernel holds this process's long-lived connections to netfilter in one namespace. Closing such a socket can take
// the kernel tens of milliseconds, so it is done once.
type kernel struct {
	rules *nft.Conn
	flows *flows
}

// openKernel opens the connections for the namespace of the calling thread.
func openKernel() (*kernel, error) {
	rules, err := nft.Open()
	if err != nil {
		return nil, err
	}
	flows, err := openFlows()
	if err != nil {
		return nil, errors.Join(err, rules.Close())
	}
	return &kernel{rules: rules, flows: flows}, nil
}

func (k *kernel) close() error {
	k.flows.close()
	return k.rules.Close()
}

// ctaMarkMask is CTA_MARK_MASK of linux/netfilter/nfnetlink_conntrack.h.
const ctaMarkMask = 21

// flows is the connection tracking table of one namespace.
type flows struct{ handle *nl.SocketHandle }

func openFlows() (*flows, error) {
	s, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open connection tracking: %w", err)
	}
	return &flows{&nl.SocketHandle{Socket: s}}, nil
}

func (f *flows) close() { f.handle.Close() }

// forgetAll removes all tracked connections.
func (f *flows) forgetAll() error { return f.forget(nil) }

// forgetMarked removes the tracked connections with a mark. The kernel selects them itself: listing them would walk
// through the connections of every namespace.
func (f *flows) forgetMarked(mark uint32) error {
	value := binary.BigEndian.AppendUint32(nil, mark)
	mask := []byte{0xff, 0xff, 0xff, 0xff}
	return f.forget([]*nl.RtAttr{nl.NewRtAttr(nl.CTA_MARK, value), nl.NewRtAttr(ctaMarkMask, mask)})
}

func (f *flows) forget(which []*nl.RtAttr) error {
	req := nl.NewNetlinkRequest(int(netlink.ConntrackTable)<<8|nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: f.handle}
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_INET, Version: nl.NFNETLINK_V0})
	for _, a := range which {
		req.AddData(a)
	}
	if _, err := req.Execute(unix.NETLINK_NETFILTER, 0); err != nil {
		return fmt.Errorf("forget connections: %w", err)
	}
	return nil
}

// withKernel lets do change the rules and connections of the slot's namespace. After an error the next call opens new
// connections to netfilter, since replies that the kernel still sends on the old ones belong to no request.
func (s *Slot) withKernel(do func(*kernel) error) error {
	s.kernelMu.Lock()
	defer s.kernelMu.Unlock()
	if s.kernel == nil {
		err := s.inside(func() (err error) {
			s.kernel, err = openKernel()
			return err
		})
		if err != nil {
			return err
		}
	}
	err := do(s.kernel)
	if err != nil {
		err = errors.Join(err, s.kernel.close())
		s.kernel = nil
	}
	return err
}

// closeKernel closes the connections to netfilter in the slot's namespace, if they are open.
func (s *Slot) closeKernel() error {
	s.kernelMu.Lock()
	defer s.kernelMu.Unlock()
	if s.kernel == nil {
		return nil
	}
	err := s.kernel.close()
	s.kernel = nil
	return err
}

// forgetHostFlows removes the host's tracked connections with the slot behind a link. It is not an error if no link
// has the name.
func (p *Pool) forgetHostFlows(link string) error {
	return within(p.host, func() error {
		l, err := netlink.LinkByName(link)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("find link %s: %w", link, err)
		}
		return p.flows.forgetMarked(nft.IfaceMark(markBase, l.Attrs().Index))
	})
}
