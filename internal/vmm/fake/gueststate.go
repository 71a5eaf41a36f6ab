package fake

import (
	"context"
	"encoding/json"
	"maps"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// memory is the part of a guest that a capture copies.
type memory struct {
	Hostname    string
	MachineID   string
	Env         map[string]string
	User        string
	Network     *guestapi.Network
	ClockOffset time.Duration `json:"Ahead"` // guest clock minus host clock
	Booted      time.Duration // uptime when it was captured
	NextPID     uint32
	Files       map[string]*file // by clean absolute path
	Procs       map[uint32]*process
	Volumes     map[int]guestapi.VolumeMount `json:",omitempty"` // mounted, by disk
}

// file is one file or directory.
type file struct {
	Dir      bool
	Data     []byte
	Mode     uint32
	User     string
	Modified time.Time
}

// guestState is a guest that runs. mu guards it and its processes; cond announces changes.
type guestState struct {
	mu      sync.Mutex
	cond    *sync.Cond
	memory       // copied by captures
	paused  bool // its processors are stopped
	frozen  bool // its workload is
	dead    bool
	started time.Time      // zero: it has not run yet
	wg      sync.WaitGroup // running processes
}

func newGuestState() *guestState {
	now := time.Now()
	w := emptyGuestState()
	w.Hostname, w.MachineID, w.NextPID = "localhost", "", 100
	w.Env = map[string]string{"PATH": "/usr/bin:/bin"}
	w.Files, w.Procs = map[string]*file{}, map[uint32]*process{}
	for _, dir := range []string{"/", "/tmp", "/root", "/home", "/home/user", "/etc", "/workspace"} {
		w.Files[dir] = &file{Dir: true, Mode: 0o755, User: "root", Modified: now}
	}
	w.Files["/etc/hostname"] = &file{Data: []byte("localhost\n"), Mode: 0o644, User: "root", Modified: now}
	return w
}

func emptyGuestState() *guestState {
	w := &guestState{}
	w.cond = sync.NewCond(&w.mu)
	return w
}

// copy returns a copy of the guest at this moment, paused.
func (w *guestState) copy() *guestState {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := emptyGuestState()
	c.paused = true
	c.memory = w.memory
	if !w.started.IsZero() {
		c.Booted += time.Since(w.started)
	}
	c.Env, c.Volumes = maps.Clone(w.Env), maps.Clone(w.Volumes)
	c.Files = map[string]*file{}
	for p, f := range w.Files {
		g := *f
		g.Data = append([]byte(nil), f.Data...)
		c.Files[p] = &g
	}
	c.Procs = map[uint32]*process{}
	for pid, p := range w.Procs {
		c.Procs[pid] = p.copy()
	}
	return c
}

func (w *guestState) encode() ([]byte, error) { return json.Marshal(&w.memory) }

func decodeGuestState(data []byte) (*guestState, error) {
	w := emptyGuestState()
	w.paused = true
	if err := json.Unmarshal(data, &w.memory); err != nil {
		return nil, err
	}
	return w, nil
}

// run lets the processes of a copied guest continue, once it is resumed.
func (w *guestState) run() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.started = time.Now()
	for _, p := range w.Procs {
		if p.Exit == nil {
			w.startProcess(p)
		}
	}
}

// end kills the guest and waits for its processes.
func (w *guestState) end() {
	w.mu.Lock()
	w.dead = true
	w.cond.Broadcast()
	w.mu.Unlock()
	w.wg.Wait()
}

func (w *guestState) setPaused(v bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.paused = v
	w.cond.Broadcast()
}

// wait waits with mu held until ready returns true and the guest is not paused.
func (w *guestState) wait(ctx context.Context, ready func() bool) error {
	stop := context.AfterFunc(ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.cond.Broadcast()
	})
	defer stop()
	for {
		switch {
		case w.dead:
			return guestapi.ErrLost
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !w.paused && ready():
			return nil
		}
		w.cond.Wait()
	}
}

// do calls f with mu held, once the guest is not paused.
func (w *guestState) do(ctx context.Context, f func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.wait(ctx, func() bool { return true }); err != nil {
		return err
	}
	return f()
}

func (w *guestState) now() time.Time { return time.Now().Add(w.ClockOffset) }

// home returns the directory that relative paths of user start from.
func (w *guestState) home(user string) string {
	if user == "" {
		user = w.User
	}
	if user == "" || user == "root" || user == "0" {
		return "/root"
	}
	return "/home/" + user
}

func (w *guestState) abs(p, user string) string {
	if !strings.HasPrefix(p, "/") {
		p = w.home(user) + "/" + p
	}
	return path.Clean(p)
}
