package access

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pandastack/pandastack/api"
)

// Class is a kind of operations with places of its own: it does not wait behind another kind.
type Class string

// The classes. Operations without a class are not bounded: those without a key, and requests to ports of sandboxes.
const (
	Deletes Class = "delete" // of sandboxes
	Creates Class = "create" // of sandboxes, also by fork and wake
	Changes Class = "change" // of everything else
	Work    Class = "work"   // commands, code and files
	Reads   Class = "read"
)

// Classes returns all classes.
func Classes() []Class { return []Class{Deletes, Creates, Changes, Work, Reads} }

// placesPerCPU are how many requests of a class are served at once for each processor; of one owner, half as many.
var placesPerCPU = map[Class]int{Deletes: 64, Creates: 32, Changes: 32, Work: 32, Reads: 64}

// DoorConfig configures a Door. Zero fields have defaults, except MaxWait.
type DoorConfig struct {
	// MaxWait is how long a request may wait for a place. One that would wait longer is refused at once.
	MaxWait time.Duration
	Places  map[Class]int // for requests that are served at once; default: by the number of processors
	// Queue is how many requests of a class may wait; default 512.
	Queue int
	// Hold is after how long a request gives its place back although it is not finished, so that long commands and
	// streams, which other bounds count, make no request wait; default 1 s.
	Hold time.Duration
}

// Door bounds how many requests of each class are served at once. Those that wait are served in turn by owner.
//
// An owner may have as many places as are free besides, as in package budget: one alone has half of them, and as many
// as it has are left for the next. So no owner makes another one wait.
type Door struct {
	cfg   DoorConfig
	lanes map[Class]*lane
}

// NewDoor returns a door.
func NewDoor(cfg DoorConfig) *Door {
	if cfg.Queue <= 0 {
		cfg.Queue = 512
	}
	if cfg.Hold <= 0 {
		cfg.Hold = time.Second
	}
	d := &Door{cfg: cfg, lanes: map[Class]*lane{}}
	for class, each := range placesPerCPU {
		places := each * runtime.GOMAXPROCS(0)
		if n := cfg.Places[class]; n > 0 {
			places = n
		}
		d.lanes[class] = &lane{places: places, free: places, typical: firstTypical,
			held: map[string]int{}, owners: map[string][]chan struct{}{}}
	}
	return d
}

// firstTypical is how long a request is assumed to take before any was measured.
const firstTypical = 50 * time.Millisecond

// lane holds the places of one class.
type lane struct {
	places int

	mu      sync.Mutex
	free    int
	held    map[string]int // by owner
	waiting int
	owners  map[string][]chan struct{} // that wait, first come first; a closed channel has a place
	turns   []string                   // owners that wait, in turn
	typical time.Duration              // how long places are held, as a moving average
	refused int
}

// enter waits for a place and returns the function that gives it back. An error has the time after which to retry.
func (d *Door) enter(ctx context.Context, class Class, owner string) (leave func(), err error) {
	l := d.lanes[class]
	if l == nil {
		return func() {}, nil
	}
	turn, wait := l.take(owner, d.cfg)
	if turn == nil && wait > 0 {
		return nil, &busyError{class, wait}
	}
	if turn != nil {
		if err := l.await(ctx, owner, turn, class, d.cfg.MaxWait); err != nil {
			return nil, err
		}
	}
	began := time.Now()
	var once sync.Once
	give := func() { once.Do(func() { l.give(owner, time.Since(began)) }) }
	timer := time.AfterFunc(d.cfg.Hold, give)
	return func() { timer.Stop(); give() }, nil
}

// take takes a place, or one in the queue, whose channel is closed when it is a place. Without either it returns how
// long the wait would be.
func (l *lane) take(owner string, cfg DoorConfig) (turn chan struct{}, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.owners[owner]) == 0 && l.mayTake(owner) {
		l.hold(owner)
		return nil, 0
	}
	// Owners are served in turn: before this request as many of each as this owner has waiting.
	ahead := 0
	for _, queue := range l.owners {
		ahead += min(len(queue), len(l.owners[owner])+1)
	}
	wait = time.Duration(float64(ahead+1) / float64(max(1, l.places/2)) * float64(l.typical))
	if wait > cfg.MaxWait || l.waiting >= cfg.Queue {
		l.refused++
		return nil, max(wait, time.Millisecond)
	}
	turn = make(chan struct{})
	if len(l.owners[owner]) == 0 {
		l.turns = append(l.turns, owner)
	}
	l.owners[owner] = append(l.owners[owner], turn)
	l.waiting++
	return turn, 0
}

