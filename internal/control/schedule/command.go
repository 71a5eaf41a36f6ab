package schedule

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Times of commands: overtime is what a guest gets to report the end of a command whose time is over, startTimeout to
// confirm its start, and endTimeout bounds the deletion of a sandbox.
const (
	overtime     = 10 * time.Second
	startTimeout = time.Minute
	endTimeout   = time.Minute
)

// inNewSandbox runs a command in a sandbox of its own, which ends with it.
func (s *Service) inNewSandbox(
	ctx context.Context,
	row *store.Schedule,
	run *store.ScheduleRun,
	target api.ScheduleTarget,
	limit time.Duration,
) (out outcome, err error) {
	p := as(row)
	p.Owner = hostapi.Owner{Kind: OwnerKind, ID: row.ID}
	// An earlier attempt whose process was killed may have left its sandbox.
	if run.Sandbox != "" {
		if err := s.remove(ctx, p, api.SandboxID(run.Sandbox)); err != nil {
			return out, err
		}
	}
	box, err := s.boxes.Create(ctx, p, api.CreateRequest{
		Template: target.Template, Metadata: map[string]string{"run": run.ID},
		// It ends by itself if this process is killed before it is written down.
		TimeoutSeconds: int64((limit + startTimeout + overtime) / time.Second),
	})
	if err != nil {
		return failed(err), nil
	}
	defer func() { err = errors.Join(err, s.remove(context.WithoutCancel(ctx), p, box.ID)) }()
	run.Sandbox = string(box.ID)
	err = s.db.Write(ctx, "schedule sandbox", func(ctx context.Context, tx *store.Tx) error {
		return ignore(tx.UpdateScheduleRun(ctx, run, "sandbox"), store.ErrNotFound)
	})
	if err != nil {
		return out, err
	}
	return s.command(ctx, p, box, run, target, limit), nil
}

func (s *Service) remove(ctx context.Context, p auth.Principal, id api.SandboxID) error {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	if err := s.boxes.Delete(ctx, p, id); err != nil && api.CodeOf(err) != api.NotFound {
		return fmt.Errorf("delete the sandbox of a run: %w", err)
	}
	return nil
}

// inSandbox runs a command in a sandbox of the user.
func (s *Service) inSandbox(
	ctx context.Context,
	p auth.Principal,
	run *store.ScheduleRun,
	target api.ScheduleTarget,
	limit time.Duration,
) outcome {
	box, err := s.boxes.Get(ctx, p, target.SandboxID)
	if err != nil {
		return failed(err)
	}
	run.Sandbox = string(box.ID)
	return s.command(ctx, p, box, run, target, limit)
}

// inApp runs a command in a machine of the live deployment of an app, with the variables of the app below those of the
// target. The machine ends with the command, or by itself if this process is killed.
func (s *Service) inApp(
	ctx context.Context,
	p auth.Principal,
	run *store.ScheduleRun,
	target api.ScheduleTarget,
	limit time.Duration,
) outcome {
	if s.apps == nil {
		return failed(api.Errorf(api.Unsupported, "this server has no apps"))
	}
	g, command, end, err := s.apps.RunCommand(ctx, p, string(target.AppID), api.AppRunRequest{
		Command: target.Command, TimeoutSeconds: int(limit / time.Second),
	})
	if err != nil {
		return failed(err)
	}
	defer end()
	spec := guestapi.ProcessSpec{Env: command.Env, User: command.User, Dir: command.Cwd}
	return execute(ctx, g, spec, run, target, limit)
}

// command runs the command of a target in a sandbox, which it wakes.
func (s *Service) command(
	ctx context.Context,
	p auth.Principal,
	box api.Sandbox,
	run *store.ScheduleRun,
	target api.ScheduleTarget,
	limit time.Duration,
) outcome {
	g, err := s.boxes.Guest(ctx, p, box.ID)
	if err != nil {
		return failed(err)
	}
	return execute(ctx, g, guestapi.ProcessSpec{User: box.User, Dir: box.Workdir}, run, target, limit)
}

// execute runs the command of a target in a guest, as a user, in a directory and with variables of spec.
func execute(
	ctx context.Context,
	g guestapi.Guest,
	spec guestapi.ProcessSpec,
	run *store.ScheduleRun,
	target api.ScheduleTarget,
	limit time.Duration,
) outcome {
	env := map[string]string{}
	maps.Copy(env, spec.Env)
	maps.Copy(env, target.Env)
	for name, value := range facts(run, run.Attempt) {
		env["PANDASTACK_"+name] = value
	}
	spec.Shell, spec.Env, spec.Timeout = target.Command, env, limit
	keep := guestexec.Limit{Bytes: api.MaxRunOutput, Keep: guestexec.Tail}
	res, err := guestexec.Run(ctx, g, guestexec.Command{
		Spec: spec, Overtime: overtime, StartTimeout: startTimeout,
	}, guestexec.Limits{Stdout: keep, Stderr: keep})
	out := outcome{stdout: string(res.Stdout.Data), stderr: string(res.Stderr.Data)}
	switch {
	case errors.Is(err, guestexec.ErrOvertime), err == nil && res.Exit.TimedOut:
		out.state, out.err = store.RunTimeout, fmt.Sprintf("the command did not end within %s", limit)
	case err != nil:
		out.state, out.err = store.RunError, api.AsError(hosterror.OfGuest(err, "command")).Message
	case res.Exit.Error != "":
		out.state, out.err = store.RunError, "the command could not be started: "+res.Exit.Error
	case res.Exit.Code != 0:
		out.state, out.err = store.RunError, fmt.Sprintf("the command ended with %d", res.Exit.Code)
		out.exit = new(res.Exit.Code)
	default:
		out.state, out.exit = store.RunSuccess, new(0)
	}
	return out
}

func failed(err error) outcome { return outcome{state: store.RunError, err: api.AsError(err).Message} }
