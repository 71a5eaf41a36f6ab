package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
)

// Limits of volumes.
const (
	volumeExtra = 40  // ms that a volume may add to a create, p50
	volumeClone = 100 // ms of the copy of a volume of cloneMiB
	cloneMiB    = 10 << 10
	volumeShare = 0.8 // of the rates of the root disk
)

// volumes measures creates with a volume against creates without, attachments, copies, and the rates of a volume
// against those of the root disk.
func (r *run) volumes(ctx context.Context) (err error) {
	v, remove, err := r.newVolume(ctx, api.CreateVolumeRequest{SizeMB: 1 << 10})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	return errors.Join(r.createWithVolume(ctx, v), r.attach(ctx, v), r.volumeRates(ctx, v), r.cloneVolume(ctx))
}

// newVolume makes a volume, and a function that deletes it after everything that uses it.
func (r *run) newVolume(
	ctx context.Context,
	req api.CreateVolumeRequest,
) (v api.Volume, remove func() error, err error) {
	req.Name = "bench-" + strings.ToLower(rand.Text())
	if v, err = r.cl.Volumes.Create(ctx, req); err != nil {
		return v, nil, err
	}
	return v, func() error {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
		defer cancel()
		return errors.Join(r.deleteAll(end), r.cl.Volumes.Delete(end, string(v.ID), true))
	}, nil
}

// betweenCreates is the pause in which the node prepares a monitor for the next sandbox, after one that took such a
// monitor. It must not slow down the create that comes next, which is of the other kind.
const betweenCreates = 500 * time.Millisecond

// createWithVolume measures creates in turns with a volume and without.
func (r *run) createWithVolume(ctx context.Context, v api.Volume) error {
	without := r.series("volume_create_without", "reference: create, in turns with volume_create", nil)
	with := r.series("volume_create", "create with a volume, request to response", nil)
	ready := r.series("volume_ready", "the same to the end of a first exec that finds the volume mounted", nil)
	for i := range r.times(40) + 1 {
		for _, volumes := range [][]api.VolumeMount{nil, {{Name: v.Name, MountPath: "/mnt/bench"}}} {
			if err := wait(ctx, betweenCreates); err != nil {
				return err
			}
			began := time.Now()
			sb, err := r.make(ctx, api.CreateRequest{Volumes: volumes})
			if err != nil {
				return err
			}
			created := time.Since(began)
			if volumes != nil {
				_, err = r.sh(ctx, sb.ID, "grep -q ' /mnt/bench ' /proc/mounts")
			}
			total := time.Since(began)
			switch {
			case i == 0 && err == nil: // the first ones are not measured: caches are cold
			case volumes == nil:
				r.add(without, created, err)
			default:
				r.add(with, created, err)
				r.add(ready, total, err)
			}
			if err := r.remove(ctx, sb.ID); err != nil {
				return err
			}
		}
	}
	with.Target = &Target{P50: without.P50 + volumeExtra}
	with.Note = fmt.Sprintf("%+.1f ms", with.P50-without.P50)
	with.close()
	return nil
}

// attach measures attachments to a sandbox that runs.
func (r *run) attach(ctx context.Context, v api.Volume) error {
	sb, err := r.make(ctx, api.CreateRequest{})
	if err != nil {
		return err
	}
	in := r.series("volume_attach", "attach a volume to a sandbox that runs, until it is mounted", nil)
	out := r.series("volume_detach", "unmount it and give it back", nil)
	for range r.times(20) {
		began := time.Now()
		_, err := r.cl.Volumes.Attach(ctx, sb.ID, api.VolumeMount{Name: v.Name, MountPath: "/mnt/bench"})
		r.add(in, time.Since(began), err)
		if err != nil {
			return err
		}
		began = time.Now()
		_, err = r.cl.Volumes.Detach(ctx, sb.ID, v.Name, false)
		r.add(out, time.Since(began), err)
		if err != nil {
			return err
		}
	}
	return r.remove(ctx, sb.ID)
}

