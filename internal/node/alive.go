package node

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/pandastack/pandastack/internal/lib/systemd"
)

// reportAlive tells the service manager that the node is ready, and afterwards, as often as its watchdog wants it, that
// the API responds. A node whose API does not respond is restarted by systemd.
func (n *node) reportAlive(ctx context.Context, url string) error {
	if err := n.Manager.Notify(systemd.Ready); err != nil {
		return err
	}
	if n.Manager.Watchdog == 0 {
		<-ctx.Done()
		return nil
	}
	every := n.Manager.Watchdog / 3
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		err := respond(ctx, url+"/healthz", every)
		if err == nil {
			err = n.Manager.Notify(systemd.Alive)
		}
		if err != nil && ctx.Err() == nil {
			n.Log.Warn("the service manager was not told that the node works", "err", err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// respond returns an error unless a GET request succeeds in time.
func respond(ctx context.Context, url string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close() // only its status matters
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the API responded %s", resp.Status)
	}
	return nil
}
