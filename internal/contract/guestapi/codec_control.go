package guestapi

// AppendPort encodes t.
func AppendPort(b []byte, t *Port) []byte {
	w := buffer(b)
	w.uint(uint64(t.Port))
	w.str(t.Address)
	w.uint(uint64(t.PID))
	w.str(t.Program[:min(len(t.Program), MaxName)])
	return w
}

// ParsePorts decodes a sequence of ports that AppendPort encoded, at most limit.
func ParsePorts(b []byte, limit int) ([]Port, error) {
	p := parser{b: b}
	var all []Port
	for len(p.b) > 0 {
		if len(all) == limit {
			return nil, ErrFormat
		}
		all = append(all, Port{Port: uint16(p.uintMax(1<<16 - 1)), Address: p.text(MaxName),
			PID: uint32(p.uintMax(1<<32 - 1)), Program: p.text(MaxName)})
	}
	return all, p.end()
}

// AppendDial encodes the request to connect to a port.
func AppendDial(b []byte, port uint16) []byte {
	w := buffer(b)
	w.uint(uint64(port))
	return w
}

// ParseDial decodes a request that AppendDial encoded.
func ParseDial(b []byte) (uint16, error) {
	p := parser{b: b}
	port := uint16(p.uintMax(1<<16 - 1))
	return port, p.end()
}

// AppendDialSocket encodes the request to connect to a Unix socket.
func AppendDialSocket(b []byte, path string) []byte {
	w := buffer(b)
	w.str(path)
	return w
}

// ParseDialSocket decodes a request that AppendDialSocket encoded.
func ParseDialSocket(b []byte) (path string, err error) {
	p := parser{b: b}
	path = p.str(MaxPath)
	return path, p.end()
}

// AppendFreeze encodes the request to freeze.
func AppendFreeze(b []byte, sync bool) []byte {
	w := buffer(b)
	w.bool(sync)
	return w
}

// ParseFreeze decodes a request that AppendFreeze encoded.
func ParseFreeze(b []byte) (sync bool, err error) {
	p := parser{b: b}
	sync = p.bool()
	return sync, p.end()
}

// AppendIdentity encodes i.
func AppendIdentity(b []byte, i *Identity) []byte {
	w := buffer(b)
	w.str(i.MachineID)
	w.str(i.Hostname)
	w.uint(i.Generation)
	w.time(i.Time)
	w.bytes(i.Entropy)
	w.bool(i.Network != nil)
	if n := i.Network; n != nil {
		w.str(n.Address)
		w.str(n.Gateway)
		w.strs(n.DNS)
		w.uint(uint64(n.MTU))
	}
	w.env(i.Env)
	w.str(i.User)
	w.bool(i.DiskGrow)
	w.uint(uint64(len(i.Files)))
	for path, content := range i.Files {
		w.str(path)
		w.bytes(content)
	}
	if len(i.Mounts) == 0 && len(i.Volumes) == 0 { // agents in older snapshots cannot decode mounts
		return w
	}
	w.uint(uint64(len(i.Mounts)))
	for _, m := range i.Mounts {
		w.uint(uint64(m.Disk))
		w.str(m.Dir)
		w.strs(m.Options)
	}
	if len(i.Volumes) == 0 { // agents in snapshots without places for volumes cannot decode volumes
		return w
	}
	w.uint(uint64(len(i.Volumes)))
	for _, v := range i.Volumes {
		w.volume(&v)
	}
	return w
}

// ParseIdentity decodes an identity that AppendIdentity encoded.
func ParseIdentity(b []byte) (Identity, error) {
	p := parser{b: b}
	i := Identity{MachineID: p.str(MaxName), Hostname: p.str(MaxName), Generation: p.uint(), Time: p.time(),
		Entropy: append([]byte(nil), p.raw(MaxPath)...)}
	if p.bool() {
		i.Network = &Network{Address: p.str(MaxName), Gateway: p.str(MaxName), DNS: p.strs(maxListItems, MaxName),
			MTU: int(p.uintMax(1 << 16))}
	}
	i.Env, i.User, i.DiskGrow = p.env(), p.str(MaxName), p.bool()
	if n := p.uintMax(maxListItems); n > 0 {
		i.Files = make(map[string][]byte)
		for ; n > 0 && !p.bad; n-- {
			path := p.str(MaxPath)
			i.Files[path] = append([]byte(nil), p.raw(MaxContent)...)
		}
	}
	if len(p.b) > 0 {
		for n := p.uintMax(maxListItems); n > 0 && !p.bad; n-- {
			i.Mounts = append(
				i.Mounts,
				Mount{Disk: int(p.uintMax(maxListItems)), Dir: p.str(MaxPath), Options: p.strs(maxListItems, MaxName)},
			)
		}
	}
	if len(p.b) > 0 {
		for n := p.uintMax(maxListItems); n > 0 && !p.bad; n-- {
			i.Volumes = append(i.Volumes, p.volume())
		}
	}
	return i, p.end()
}

// AppendStats encodes s.
func AppendStats(b []byte, s *Stats) []byte {
	w := buffer(b)
	for _, v := range []int64{s.MemTotal, s.MemAvailable, s.MemCached, s.DiskTotal, s.DiskUsed, int64(s.CPUs),
		int64(s.CPUBusy), int64(s.Load1 * 100), int64(s.Uptime), int64(s.Processes), s.NetRx, s.NetTx} {
		w.int(v)
	}
	w.time(s.Time)
	return w
}

// ParseStats decodes statistics that AppendStats encoded. The load has a precision of a hundredth.
func ParseStats(b []byte) (Stats, error) {
	p := parser{b: b}
	s := Stats{MemTotal: p.count(), MemAvailable: p.count(), MemCached: p.count(), DiskTotal: p.count(),
		DiskUsed: p.count(), CPUs: int(int32(p.count())), CPUBusy: p.duration(), Load1: float64(p.count()) / 100,
		Uptime: p.duration(), Processes: int(int32(p.count())), NetRx: p.count(), NetTx: p.count(), Time: p.time()}
	return s, p.end()
}
