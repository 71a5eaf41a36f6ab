package pghttp

import (
	"bufio"
	"container/list"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/semaphore"

	"github.com/pandastack/pandastack/internal/ingress/pgedge"
	"github.com/pandastack/pandastack/internal/lib/scram"
)

const (
	maxLogins    = 4096            // passwords whose check is remembered
	resetTimeout = 5 * time.Second // of DISCARD ALL
	closeTimeout = time.Second     // of saying goodbye to a database
)

// key is what connections have to share to be used for one another.
type key struct {
	endpoint       string
	target         pgedge.Target
	role, database string
	client         [sha256.Size]byte // key of the role
}

// pooled is a connection of the pool.
type pooled struct {
	key   key
	conn  *pgconn.PgConn
	since time.Time // when it became idle
}

// pool keeps connections to databases.
type pool struct {
	limits Limits
	config *pgconn.Config // of all connections

	mu     sync.Mutex
	idle   map[key][]*pooled              // guarded by mu, as is the field below
	places map[string]*semaphore.Weighted // by endpoint
}

func newPool(limits Limits) (*pool, error) {
	// Nothing of it is used to connect: pgedge does that.
	config, err := pgconn.ParseConfig("host=edge user=edge password=none database=edge sslmode=disable")
	if err != nil {
		return nil, err
	}
	config.Fallbacks = nil
	config.MaxProtocolMessageBodyLen = int(limits.ResponseBytes) + 1<<20
	return &pool{
		limits: limits, config: config, idle: map[key][]*pooled{}, places: map[string]*semaphore.Weighted{},
	}, nil
}

func (p *pool) place(endpoint string) *semaphore.Weighted {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.places[endpoint]
	if s == nil {
		s = semaphore.NewWeighted(int64(p.limits.Connections))
		p.places[endpoint] = s
	}
	return s
}

// get returns a connection for a login. It waits while the endpoint has as many as it may.
func (p *pool) get(ctx context.Context, l *login) (*pooled, error) {
	place := p.place(l.id)
	if err := place.Acquire(ctx, 1); err != nil {
		return nil, context.Cause(ctx)
	}
	k := key{endpoint: l.id, target: l.target, role: l.role, database: l.database, client: [32]byte(l.keys.Client)}
	for {
		c := p.take(k)
		if c == nil {
			break
		}
		if c.conn.Ping(ctx) == nil {
			return c, nil
		}
		c.close(ctx) // the database has ended it meanwhile
	}
	conn, err := p.connect(ctx, l)
	if err != nil {
		place.Release(1)
		return nil, err
	}
	return &pooled{key: k, conn: conn}, nil
}

// take removes an idle connection from the pool, the one that was used last.
func (p *pool) take(k key) *pooled {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.idle[k]
	if len(all) == 0 {
		return nil
	}
	last := all[len(all)-1]
	if p.idle[k] = all[:len(all)-1]; len(all) == 1 {
		delete(p.idle, k)
	}
	return last
}

// put resets a connection and keeps it, or closes it.
func (p *pool) put(ctx context.Context, c *pooled) {
	defer p.place(c.key.endpoint).Release(1)
	reset, cancel := context.WithTimeout(context.WithoutCancel(ctx), resetTimeout)
	defer cancel()
	if c.conn.IsClosed() || ctx.Err() != nil || c.conn.TxStatus() != 'I' {
		c.close(ctx)
		return
	}
	if _, err := c.conn.Exec(reset, "DISCARD ALL").ReadAll(); err != nil {
		c.close(ctx)
		return
	}
	p.mu.Lock()
	keep := len(p.idle[c.key]) < p.limits.Idle
	if keep {
		c.since = time.Now()
		p.idle[c.key] = append(p.idle[c.key], c)
	}
	p.mu.Unlock()
	if !keep {
		c.close(ctx)
	}
}

// close ends a connection, and what runs on it.
func (c *pooled) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = c.conn.Close(ctx) // it is gone in any case
	<-c.conn.CleanupDone()
}

