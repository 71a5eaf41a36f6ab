package firecracker_test

import (
	"context"
	"os"
	"testing"

	"github.com/pandastack/pandastack/internal/vmm/firecracker/fctest"
)

func TestMain(m *testing.M) {
	fctest.Main(context.Background())
	os.Exit(m.Run())
}