// Programs that print a rate: megabytes a second of 64 MiB written and flushed, and blocks of 4 KiB a second, each of
// which is flushed. The input is random and in memory, so that neither disk can leave anything out.
const (
	rateInput = "head -c 64M /dev/urandom > /dev/shm/bench"
	rate      = `set -e
cd %[1]s
rm -f bench
sync -f .
a=$(date +%%s%%N)
dd if=/dev/shm/bench of=bench bs=%[2]s count=%[3]d %[4]s status=none
b=$(date +%%s%%N)
rm bench
echo $((b-a))`
)

// volumeRates measures how fast a volume and the root disk are written, in turns. The sandbox is persistent: flushes of
// the root disk of another one need not reach the medium, which those of a volume do.
func (r *run) volumeRates(ctx context.Context, v api.Volume) error {
	sb, err := r.make(ctx, api.CreateRequest{
		Persistent: true, Volumes: []api.VolumeMount{{Name: v.Name, MountPath: "/mnt/bench"}},
	})
	if err != nil {
		return err
	}
	if _, err := r.sh(ctx, sb.ID, rateInput); err != nil {
		return err
	}
	for _, one := range []struct {
		name, what, unit, block, flags string
		count                          int
		amount                         float64 // in the unit
	}{
		{"volume_write", "64 MiB written to a volume one after the other, and flushed", "MB/s",
			"1M", "conv=fsync", 64, 64 << 20 / 1e6},
		{"volume_fsync", "blocks of 4 KiB written to a volume, each flushed by itself", "1/s",
			"4k", "oflag=dsync", 200, 200},
	} {
		disk := r.series(one.name+"_root", "reference: the same on the root disk of a persistent sandbox", nil)
		s := r.series(one.name, one.what, nil)
		disk.Unit, s.Unit = one.unit, one.unit
		for i := range r.times(15) + 1 {
			for _, at := range []struct {
				dir string
				s   *Series
			}{{"/var/tmp", disk}, {"/mnt/bench", s}} {
				out, err := r.sh(ctx, sb.ID, fmt.Sprintf(rate, at.dir, one.block, one.count, one.flags))
				if err != nil {
					return err
				}
				took, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
				if err != nil || took <= 0 {
					return fmt.Errorf("%s took %q ns", one.name, out)
				}
				if i > 0 { // the first ones are not measured: the files' blocks are new
					at.s.Values = append(at.s.Values, one.amount/(float64(took)/1e9))
				}
			}
		}
		disk.close()
		s.Target = &Target{AtLeast: volumeShare * percentile(disk.Values, 50)}
		s.close()
		s.Note = fmt.Sprintf("%.0f %% of the root disk", 100*s.P50/disk.P50)
	}
	return r.remove(ctx, sb.ID)
}

// cloneVolume measures copies of a large volume.
func (r *run) cloneVolume(ctx context.Context) (err error) {
	v, remove, err := r.newVolume(ctx, api.CreateVolumeRequest{SizeMB: cloneMiB})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	sb, err := r.make(ctx, api.CreateRequest{Volumes: []api.VolumeMount{{Name: v.Name, MountPath: "/mnt/bench"}}})
	if err != nil {
		return err
	}
	fill := rateInput + " && for i in 1 2 3 4; do cp /dev/shm/bench /mnt/bench/$i; done && sync"
	if _, err := r.sh(ctx, sb.ID, fill); err != nil {
		return err
	}
	if err := r.remove(ctx, sb.ID); err != nil {
		return err
	}
	s := r.series("volume_clone", "copy of a volume of 10 GiB with 256 MiB in use", &Target{P50: volumeClone})
	for range r.times(20) {
		began := time.Now()
		made, err := r.cl.Volumes.Clone(ctx, v.Name, api.VolumeCloneRequest{Name: v.Name + "-copy"})
		r.add(s, time.Since(began), err)
		if err != nil {
			return err
		}
		if err := r.cl.Volumes.Delete(ctx, string(made.ID), false); err != nil {
			return err
		}
	}
	return nil
}