// closeIdle closes the idle connections for which which is true.
func (p *pool) closeIdle(which func(endpoint string, since time.Time) bool) {
	p.mu.Lock()
	var closing []*pooled
	for k, all := range p.idle {
		var kept []*pooled
		for _, c := range all {
			if which(k.endpoint, c.since) {
				closing = append(closing, c)
			} else {
				kept = append(kept, c)
			}
		}
		if p.idle[k] = kept; len(kept) == 0 {
			delete(p.idle, k)
		}
	}
	p.mu.Unlock()
	for _, c := range closing {
		_ = c.conn.Conn().Close() // the database sees the end of the connection
	}
}

// connect logs into the database.
func (p *pool) connect(ctx context.Context, l *login) (*pgconn.PgConn, error) {
	b, err := pgedge.Connect(ctx, l.endpoint, l.target, pgedge.Login{Keys: l.keys, Parameters: map[string]string{
		"user": l.role, "database": l.database, "client_encoding": "UTF8", "application_name": "pandastack-http",
	}})
	if err != nil {
		return nil, err
	}
	config := p.config.Copy()
	config.User, config.Database = l.role, l.database
	config.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) { // of cancel requests
		return l.endpoint.Dial(ctx, l.target)
	}
	conn, err := pgconn.Construct(&pgconn.HijackedConn{
		Conn: &backendConn{Conn: b.Conn, reader: b.Reader}, PID: b.PID, SecretKey: b.Secret,
		ParameterStatuses: b.Status, TxStatus: b.Tx, Config: config,
	})
	if err != nil {
		_ = b.Conn.Close() // the error says more
		return nil, err
	}
	return conn, nil
}

// backendConn is a connection of which some bytes are in a buffer.
type backendConn struct {
	net.Conn
	reader *bufio.Reader
}

// Read implements net.Conn.
func (c *backendConn) Read(b []byte) (int, error) { return c.reader.Read(b) }

// RemoteAddr implements net.Conn: cancel requests are dialed by the endpoint, whatever the address.
func (c *backendConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4zero, Port: 5432} }

// logins remembers passwords that were right, so that they are not stretched for each request.
type logins struct {
	secret []byte // of this process

	mu      sync.Mutex
	entries map[[sha256.Size]byte]*list.Element // of order
	order   *list.List                          // of *known, the most recent first
}

// known is a password that was right for a verifier: their digest, and the keys.
type known struct {
	digest [sha256.Size]byte
	keys   scram.Keys
}

func newLogins() (*logins, error) {
	secret := make([]byte, sha256.Size)
	if _, err := rand.Read(secret); err != nil {
		return nil, err
	}
	return &logins{secret: secret, entries: map[[sha256.Size]byte]*list.Element{}, order: list.New()}, nil
}

// check reports whether a password is that of a verifier.
func (l *logins) check(v scram.Verifier, password string) (scram.Keys, bool, error) {
	h := hmac.New(sha256.New, l.secret)
	h.Write([]byte(v.String() + "\x00" + password))
	digest := [sha256.Size]byte(h.Sum(nil))
	l.mu.Lock()
	if e, ok := l.entries[digest]; ok {
		l.order.MoveToFront(e)
		one := e.Value.(*known) //nolint:forcetypeassert // the list has nothing else
		l.mu.Unlock()
		return one.keys, true, nil
	}
	l.mu.Unlock()
	keys, ok, err := v.Check(password)
	if err != nil || !ok {
		return scram.Keys{}, false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, twice := l.entries[digest]; twice {
		return keys, true, nil
	}
	for l.order.Len() >= maxLogins {
		last := l.order.Remove(l.order.Back()).(*known) //nolint:forcetypeassert // the list has nothing else
		delete(l.entries, last.digest)
	}
	l.entries[digest] = l.order.PushFront(&known{digest: digest, keys: keys})
	return keys, true, nil
}
