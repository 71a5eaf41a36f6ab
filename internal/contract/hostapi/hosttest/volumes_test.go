package hosttest_test

import (
	"testing"

	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
	"github.com/pandastack/pandastack/internal/contract/hostapi/volumetest"
)

func TestVolumes(t *testing.T) {
	volumetest.Run(t, func(t *testing.T) volumetest.Lab {
		h := hosttest.New()
		t.Cleanup(h.Close)
		hosttest.ShareObjects(h)
		return volumetest.Lab{Host: h, Template: "base", Guest: h.Guest, Objects: true}
	})
}
