package invocation

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/function"
	"github.com/pandastack/pandastack/internal/control/job"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/functionstore"
	"github.com/pandastack/pandastack/internal/lib/netguard"
	"github.com/pandastack/pandastack/internal/lib/signature"
)

// deliveryKind is the kind of the jobs that post outcomes.
const deliveryKind = "function-outcome"

// SignatureHeader has the signature of an outcome that is posted: see package signature.
const SignatureHeader = "X-Pandastack-Signature"

// Bounds of deliveries.
const (
	maxChain        = 16 // destinations of destinations
	deliveryTimeout = 30 * time.Second
)

// Outcome is what a destination gets: the event of a function, or the body of a request.
type Outcome struct {
	Run       api.InvocationID   `json:"run_id"`
	Function  api.FunctionID     `json:"function_id"`
	Version   int64              `json:"version"`
	Status    api.RunStatus      `json:"status"`
	Attempt   int                `json:"attempt"`
	Input     json.RawMessage    `json:"input"`
	Result    json.RawMessage    `json:"result,omitempty"`
	Error     *api.FunctionError `json:"error,omitempty"`
	CreatedAt time.Time          `json:"created_at"`
	EndedAt   time.Time          `json:"ended_at"`
	Chain     int                `json:"chain"` // outcomes before it: an invocation begun by an outcome has its number
}

// outcomeOf returns what the destination of a run that has ended gets.
func outcomeOf(row *functionstore.Run) Outcome {
	v := function.View(row)
	out := Outcome{
		Run: v.ID, Function: v.FunctionID, Version: v.Version, Status: v.Status, Attempt: v.Attempt,
		Input: json.RawMessage(row.Input), Result: v.Result, Error: v.Error, CreatedAt: v.CreatedAt,
		EndedAt: store.Time(row.Ended), Chain: 1,
	}
	if row.Origin == function.OriginDestination { // its input was made here
		var before Outcome
		if json.Unmarshal([]byte(row.Input), &before) == nil {
			out.Chain = before.Chain + 1
		}
	}
	return out
}

// delivery is the payload of a job that posts an outcome.
type delivery struct {
	Run string `json:"run"`
	URL string `json:"url"`
}

// sendOutcome adds what brings the outcome of a run to its destination.
func (s *Service) sendOutcome(ctx context.Context, tx *store.Tx, row *functionstore.Run) error {
	if row.State == store.RunCanceled {
		return nil
	}
	in := functionstore.In(tx)
	fn, err := in.Function(ctx, row.Function)
	if err != nil {
		return ignore(err, store.ErrNotFound)
	}
	pol, err := policyOf(&fn)
	if err != nil {
		return err
	}
	to := pol.onFailure
	if row.State == store.RunSuccess {
		to = pol.onSuccess
	}
	switch {
	case to == nil:
		return nil
	case to.URL != "":
		_, _, err := s.jobs.EnqueueTx(ctx, tx, job.Spec{
			Kind: deliveryKind, Key: row.ID, Owner: "function/" + row.Function, Workspace: api.Workspace(row.Workspace),
			Payload: delivery{row.ID, to.URL},
		})
		return err
	}
	out := outcomeOf(row)
	if out.Chain > maxChain {
		s.log.Warn("outcome of a function was dropped: its destinations call each other", "run", row.ID)
		return nil
	}
	next, err := in.Function(ctx, string(to.FunctionID))
	if err == nil && (next.State != functionstore.Active || next.Workspace != row.Workspace) {
		err = fmt.Errorf("function %s: %w", to.FunctionID, store.ErrNotFound)
	}
	if errors.Is(err, store.ErrNotFound) {
		s.log.Warn("outcome of a function was dropped: its destination is gone", "run", row.ID, "to", to.FunctionID)
		return nil
	}
	if err != nil {
		return err
	}
	if pol, err = policyOf(&next); err != nil {
		return err
	}
	data, err := json.Marshal(out)
	if err != nil {
		return err
	}
	run := newRun(&next, pol, function.OriginDestination, data, s.now())
	run.Trace = row.Trace
	return in.InsertRun(ctx, &run)
}

func ignore(err, target error) error {
	if errors.Is(err, target) {
		return nil
	}
	return err
}

// newClient returns a client for addresses of users' choice. It follows no redirects.
func newClient(allow []netip.Prefix) *http.Client {
	dialer := net.Dialer{Timeout: 10 * time.Second, Control: netguard.Guard{Allow: allow}.Control}
	return &http.Client{
		Timeout: deliveryTimeout,
		Transport: &http.Transport{
			DialContext: dialer.DialContext, ForceAttemptHTTP2: true, TLSHandshakeTimeout: 10 * time.Second,
			MaxResponseHeaderBytes: 64 << 10, MaxIdleConns: 32, IdleConnTimeout: 30 * time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// deliver is the worker that posts an outcome. A status below 300 ends it.
func (s *Service) deliver(ctx context.Context, l *job.Lease) error {
	var d delivery
	if err := json.Unmarshal(l.Job().Payload, &d); err != nil {
		return job.Permanent(err)
	}
	in := functionstore.In(s.db.Read())
	row, err := in.Run(ctx, d.Run)
	if err != nil {
		return permanentIf(err, store.ErrNotFound)
	}
	fn, err := in.Function(ctx, row.Function)
	if err != nil {
		return permanentIf(err, store.ErrNotFound)
	}
	body, err := json.Marshal(outcomeOf(&row))
	if err != nil {
		return job.Permanent(err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, d.URL, bytes.NewReader(body))
	if err != nil {
		return job.Permanent(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "pandastack-function")
	r.Header.Set(SignatureHeader, signature.Sign(fn.Secret, s.now(), string(body)))
	response, err := s.client.Do(r)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, io.LimitReader(response.Body, 64<<10))
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return err
	}
	if response.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("the response was %d", response.StatusCode)
	}
	return nil
}

func permanentIf(err, target error) error {
	if errors.Is(err, target) {
		return job.Permanent(err)
	}
	return err
}
