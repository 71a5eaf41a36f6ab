package guestlink

import (
	"context"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// Freeze implements guestapi.Guest. If it fails, the channel is as before and the workload may be frozen or not:
// the caller should call Thaw.
func (l *Link) Freeze(ctx context.Context, sync bool) error {
	request := guestapi.AppendRequest(nil, guestapi.OpFreeze, guestapi.AppendFreeze(nil, sync))
	st, err := l.h.OpenLast(ctx, request)
	if err != nil {
		return linkError(err)
	}
	if _, err := l.finishShort(ctx, st, nil); err != nil {
		l.h.Release()
		return err
	}
	return nil
}

// Thaw implements guestapi.Guest.
func (l *Link) Thaw(ctx context.Context) error {
	l.h.Release()
	_, err := l.call(ctx, guestapi.OpThaw, nil)
	return err
}

// Stats implements guestapi.Guest.
func (l *Link) Stats(ctx context.Context) (guestapi.Stats, error) {
	response, err := l.call(ctx, guestapi.OpStats, nil)
	if err != nil {
		return guestapi.Stats{}, err
	}
	s, err := guestapi.ParseStats(response)
	if err != nil {
		return guestapi.Stats{}, linkError(err)
	}
	return s, nil
}

// Volume asks the guest for an action on a volume; see guestapi.Backend.
func (l *Link) Volume(ctx context.Context, req guestapi.VolumeRequest) (guestapi.VolumeReport, error) {
	response, err := l.call(ctx, guestapi.OpVolume, guestapi.AppendVolumeRequest(nil, &req))
	if err != nil {
		return guestapi.VolumeReport{}, err
	}
	r, err := guestapi.ParseVolumeReport(response)
	if err != nil {
		return guestapi.VolumeReport{}, linkError(err)
	}
	return r, nil
}

// Ports implements guestapi.Guest.
func (l *Link) Ports(ctx context.Context) ([]guestapi.Port, error) {
	response, err := l.call(ctx, guestapi.OpPorts, nil)
	if err != nil {
		return nil, err
	}
	all, err := guestapi.ParsePorts(response, maxListed)
	if err != nil {
		return nil, linkError(err)
	}
	return all, nil
}