// await waits for the turn of a request in the queue.
func (l *lane) await(ctx context.Context, owner string, turn chan struct{}, class Class, limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	var err error
	select {
	case <-turn:
		return nil
	case <-timer.C:
		err = &busyError{class, limit}
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	at := slices.Index(l.owners[owner], turn)
	if at < 0 { // it got a place at this moment
		l.release(owner)
		return err
	}
	if _, timeout := err.(*busyError); timeout { //nolint:errorlint // it was made above
		l.refused++
	}
	l.remove(owner, at)
	return err
}

// remove takes a request out of the queue. The caller holds mu.
func (l *lane) remove(owner string, at int) {
	l.waiting--
	if l.owners[owner] = slices.Delete(l.owners[owner], at, at+1); len(l.owners[owner]) == 0 {
		delete(l.owners, owner)
		l.turns = slices.DeleteFunc(l.turns, func(o string) bool { return o == owner })
	}
}

// give gives back a place that was held for some time.
func (l *lane) give(owner string, held time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.typical += (held - l.typical) / 16
	l.release(owner)
}

// mayTake reports whether a place is free for an owner. The caller holds mu.
func (l *lane) mayTake(owner string) bool {
	own := l.held[owner]
	return l.free > 0 && own+1 <= (l.free+own+1)/2
}

// hold takes a place. The caller holds mu.
func (l *lane) hold(owner string) {
	l.free--
	l.held[owner]++
}

// release makes a place free and gives what is free to those who wait, in turn. The caller holds mu.
func (l *lane) release(owner string) {
	l.free++
	if l.held[owner]--; l.held[owner] == 0 {
		delete(l.held, owner)
	}
	for {
		i := slices.IndexFunc(l.turns, l.mayTake)
		if i < 0 {
			return
		}
		next := l.turns[i]
		l.hold(next)
		close(l.owners[next][0])
		l.turns = append(slices.Delete(l.turns, i, i+1), next) // to the end; remove drops one without others
		l.remove(next, 0)
	}
}

// busyError refuses a request that would wait for too long.
type busyError struct {
	class Class
	wait  time.Duration
}

func (e *busyError) Error() string {
	return fmt.Sprintf("the node is busy with requests of the kind %q", string(e.class))
}

// Enter waits until an operation may begin, and returns the function that ends it.
//
// Operations of one class wait in turn by workspace. One that would wait for too long is refused with rate_limited and
// Retry-After.
func (g *Guard) Enter(
	w http.ResponseWriter,
	r *http.Request,
	face Face,
	pattern string,
	workspace api.Workspace,
) (leave func(), err error) {
	if g.door == nil {
		return func() {}, nil
	}
	leave, err = g.door.enter(r.Context(), ClassOf(face, pattern), string(workspace))
	busy, ok := err.(*busyError) //nolint:errorlint // it is never wrapped
	if !ok {
		return leave, err
	}
	seconds := int(math.Ceil(busy.wait.Seconds()))
	w.Header().Set("Retry-After", strconv.Itoa(seconds))
	return nil, api.Wrap(api.RateLimited, busy, fmt.Sprintf("%v: retry in %d s", busy, seconds)).
		With("retry_after_seconds", seconds).With("class", string(busy.class))
}

// The series of a door; the label is the class.
var (
	servedDesc = prometheus.NewDesc("pandastack_requests_served_at_once",
		"Requests that have a place, by class.", []string{"class"}, nil)
	waitingDesc = prometheus.NewDesc("pandastack_requests_waiting",
		"Requests that wait for a place, by class.", []string{"class"}, nil)
	refusedDesc = prometheus.NewDesc("pandastack_requests_refused_total",
		"Requests that were refused because they would have waited for too long, by class.", []string{"class"}, nil)
)

// Describe implements prometheus.Collector.
func (*Door) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{servedDesc, waitingDesc, refusedDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (d *Door) Collect(ch chan<- prometheus.Metric) {
	for class, l := range d.lanes {
		l.mu.Lock()
		served, waiting, refused := l.places-l.free, l.waiting, l.refused
		l.mu.Unlock()
		ch <- prometheus.MustNewConstMetric(servedDesc, prometheus.GaugeValue, float64(served), string(class))
		ch <- prometheus.MustNewConstMetric(waitingDesc, prometheus.GaugeValue, float64(waiting), string(class))
		ch <- prometheus.MustNewConstMetric(refusedDesc, prometheus.CounterValue, float64(refused), string(class))
	}
}
